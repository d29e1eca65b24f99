/* The process's slot on the usage page, and the memory taken in it. page.h says how processes agree without locks. */
#include "limiter.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATIENCE_NS 1000000000ull /* how long two that ask at once may get in each other's way */

static int number = -1;
static uint64_t own_word, own_namespace, own_start, own_image;
static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER, claiming = PTHREAD_MUTEX_INITIALIZER;

struct state {
	char letter;
	long threads;
	unsigned long long start;
};

/* Of /proc/PID/stat: the fields behind the name, which may itself hold blanks and brackets. */
static bool read_state(const char *path, struct state *state)
{
	char text[1024];
	int file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return false;
	ssize_t length = read(file, text, sizeof text - 1);
	close(file);
	if (length <= 0) {
		errno = ESRCH;
		return false;
	}
	text[length] = 0;
	const char *at = strrchr(text, ')');
	return at && sscanf(at + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu",
			    &state->letter, &state->threads, &state->start) == 3;
}

static uint64_t word_of(uint64_t pid, uint64_t namespace, uint64_t start)
{
	return (pid & ((1ull << OWNER_PID_BITS) - 1)) | (namespace & ((1ull << OWNER_NAMESPACE_BITS) - 1)) << OWNER_PID_BITS |
	       (start & ((1ull << OWNER_START_BITS) - 1)) << (OWNER_PID_BITS + OWNER_NAMESPACE_BITS);
}

static void learn_self(void)
{
	struct stat info;
	struct state state = {0};
	own_namespace = stat("/proc/self/ns/pid", &info) == 0 ? (uint64_t)info.st_ino : 0;
	own_start = read_state("/proc/self/stat", &state) ? state.start : 0;
	/* Random for each execve; the same in all copies of this library in a process. */
	const void *random = (const void *)getauxval(AT_RANDOM);
	if (random)
		memcpy(&own_image, random, sizeof own_image);
	own_word = word_of((uint64_t)getpid(), own_namespace, own_start);
}

/* Whether the process that an owner's word names is no more. What cannot be known is taken to live. */
static bool gone(uint64_t word)
{
	char path[64];
	struct state state;
	uint64_t pid = word & ((1ull << OWNER_PID_BITS) - 1);
	if (word == own_word || word_of(0, own_namespace, 0) != (word & word_of(0, ~0ull, 0)))
		return false;
	snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
	if (read_state(path, &state)) {
		bool same = word_of(pid, own_namespace, state.start) == word;
		/* The first thread may have ended before the others. */
		return !same || ((state.letter == 'Z' || state.letter == 'X') && state.threads <= 1);
	}
	/* /proc may hide what is not ours; the kernel does not. */
	return kill((pid_t)pid, 0) < 0 && errno == ESRCH;
}

static void clear(struct usage_slot *slot)
{
	STORE(slot->start_ticks, 0);
	STORE(slot->pid_namespace, 0);
	STORE(slot->generation, 0);
	STORE(slot->image, 0);
	STORE(slot->changes_begun, 0);
	STORE(slot->changes_ended, 0);
	STORE(slot->host_pid, 0);
	for (int gpu = 0; gpu < PAGE_GPUS; gpu++) {
		struct usage_gpu *part = &slot->gpus[gpu];
		STORE(part->asking, 0);
		STORE(part->held, 0);
		STORE(part->context, 0);
		STORE(part->other, 0);
		STORE(part->busy_ns, 0);
		STORE(part->throttled_ns, 0);
		STORE(part->refused, 0);
		STORE(part->launches, 0);
	}
}

static bool take_over(struct usage_slot *slot, uint64_t word)
{
	if (!EXCHANGE(slot->owner, &word, own_word))
		return false;
	clear(slot);
	return true;
}

static unsigned high_water(void)
{
	uint64_t top = LOAD(usage->high_water);
	return top < PAGE_SLOTS ? (unsigned)top : PAGE_SLOTS;
}

bool slots_claim(void)
{
	pthread_mutex_lock(&claiming);
	if (number < 0)
		learn_self();
	for (unsigned i = 0; number < 0 && i < PAGE_SLOTS; i++) {
		struct usage_slot *slot = &usage->slots[i];
		uint64_t word = LOAD(slot->owner);
		bool before_exec = word == own_word && LOAD(slot->image) && LOAD(slot->image) != own_image;
		if ((word && !before_exec && !gone(word)) || !take_over(slot, word))
			continue;
		/* Before anything is asked for in the slot, so that nobody overlooks it. */
		uint64_t top = LOAD(usage->high_water);
		while (top <= i && !EXCHANGE(usage->high_water, &top, (uint64_t)i + 1))
			;
		STORE(slot->start_ticks, own_start);
		STORE(slot->pid_namespace, own_namespace);
		STORE(slot->image, own_image);
		STORE(slot->generation, LOAD(limits->generation));
		number = (int)i;
	}
	pthread_mutex_unlock(&claiming);
	return number >= 0;
}

