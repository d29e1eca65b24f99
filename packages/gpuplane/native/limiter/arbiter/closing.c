/*
 * Closes sockets of containers without waiting.
 *
 * A message may carry descriptors, and who closes a file last waits for as long as the file says: a TCP connection with
 * SO_LINGER, which the container chooses, waits for hours. Messages with descriptors are never received (talk.c), but a
 * socket that is closed takes its unread messages along. So a process that ends closes the sockets: the kernel lets no
 * ending process linger.
 *
 * Invariant: the process that ends has each socket for longer than the arbiter.
 */
#include "arbiter.h"

#include <stddef.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 4096
#define EVERY_NS 20000000ull

static int sockets[MOST];
static unsigned count;
static uint64_t next_at;

static void close_all(void)
{
	int end[2];
	if (pipe(end) == 0) {
		pid_t child = fork();
		if (child == 0) {
			char byte;
			close(arbiter_lock);
			close(end[1]);
			_exit(read(end[0], &byte, 1) != 0); /* once the arbiter has closed its own, or has ended */
		}
		if (child > 0)
			while (count)
				close(sockets[--count]);
		close(end[0]);
		close(end[1]);
	}
}

void closing_add(int socket)
{
	/* A copy of it in another process would leave it in the set. */
	epoll_ctl(arbiter_epoll, EPOLL_CTL_DEL, socket, NULL);
	shutdown(socket, SHUT_RDWR);
	if (count == MOST)
		close_all();
	if (count == MOST) /* no process can be started: the arbiter needs the descriptors more than its time */
		close(sockets[--count]);
	sockets[count++] = socket;
}

uint64_t closing_wake(void)
{
	return count ? next_at : ORDER_NEVER;
}

void closing_run(uint64_t now)
{
	if (!count || now < next_at)
		return;
	next_at = now + EVERY_NS;
	close_all();
}
