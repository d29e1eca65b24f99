/*
 * Functions that a GPU's driver brings: vprintf, to which printf is compiled, and __assertfail. Printed text goes to the
 * program's own output when the kernel has run, which is the latest that a real GPU's would while programs wait for it.
 */
#include "run.h"

#include <stdio.h>
#include <string.h>

#define LONGEST 1024 /* of a string; the rest is cut off */

static const struct {
	const char *name;
	enum ptx_builtin builtin;
	uint32_t arguments;
	uint8_t sizes[5];
} builtins[] = {
	{"vprintf", PTX_VPRINTF, 2, {8, 8}}, {"__assertfail", PTX_ASSERTFAIL, 5, {8, 8, 4, 8, 8}},
};

enum ptx_builtin ptx_builtin_called(const char *name, const struct ptx_call *call)
{
	for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++) {
		bool fits = !strcmp(builtins[i].name, name) && call->argument_count == builtins[i].arguments;
		for (uint32_t k = 0; fits && k < call->argument_count; k++)
			fits = call->arguments[k].size == builtins[i].sizes[k];
		if (fits)
			return builtins[i].builtin;
	}
	return PTX_NO_BUILTIN;
}

/* The state of one call: `result` turns bad with the first address that is not there. */
struct printing {
	struct run *run;
	const struct thread *thread;
	const struct ptx_instruction *i;
	uint64_t arguments;
	enum ptx_result result;
};

static uint64_t read_word(struct printing *p, uint64_t address, uint32_t size)
{
	uint64_t value = 0;
	enum ptx_result result;
	const uint8_t *at = reach_at(p->run, p->thread, p->i, address, PTX_GENERIC, size, &result);
	if (at)
		memcpy(&value, at, size);
	else if (p->result == PTX_OK)
		p->result = result;
	return value;
}

static void read_text(struct printing *p, uint64_t address, char *text)
{
	size_t length = 0;
	while (length < LONGEST - 1 && p->result == PTX_OK && (text[length] = (char)read_word(p, address + length, 1)))
		length++;
	text[length] = 0;
}

/* Arguments lie at multiples of their size. */
static uint64_t next(struct printing *p, uint32_t size)
{
	p->arguments = (p->arguments + size - 1) / size * size + size;
	return read_word(p, p->arguments - size, size);
}

/* One conversion, which ends with its letter. */
static void convert(struct printing *p, const char *format)
{
	char text[LONGEST];
	size_t length = strlen(format);
	char letter = format[length - 1];
	double real;
	uint64_t word;
	if (strchr("diuoxXc", letter)) {
		bool wide = strchr(format, 'l') || strchr(format, 'z') || strchr(format, 'j');
		word = next(p, wide ? 8 : 4);
		if (wide)
			fprintf(stdout, format, word);
		else
			fprintf(stdout, format, (unsigned)word);
	} else if (strchr("fFeEgGaA", letter)) {
		word = next(p, 8);
		memcpy(&real, &word, sizeof real);
		fprintf(stdout, format, real);
	} else if (letter == 's') {
		read_text(p, next(p, 8), text);
		fprintf(stdout, format, text);
	} else if (letter == 'p') {
		fprintf(stdout, format, (void *)(uintptr_t)next(p, 8));
	} else {
		fputs(format, stdout); /* not a conversion of CUDA: as it stands */
	}
}

static uint32_t print(struct printing *p, uint64_t format_address)
{
	char format[LONGEST], piece[32];
	uint32_t converted = 0;
	read_text(p, format_address, format);
	for (const char *at = format; *at && p->result == PTX_OK;) {
		size_t length = 1 + strspn(at + 1, "-+ #0123456789.hljzt");
		if (*at != '%') {
			fputc(*at++, stdout);
		} else if (at[1] == '%') {
			fputc('%', stdout);
			at += 2;
		} else if (!at[length] || length + 2 > sizeof piece) {
			fputc(*at++, stdout);
		} else {
			memcpy(piece, at, length + 1);
			piece[length + 1] = 0;
			convert(p, piece);
			at += length + 1;
			converted++;
		}
	}
	return converted;
}

static void assertion(struct printing *p, const uint64_t *words)
{
	char message[LONGEST], file[LONGEST], function[LONGEST];
	const struct frame *frame = &p->thread->frame;
	const uint64_t *special = frame->slots + frame->code->registers + frame->code->constant_count;
	read_text(p, words[0], message);
	read_text(p, words[1], file);
	read_text(p, words[3], function);
	fprintf(stderr, "%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n", file, (unsigned)words[2], function,
		(unsigned)special[PTX_CTAID_X], (unsigned)special[PTX_CTAID_Y], (unsigned)special[PTX_CTAID_Z],
		(unsigned)special[PTX_TID_X], (unsigned)special[PTX_TID_Y], (unsigned)special[PTX_TID_Z], message);
}

enum ptx_result builtin_call(struct run *run, struct thread *thread, const struct ptx_instruction *i, const struct ptx_call *call,
			     enum ptx_builtin builtin)
{
	uint64_t words[5] = {0};
	struct printing p = {.run = run, .thread = thread, .i = i, .result = PTX_OK};
	for (uint32_t k = 0; k < call->argument_count; k++)
		memcpy(&words[k], thread->frame.area + call->arguments[k].offset, call->arguments[k].size);
	if (builtin == PTX_ASSERTFAIL) {
		assertion(&p, words);
		return fault(run, i, 0, PTX_ASSERTED);
	}
	p.arguments = words[1];
	uint32_t converted = print(&p, words[0]);
	if (call->result.size == sizeof converted)
		memcpy(thread->frame.area + call->result.offset, &converted, sizeof converted);
	fflush(stdout);
	return p.result;
}
