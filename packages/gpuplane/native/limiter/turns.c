/* The turns of this process: what it says to the arbiter, and what it does without one. turns.h explains the whole. */
#include "turns.h"
#include "words.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define WAIT_MS 20                  /* of one turn_wait */
#define FIRST_WELCOME_MS 200        /* a process that begins waits so long for the arbiter */
#define ANSWER_NS 500000000ull      /* and so long for its answer at the end of a turn */
#define TRY_AGAIN_NS 100000000ull
#define REFUSED_AGAIN_NS 10000000000ull
#define OWN_SLEEP_NS 2000000ull
#define DEFAULT_QUANTUM_US 20000u
#define MOST_SAVED_MS 60000u

static void unlink_from(struct turn *turn, uint64_t again)
{
	struct stat info;
	if (turn->link != LINK_NONE && fstat(turn->socket, &info) == 0 && info.st_dev == turn->device && info.st_ino == turn->inode)
		close(turn->socket);
	turn->link = LINK_NONE;
	turn->socket = -1;
	turn->waiting = false;
	turn->next_try = clock_now() + again;
}

static bool usable(const struct turn *turn)
{
	struct stat info;
	return turn->link != LINK_NONE && fstat(turn->socket, &info) == 0 && info.st_dev == turn->device &&
	       info.st_ino == turn->inode;
}

static bool tell(struct turn *turn, enum word_kind kind, uint64_t used, bool soon)
{
	struct word word = {.kind = kind, .version = PAGE_VERSION, .turn = turn->number, .time_ns = used,
			    .gpu = (uint32_t)turn->gpu, .soon = soon};
	if (usable(turn) && send(turn->socket, &word, sizeof word, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof word)
		return true;
	unlink_from(turn, TRY_AGAIN_NS);
	return false;
}

/* By the descriptor of the folder: its path may be longer than an address can be. */
static bool reach(int socket)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int folder = page_folder();
	if (folder < 0)
		return false;
	snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/" WORD_SOCKET, folder);
	bool reached = connect(socket, (struct sockaddr *)&address, sizeof address) == 0;
	close(folder);
	return reached;
}

static void greet(struct turn *turn)
{
	struct stat info;
	if (clock_now() < turn->next_try)
		return;
	turn->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	turn->next_try = clock_now() + TRY_AGAIN_NS;
	if (turn->socket < 0)
		return;
	if (fstat(turn->socket, &info) < 0 || !reach(turn->socket)) {
		close(turn->socket);
		turn->socket = -1;
		return;
	}
	turn->device = info.st_dev;
	turn->inode = info.st_ino;
	turn->link = LINK_GREETED;
	turn->heard = clock_now();
	tell(turn, WORD_HELLO, 0, false);
}

/* Reads what the arbiter has said, waiting for up to so long. The last word that matters is *word; false: none. */
static bool hear(struct turn *turn, int milliseconds, struct word *word)
{
	bool heard = false;
	if (!usable(turn)) {
		unlink_from(turn, 0);
		return false;
	}
	struct pollfd ready = {.fd = turn->socket, .events = POLLIN};
	if (poll(&ready, 1, milliseconds) <= 0)
		return false;
	for (;;) {
		struct word fresh;
		ssize_t size = recv(turn->socket, &fresh, sizeof fresh, MSG_DONTWAIT);
		if (size < 0 && (errno == EAGAIN || errno == EINTR))
			return heard;
		if (size != (ssize_t)sizeof fresh) {
			unlink_from(turn, 0);
			return false;
		}
		turn->heard = clock_now();
		if (fresh.kind == WORD_HERE)
			continue;
		if (fresh.kind == WORD_LOST && heard && word->kind == WORD_GRANT && word->turn == fresh.turn) {
			heard = false; /* it began and ended while we did not look */
			turn->waiting = false;
			continue;
		}
		*word = fresh;
		heard = fresh.kind != WORD_LOST || turn->number == fresh.turn;
	}
}

/* Whether the arbiter is there; keeps trying to reach it. */
static bool linked(struct turn *turn)
{
	struct word word;
	if (turn->link == LINK_NONE)
		greet(turn);
	if (turn->link == LINK_GREETED) {
		uint64_t until = clock_now() + (turn->asked ? 0 : FIRST_WELCOME_MS * 1000000ull);
		do {
			if (!hear(turn, turn->asked ? 0 : WAIT_MS, &word))
				continue;
			if (word.kind == WORD_WELCOME) {
				turn->link = LINK_READY;
			} else {
				say(SAY_TURNS, "the agent of this node has version %u of the limits, this process version %u: "
				    "it keeps to its limits alone; restart the container", word.version, PAGE_VERSION);
				unlink_from(turn, REFUSED_AGAIN_NS);
			}
		} while (turn->link == LINK_GREETED && clock_now() < until);
		if (turn->link == LINK_GREETED && clock_now() > turn->heard + WORD_SILENCE_NS)
			unlink_from(turn, WORD_SILENCE_NS);
	}
	turn->asked = true;
	return turn->link == LINK_READY;
}

static void hold(struct turn *turn, uint64_t number, bool own)
{
	turn->held = true;
	turn->own = own;
	turn->number = number;
	turn->began = turn->charged = clock_now();
	turn->waiting = false;
}

/* ---- without the arbiter ------------------------------------------------------------------------------------------ */

struct own_limit {
	uint64_t core, quantum, saved;
	bool held;
};

