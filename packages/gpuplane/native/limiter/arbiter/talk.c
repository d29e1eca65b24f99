/* Messages from and to connected processes. */
#include "arbiter.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define ACCEPT_COST 5       /* messages that a connection counts for */
#define SHARE_CONNECTIONS 2048
#define SHARE_PART 4        /* of the descriptors, so that no share alone uses them up */
#define READ_AT_ONCE 8      /* messages of a connection between two looks at the others */

static struct connection *connections;
static struct gpu *gpus;
static uint64_t here_at;
static bool closed;

static struct gpu *gpu_of(const char *uuid)
{
	struct gpu *gpu = gpus;
	while (gpu && memcmp(gpu->uuid, uuid, sizeof gpu->uuid) != 0)
		gpu = gpu->next;
	if (!gpu && (gpu = calloc(1, sizeof *gpu))) {
		memcpy(gpu->uuid, uuid, sizeof gpu->uuid);
		order_begin(&gpu->order);
		gpu->next = gpus;
		gpus = gpu;
	}
	return gpu;
}

static void hang_up(struct connection *connection)
{
	if (connection->socket < 0)
		return;
	closing_add(connection->socket);
	connection->socket = -1;
	closed = true;
	if (connection->seat < 0)
		return;
	order_leave(&connection->gpu->order, connection->seat, clock_now());
	connection->gpu->seats[connection->seat] = NULL;
	connection->seat = -1;
}

