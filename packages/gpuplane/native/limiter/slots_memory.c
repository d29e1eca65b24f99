/* Memory taken in the process's slot. page.h says how processes agree without locks; the threads of one have slots_lock. */
#include "limiter.h"

#include <pthread.h>

#define PATIENCE_NS 1000000000ull /* how long two that ask at once may get in each other's way */

struct lock slots_lock;
static pthread_mutex_t waiting = PTHREAD_MUTEX_INITIALIZER; /* of threads that ask again and again, one at a time */
static bool asks_again; /* one does, and `asking` belongs to it; under slots_lock */

void slots_forget_memory(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	waiting = fresh;
	asks_again = false;
	slots_lock = (struct lock){0, 0};
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
	int own = (int)slots_number();
	for (unsigned i = 0, end = slots_end(); i < end; i++) {
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
		if ((int)i != own)
			sums.asking += asking;
	}
	return sums;
}

uint64_t slots_sum(int gpu)
{
	struct sums sums = sum_up(gpu);
	return sums.held + sums.asking;
}

static uint64_t *word_of(int gpu, bool context)
{
	struct usage_gpu *part = &slots_own->gpus[gpu];
	return context ? &part->context : &part->held;
}

/* In this order: a reader that does not see the request any more sees the memory as held. */
static void settle(struct usage_gpu *part, uint64_t *word, uint64_t bytes)
{
	slots_change(word, bytes);
	__atomic_store_n(&part->asking, 0, __ATOMIC_RELEASE);
}

/* One try, which is enough unless memory is scarce. With slots_lock held. */
static bool take_at_once(int gpu, uint64_t bytes, uint64_t *word)
{
	struct usage_slot *slot = slots_own;
	struct usage_gpu *part = &slot->gpus[gpu];
	uint64_t generation = LOAD(limits->generation), limit = slots_limit(gpu);
	if (LOAD(slot->generation) != generation)
		STORE(slot->generation, generation);
	if (asks_again || (limit && bytes > limit))
		return false;
	STORE(part->asking, bytes);
	struct sums sums = sum_up(gpu);
	bool fits = !limit || sums.held + sums.asking + bytes <= limit;
	if (fits)
		settle(part, word, bytes);
	else
		STORE(part->asking, 0);
	return fits;
}

static void set_asks_again(bool value)
{
	lock_take(&slots_lock);
	asks_again = value;
	lock_release(&slots_lock);
}

static bool ask_again(int gpu, uint64_t bytes, uint64_t *word)
{
	struct usage_gpu *part = &slots_own->gpus[gpu];
	unsigned own = slots_number();
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
			lock_take(&slots_lock);
			settle(part, word, bytes);
			lock_release(&slots_lock);
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
		if (sums.lowest < (int)own)
			STORE(part->asking, 0);
		uint64_t now = clock_now();
		started = started ? started : now;
		if (now - started > PATIENCE_NS)
			break;
		clock_pause(1000 + 500 * (uint64_t)(own % 32));
	}
	STORE(part->asking, 0);
	return false;
}

/* Looks for processes that are no more, and waits for others that ask. Other threads may free memory meanwhile. */
static bool take_patiently(int gpu, uint64_t bytes, uint64_t *word)
{
	int cancel = cancel_put_off();
	pthread_mutex_lock(&waiting);
	set_asks_again(true);
	bool taken = ask_again(gpu, bytes, word);
	set_asks_again(false);
	pthread_mutex_unlock(&waiting);
	cancel_allow(cancel);
	return taken;
}

bool slots_take(int gpu, uint64_t bytes, bool context)
{
	uint64_t *word = word_of(gpu, context);
	lock_take(&slots_lock);
	bool taken = take_at_once(gpu, bytes, word);
	lock_release(&slots_lock);
	return taken || take_patiently(gpu, bytes, word);
}

bool slots_begin_take(int gpu, uint64_t bytes)
{
	uint64_t *word = word_of(gpu, false);
	lock_take(&slots_lock);
	slots_change(&slots_own->changes_begun, 1);
	bool taken = take_at_once(gpu, bytes, word);
	lock_release(&slots_lock);
	return taken || take_patiently(gpu, bytes, word);
}

void slots_give(int gpu, uint64_t bytes, bool context)
{
	uint64_t *word = word_of(gpu, context);
	lock_take(&slots_lock);
	slots_change(word, -bytes);
	lock_release(&slots_lock);
}

void slots_give_end(int gpu, uint64_t bytes)
{
	uint64_t *word = word_of(gpu, false);
	lock_take(&slots_lock);
	slots_change(word, -bytes);
	slots_change(&slots_own->changes_ended, 1);
	lock_release(&slots_lock);
}

bool slots_found(int gpu, uint64_t bytes)
{
	uint64_t *word = word_of(gpu, false), limit = slots_limit(gpu);
	lock_take(&slots_lock);
	STORE(*word, LOAD(*word) + bytes); /* before the sum, as `asking` is in page.h */
	lock_release(&slots_lock);
	if (!limit || slots_sum(gpu) <= limit)
		return true;
	slots_reap();
	return slots_sum(gpu) <= limit;
}

void slots_begin_change(void)
{
	lock_take(&slots_lock);
	slots_change(&slots_own->changes_begun, 1);
	lock_release(&slots_lock);
}

void slots_end_change(void)
{
	lock_take(&slots_lock);
	slots_change(&slots_own->changes_ended, 1);
	lock_release(&slots_lock);
}

void slots_refused(int gpu)
{
	ADD(slots_own->gpus[gpu].refused, 1);
	ADD(usage->totals[gpu].refused, 1);
}
