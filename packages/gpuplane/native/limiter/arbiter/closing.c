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

#include <signal.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 4096
#define EVERY_NS 20000000ull

static int sockets[MOST];
static unsigned count;
static uint64_t next_at;

static void close_all(void)
{
	pid_t arbiter = getpid(), child = fork(); /* and no pipe: there may be no descriptor left */
	if (child == 0) {
		close(arbiter_lock);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (getppid() == arbiter)
			pause();
		_exit(0);
	}
	if (child < 0)
		return;
	while (count)
		close(sockets[--count]);
	kill(child, SIGKILL);
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