struct usage_slot *slots_own(void)
{
	return number < 0 ? NULL : &usage->slots[number];
}

unsigned slots_number(void)
{
	return (unsigned)number;
}

void slots_forget(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	number = -1;
	taking = claiming = fresh;
}

void slots_reap(void)
{
	pthread_mutex_lock(&claiming);
	if (!own_word)
		learn_self();
	for (unsigned i = 0; i < high_water(); i++) {
		struct usage_slot *slot = &usage->slots[i];
		uint64_t word = LOAD(slot->owner);
		if (word && gone(word) && take_over(slot, word))
			STORE(slot->owner, 0);
	}
	pthread_mutex_unlock(&claiming);
}

bool slots_gone(unsigned slot)
{
	uint64_t word = slot < PAGE_SLOTS ? LOAD(usage->slots[slot].owner) : 0;
	return !word || gone(word);
}

uint64_t slots_limit(int gpu)
{
	return LOAD(limits->gpus[gpu].memory);
}

struct sums {
	uint64_t held, asking; /* asking: by others */
	int lowest;            /* slot of the first that asks, ours included */
};

static struct sums sum_up(int gpu)
{
	struct sums sums = {0, 0, -1};
	for (unsigned i = 0, end = high_water(); i < end; i++) {
		struct usage_slot *slot = &usage->slots[i];
		struct usage_gpu *part = &slot->gpus[gpu];
		if (!LOAD(slot->owner))
			continue;
		/* In this order: what moves from one to the other meanwhile is seen twice rather than not at all. */
		uint64_t asking = LOAD(part->asking), held = LOAD(part->held);
		uint64_t other = LOAD(part->other), context = LOAD(part->context);
		sums.held += held + (other ? other : context);
		if (asking && sums.lowest < 0)
			sums.lowest = (int)i;
		if ((int)i != number)
			sums.asking += asking;
	}
	return sums;
}

uint64_t slots_sum(int gpu)
{
	struct sums sums = sum_up(gpu);
	return sums.held + sums.asking;
}

static bool ask(int gpu, uint64_t bytes, uint64_t *word)
{
	struct usage_gpu *part = &usage->slots[number].gpus[gpu];
	uint64_t started = 0;
	bool reaped = false;
	for (unsigned attempt = 1;; attempt++) {
		uint64_t limit = slots_limit(gpu);
		if (limit && bytes > limit)
			break;
		if (!LOAD(part->asking))
			STORE(part->asking, bytes);
		struct sums sums = sum_up(gpu);
		if (!limit || sums.held + sums.asking + bytes <= limit) {
			ADD(*word, bytes);
			/* Behind the addition for whoever reads it, which is all that is needed, and costs less. */
			__atomic_store_n(&part->asking, 0, __ATOMIC_RELEASE);
			return true;
		}
		if (sums.held + bytes > limit && reaped)
			break;
		if (!reaped || attempt % 64 == 0)
			slots_reap();
		reaped = true;
		if (sums.held + bytes > limit)
			continue;
		/* It depends on others that ask just now: the lowest slot goes first. */
		if (sums.lowest < number)
			STORE(part->asking, 0);
		uint64_t now = clock_now();
		started = started ? started : now;
		if (now - started > PATIENCE_NS)
			break;
		clock_pause(1000 + 500 * (uint64_t)(number % 32));
	}
	STORE(part->asking, 0);
	return false;
}

bool slots_take(int gpu, uint64_t bytes, bool context)
{
	struct usage_slot *slot = &usage->slots[number];
	struct usage_gpu *part = &slot->gpus[gpu];
	uint64_t *word = context ? &part->context : &part->held;
	uint64_t generation = LOAD(limits->generation);
	pthread_mutex_lock(&taking);
	if (LOAD(slot->generation) != generation)
		STORE(slot->generation, generation);
	bool taken = ask(gpu, bytes, word);
	pthread_mutex_unlock(&taking);
	return taken;
}

void slots_give(int gpu, uint64_t bytes, bool context)
{
	struct usage_gpu *part = &usage->slots[number].gpus[gpu];
	__atomic_sub_fetch(context ? &part->context : &part->held, bytes, __ATOMIC_SEQ_CST);
}

bool slots_found(int gpu, uint64_t bytes)
{
	ADD(usage->slots[number].gpus[gpu].held, bytes);
	uint64_t limit = slots_limit(gpu);
	if (!limit || slots_sum(gpu) <= limit)
		return true;
	slots_reap();
	return slots_sum(gpu) <= limit;
}

void slots_begin_change(void)
{
	ADD(usage->slots[number].changes_begun, 1);
}

void slots_end_change(void)
{
	ADD(usage->slots[number].changes_ended, 1);
}

void slots_refused(int gpu)
{
	ADD(usage->slots[number].gpus[gpu].refused, 1);
	ADD(usage->totals[gpu].refused, 1);
}
