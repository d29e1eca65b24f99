/*
 * The arbiter's loop.
 *
 *     arbiter BASE       until its standard input ends
 */
#include "arbiter.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define STANDBY_MS 50
#define EVENTS 64

int arbiter_epoll, arbiter_lock = -1;

uint64_t clock_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

bool arbiter_watch(int file, void *source, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = source};
	return epoll_ctl(arbiter_epoll, EPOLL_CTL_ADD, file, &event) == 0;
}

/* Until the lock is ours; false: the owner has ended. */
static bool lock(const char *base)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/.arbiter", base);
	int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	while (file >= 0 && flock(file, LOCK_EX | LOCK_NB) < 0) {
		struct pollfd owner = {.fd = STDIN_FILENO, .events = POLLIN};
		if (errno != EWOULDBLOCK || poll(&owner, 1, STANDBY_MS) > 0)
			return false;
	}
	arbiter_lock = file;
	return file >= 0;
}

static void prepare(void)
{
	struct rlimit files;
	signal(SIGPIPE, SIG_IGN);
	signal(SIGCHLD, SIG_IGN); /* of closing.c: no process waits for them */
	signal(SIGINT, SIG_IGN); /* of the terminal; it ends with its owner */
	umask(0);                /* processes of any user connect */
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	/* Turns change within microseconds where that is allowed. */
	setpriority(PRIO_PROCESS, 0, -10);
}

static void wake_at(int timer, uint64_t at)
{
	struct itimerspec when = {.it_value = {(time_t)(at / 1000000000ull), (long)(at % 1000000000ull)}};
	if (at == ORDER_NEVER)
		when = (struct itimerspec){0};
	timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static bool handle(const struct epoll_event *event, int timer)
{
	uint64_t expired;
	switch (*(enum source *)event->data.ptr) {
	case FROM_OWNER:
		return false;
	case FROM_FOLDER:
		shares_scan();
		return true;
	case FROM_TIMER:
		if (read(timer, &expired, sizeof expired) == (ssize_t)sizeof expired)
			shares_refill(clock_now());
		shares_retry(clock_now());
		return true;
	case FROM_LISTENER:
		talk_accept(event->data.ptr);
		return true;
	case FROM_CONNECTION:
		talk_read(event->data.ptr, event->events & EPOLLHUP);
		return true;
	}
	return true;
}

int main(int count, char **words)
{
	static enum source owner = FROM_OWNER, folder = FROM_FOLDER, ticks = FROM_TIMER;
	if (count != 2)
		return 2;
	if (!lock(words[1]))
		return 0;
	prepare();
	arbiter_epoll = epoll_create1(EPOLL_CLOEXEC);
	int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (!shares_open(words[1]) || timer < 0 || !arbiter_watch(STDIN_FILENO, &owner, EPOLLIN) ||
	    !arbiter_watch(shares_changes(), &folder, EPOLLIN) || !arbiter_watch(timer, &ticks, EPOLLIN)) {
		arbiter_say("cannot work: base=%s reason=%s", words[1], strerror(errno));
		return 1;
	}
	shares_scan();
	for (;;) {
		struct epoll_event events[EVENTS];
		uint64_t wake = talk_turns(), refill = shares_wake();
		talk_sweep();
		closing_run(clock_now());
		wake = refill < wake ? refill : wake;
		wake_at(timer, closing_wake() < wake ? closing_wake() : wake);
		int ready = epoll_wait(arbiter_epoll, events, EVENTS, -1);
		bool rescan = false;
		for (int i = 0; i < ready; i++) {
			if (*(enum source *)events[i].data.ptr == FROM_FOLDER)
				rescan = true;
			else if (!handle(&events[i], timer)) {
				shares_end();
				return 0;
			}
		}
		/* Last: it frees shares, of which an event may be left. */
		if (rescan)
			shares_scan();
	}
}