static bool tell(struct connection *connection, enum word_kind kind, uint64_t turn, uint64_t time_ns)
{
	struct word word = {.kind = kind, .version = PAGE_VERSION, .turn = turn, .time_ns = time_ns};
	if (send(connection->socket, &word, sizeof word, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof word)
		return true;
	/* A stopped process need not hear that we are here. */
	if (kind == WORD_HERE && errno == EAGAIN)
		return true;
	hang_up(connection);
	return false;
}

static bool may_connect(const struct share *share)
{
	struct rlimit files;
	return share->users < SHARE_CONNECTIONS &&
	       (getrlimit(RLIMIT_NOFILE, &files) < 0 || share->users < files.rlim_cur / SHARE_PART);
}

void talk_accept(struct share *share)
{
	int socket = accept4(share->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (socket < 0) { /* without descriptors the listener stays ready: this costs a share its messages, not our time */
		shares_spend(share, ACCEPT_COST, clock_now());
		return;
	}
	struct connection *connection = may_connect(share) ? calloc(1, sizeof *connection) : NULL;
	if (!connection || !arbiter_watch(socket, connection, share->silent ? 0 : EPOLLIN)) {
		free(connection);
		closing_add(socket);
	} else {
		*connection = (struct connection){FROM_CONNECTION, socket, -1, 0, share, NULL, connections};
		connections = connection;
		share->users++;
	}
	shares_spend(share, ACCEPT_COST, clock_now());
}

/* The first word. */
static void greet(struct connection *connection, const struct word *word, uint64_t now)
{
	struct order_limit limit;
	struct share *share = connection->share;
	if (word->version != PAGE_VERSION) {
		log_of(share, "a container has another version of the limits, and keeps to them alone: share=%s version=%u ours=%u",
		       share->id, word->version, PAGE_VERSION);
		if (tell(connection, WORD_REFUSED, 0, 0))
			hang_up(connection);
		return;
	}
	if (word->kind != WORD_HELLO || !shares_limit(share, word->gpu, &limit, now)) {
		hang_up(connection);
		return;
	}
	struct gpu *gpu = gpu_of(share->limits.gpus[word->gpu].uuid);
	int seat = gpu ? order_join(&gpu->order, share->limits.tenant, limit, now) : -1;
	if (seat < 0) {
		hang_up(connection);
		return;
	}
	connection->gpu = gpu;
	connection->position = word->gpu;
	connection->seat = seat;
	gpu->seats[seat] = connection;
	tell(connection, WORD_WELCOME, 0, 0);
}

static void obey(struct connection *connection, const struct word *word, uint64_t now)
{
	struct order *order = &connection->gpu->order;
	struct order_limit limit;
	int seat = connection->seat;
	if ((word->kind == WORD_WANT || word->kind == WORD_MORE) &&
	    shares_limit(connection->share, connection->position, &limit, now))
		order_resize(order, seat, limit, now);
	switch (word->kind) {
	case WORD_WANT:
		order_want(order, seat, now);
		break;
	case WORD_MORE: {
		uint64_t length = order_more(order, seat, word->turn, word->time_ns, now);
		tell(connection, length ? WORD_GRANT : WORD_OVER, word->turn, length);
		break;
	}
	case WORD_BUSY:
		order_busy(order, seat, word->turn, word->time_ns, now);
		break;
	case WORD_DONE:
		order_done(order, seat, word->turn, word->time_ns, word->soon == 1, now);
		break;
	case WORD_OWES:
		order_owe(order, seat, word->time_ns, now);
		break;
	default:
		hang_up(connection);
	}
}

/* Takes the next word. Returns its size; 0 at the end, and for a message that is no word or carries descriptors. */
static ssize_t hear(int socket, struct word *word)
{
	struct iovec part = {word, sizeof *word};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	ssize_t size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC);
	if (size < 0)
		return size;
	if (size != (ssize_t)sizeof *word || message.msg_flags & MSG_CTRUNC)
		return 0;
	return recv(socket, word, sizeof *word, MSG_DONTWAIT);
}

void talk_read(struct connection *connection, bool ended)
{
	/* Of a share that may not speak its end is all that is heard. */
	if (ended && connection->share->silent)
		hang_up(connection);
	for (int i = 0; i < READ_AT_ONCE && connection->socket >= 0 && !connection->share->silent; i++) {
		struct word word;
		ssize_t size = hear(connection->socket, &word);
		if (size < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		uint64_t now = clock_now();
		if (size != (ssize_t)sizeof word)
			hang_up(connection);
		else if (connection->seat < 0)
			greet(connection, &word, now);
		else
			obey(connection, &word, now);
		shares_spend(connection->share, 1, now);
	}
}

static uint64_t take_turns(struct gpu *gpu)
{
	uint64_t length, wake;
	for (;;) {
		uint64_t now = clock_now();
		if (cycles_through(gpus, gpu, now))
			gpu->order.expires = now;
		int lost = order_expire(&gpu->order, now);
		if (lost >= 0)
			tell(gpu->seats[lost], WORD_LOST, gpu->order.turn, 0);
		int seat = order_next(&gpu->order, now, &length, &wake);
		if (seat < 0)
			return wake;
		/* A connection that takes no message is closed, and the next seat gets its turn. */
		tell(gpu->seats[seat], WORD_GRANT, gpu->order.turn, length);
	}
}

uint64_t talk_turns(void)
{
	uint64_t now = clock_now(), wake;
	bool waiting = false;
	for (struct gpu *gpu = gpus; gpu; gpu = gpu->next)
		for (unsigned i = 0; now >= here_at && i < gpu->order.top; i++)
			if (gpu->seats[i] && gpu->order.seats[i].state == SEAT_WAITING)
				tell(gpu->seats[i], WORD_HERE, 0, 0);
	if (now >= here_at)
		here_at = now + WORD_HERE_NS;
	wake = ORDER_NEVER;
	for (struct gpu *gpu = gpus; gpu; gpu = gpu->next) {
		uint64_t at = take_turns(gpu);
		wake = at < wake ? at : wake;
		for (int i = 0; i < ORDER_TENANTS; i++)
			waiting |= gpu->order.tenants[i].waiting > 0;
	}
	return waiting && here_at < wake ? here_at : wake;
}

void talk_silence(struct share *share, bool silent)
{
	for (struct connection *connection = connections; connection; connection = connection->next)
		if (connection->share == share && connection->socket >= 0) {
			struct epoll_event event = {.events = silent ? 0 : EPOLLIN, .data.ptr = connection};
			epoll_ctl(arbiter_epoll, EPOLL_CTL_MOD, connection->socket, &event);
		}
	if (share->listener >= 0) {
		struct epoll_event event = {.events = silent ? 0 : EPOLLIN, .data.ptr = share};
		epoll_ctl(arbiter_epoll, EPOLL_CTL_MOD, share->listener, &event);
	}
}

void talk_sweep(void)
{
	for (struct connection **at = &connections; closed && *at;) {
		struct connection *connection = *at;
		if (connection->socket >= 0) {
			at = &connection->next;
			continue;
		}
		*at = connection->next;
		shares_release(connection->share);
		free(connection);
	}
	closed = false;
}
