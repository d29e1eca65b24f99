/* The process's slot on the usage page; slots_memory.c takes memory in it. page.h says how processes agree without locks. */
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

struct usage_slot *slots_own;

static int number = -1;
static uint64_t own_word, own_namespace, own_start, own_image;
static pthread_mutex_t claiming = PTHREAD_MUTEX_INITIALIZER;

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

/* Whether the process that an owner's word names is no more. An unknown process counts as alive. */
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

unsigned slots_end(void)
{
	uint64_t top = LOAD(usage->high_water);
	return top < PAGE_SLOTS ? (unsigned)top : PAGE_SLOTS;
}

bool slots_claim(void)
{
	int cancel = cancel_put_off();
	pthread_mutex_lock(&claiming);
	if (number < 0)
		learn_self();
	for (unsigned i = 0; number < 0 && i < PAGE_SLOTS; i++) {
		struct usage_slot *slot = &usage->slots[i];
		uint64_t word = LOAD(slot->owner);
		bool before_exec = word == own_word && LOAD(slot->image) && LOAD(slot->image) != own_image;
		if ((word && !before_exec && !gone(word)) || !take_over(slot, word))
			continue;
		/* Before anything is asked for in the slot, so that no process overlooks it. */
		uint64_t top = LOAD(usage->high_water);
		while (top <= i && !EXCHANGE(usage->high_water, &top, (uint64_t)i + 1))
			;
		STORE(slot->start_ticks, own_start);
		STORE(slot->pid_namespace, own_namespace);
		STORE(slot->image, own_image);
		STORE(slot->generation, LOAD(limits->generation));
		slots_own = slot;
		number = (int)i;
	}
	pthread_mutex_unlock(&claiming);
	cancel_allow(cancel);
	return number >= 0;
}

unsigned slots_number(void)
{
	return (unsigned)number;
}

void slots_forget(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	slots_own = NULL;
	number = -1;
	claiming = fresh;
	slots_forget_memory();
}

void slots_reap(void)
{
	int cancel = cancel_put_off();
	pthread_mutex_lock(&claiming);
	if (!own_word)
		learn_self();
	for (unsigned i = 0; i < slots_end(); i++) {
		struct usage_slot *slot = &usage->slots[i];
		uint64_t word = LOAD(slot->owner);
		if (word && gone(word) && take_over(slot, word))
			STORE(slot->owner, 0);
	}
	pthread_mutex_unlock(&claiming);
	cancel_allow(cancel);
}

bool slots_gone(unsigned slot)
{
	uint64_t word = slot < PAGE_SLOTS ? LOAD(usage->slots[slot].owner) : 0;
	return !word || gone(word);
}