static struct own_limit own_limit(const struct turn *turn)
{
	const struct limits_gpu *limit = &limits->gpus[turn->gpu];
	uint64_t core = LOAD(limit->core), quantum = LOAD(limit->quantum_us);
	core = core > 100 ? 100 : core;
	uint64_t saved = LOAD(limit->saved_ms);
	return (struct own_limit){core ? core : 100, (quantum ? quantum : DEFAULT_QUANTUM_US) * 1000,
				  (saved < MOST_SAVED_MS ? saved : MOST_SAVED_MS) * 1000000,
				  core && core < 100 && LOAD(limit->mode) != CORE_WEIGHTED};
}

/* How long until the container has half a quantum of tokens; it saves a quantum at most, and what its limits allow. */
static uint64_t missing(const struct turn *turn, struct own_limit limit)
{
	uint64_t *paid = &usage->totals[turn->gpu].paid_until, now = clock_now(), old = LOAD(*paid);
	uint64_t most = (limit.quantum + limit.saved) * 100 / limit.core, half = limit.quantum * 50 / limit.core;
	uint64_t saved = LOAD(*paid) ? most : 2 * half; /* a new container has saved nothing yet */
	uint64_t first = now > saved ? now - saved : 0, bound = now + 3600000000000ull;
	/* A word that no charge can have made is not ours. */
	while ((old < first || old > bound) && !EXCHANGE(*paid, &old, first))
		;
	old = LOAD(*paid);
	return old + half > now ? old + half - now : 0;
}

static bool wait_own(struct turn *turn, uint64_t *ends)
{
	struct own_limit limit = own_limit(turn);
	uint64_t wait = limit.held ? missing(turn, limit) : 0;
	if (wait) {
		clock_pause(wait < OWN_SLEEP_NS ? wait : OWN_SLEEP_NS);
		return false;
	}
	hold(turn, 0, true);
	*ends = turn->began + (limit.held ? limit.quantum / 2 : limit.quantum);
	return true;
}

/* ---- the turn --------------------------------------------------------------------------------------------------- */

void turn_begin(struct turn *turn, int gpu)
{
	*turn = (struct turn){.gpu = gpu, .socket = -1};
}

void turn_want(struct turn *turn)
{
	if (turn->link != LINK_READY || turn->waiting)
		return;
	turn->number = 0;
	turn->heard = clock_now();
	turn->waiting = tell(turn, WORD_WANT, 0, false);
}

bool turn_wait(struct turn *turn, uint64_t *ends)
{
	struct word word;
	STORE(slots_own->generation, LOAD(limits->generation));
	if (!linked(turn))
		return wait_own(turn, ends);
	turn_want(turn);
	if (turn->waiting && hear(turn, WAIT_MS, &word) && word.kind == WORD_GRANT) {
		hold(turn, word.turn, false);
		*ends = turn->began + word.time_ns;
		return true;
	}
	if (turn->link == LINK_READY && clock_now() > turn->heard + WORD_SILENCE_NS)
		unlink_from(turn, WORD_SILENCE_NS);
	return false;
}

static void charge(struct turn *turn, uint64_t until)
{
	if (until <= turn->charged)
		return;
	uint64_t time = until - turn->charged;
	turn->charged = until;
	if (turn->own)
		ADD(usage->totals[turn->gpu].paid_until, time * 100 / own_limit(turn).core);
	ADD(slots_own->gpus[turn->gpu].busy_ns, time);
	ADD(usage->totals[turn->gpu].busy_ns, time);
}

bool turn_more(struct turn *turn, uint64_t *ends)
{
	struct word word;
	uint64_t now = clock_now();
	STORE(slots_own->generation, LOAD(limits->generation));
	charge(turn, now);
	if (!LOAD(limits->gpus[turn->gpu].core))
		return false;
	if (turn->own) {
		struct own_limit limit = own_limit(turn);
		/* Back to the arbiter, when there is one again. */
		if ((limit.held && missing(turn, limit)) || linked(turn))
			return false;
		*ends = now + limit.quantum / 2;
		return true;
	}
	if (!tell(turn, WORD_MORE, now - turn->began, false))
		return false;
	for (uint64_t until = now + ANSWER_NS; clock_now() < until && turn->link == LINK_READY;) {
		if (!hear(turn, WAIT_MS, &word) || word.turn != turn->number)
			continue;
		*ends = clock_now() + word.time_ns;
		return word.kind == WORD_GRANT;
	}
	unlink_from(turn, TRY_AGAIN_NS);
	return false;
}

void turn_busy(struct turn *turn, uint64_t now)
{
	charge(turn, now);
	if (!turn->own)
		tell(turn, WORD_BUSY, now - turn->began, false);
}

void turn_done(struct turn *turn, uint64_t until, bool soon)
{
	charge(turn, until);
	if (!turn->own && turn->link == LINK_READY)
		tell(turn, WORD_DONE, until > turn->began ? until - turn->began : 0, soon);
	turn->held = false;
}

void turn_owe(struct turn *turn, uint64_t nanoseconds)
{
	if (!nanoseconds)
		return;
	if (!turn->held || turn->own || !tell(turn, WORD_OWES, nanoseconds, false))
		ADD(usage->totals[turn->gpu].paid_until, nanoseconds * 100 / own_limit(turn).core);
	ADD(slots_own->gpus[turn->gpu].busy_ns, nanoseconds);
	ADD(usage->totals[turn->gpu].busy_ns, nanoseconds);
}

void turn_forget(struct turn *turn)
{
	unlink_from(turn, 0);
	turn->held = false;
}
