/* Lines on stderr. Lines that a container causes are bounded for each share, so that none hides the lines of another. */
#include "arbiter.h"

#include <stdarg.h>
#include <stdio.h>

#define LINES_MOST 20 /* of a share within PERIOD_NS */
#define PERIOD_NS 3600000000000ull

static void write_line(const char *format, va_list arguments)
{
	fputs("arbiter: ", stderr);
	vfprintf(stderr, format, arguments);
	fputs("\n", stderr);
}

void arbiter_say(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	write_line(format, arguments);
	va_end(arguments);
}

void log_end(struct share *share)
{
	if (share->left_out)
		arbiter_say("lines were left out: share=%s count=%llu", share->id, share->left_out);
	share->lines = 0;
	share->left_out = 0;
}

void log_of(struct share *share, const char *format, ...)
{
	va_list arguments;
	uint64_t now = clock_now();
	if (now - share->lines_at > PERIOD_NS) {
		log_end(share);
		share->lines_at = now;
	}
	if (share->lines >= LINES_MOST) {
		share->left_out++;
		return;
	}
	share->lines++;
	va_start(arguments, format);
	write_line(format, arguments);
	va_end(arguments);
}
