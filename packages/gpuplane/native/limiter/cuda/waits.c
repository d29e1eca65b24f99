/*
 * Work that waits in a stream for something outside of the GPU: a host function, a value in memory, an event of another
 * process or of another GPU. Work that is queued behind such a *hold* does not run, however long it takes, so a turn does not
 * wait for it. Invariants:
 *
 * - A hold lies between two events. While the first is reached and the second is not, nothing runs in the stream. Of several
 *   holds in a stream the oldest counts.
 * - A graph with host functions lies between two such events too. Nothing runs in its stream only while a function runs alone
 *   (hosts.h).
 * - While a hold is open, launches are marked as in a capture (streams.h), so that the end of a turn waits for marks, of each
 *   stream as far as it runs. A wait for a whole context would wait for the hold.
 * - Work that runs after the turn has ended waits for a turn in the host function before it (calls.c, hosts.c). Behind other waits it is
 *   seen by the drainer (keeper.c), which takes a turn for it and pays for the time before.
 * - A wait for an event is a hold only where the event may depend on others: it is of another process, several GPUs are in
 *   use, or another hold is open. Events that only this GPU's own work reaches are waited for as before.
 *
 * Waits that the driver adds by itself are unknown here: streams that are not created as non-blocking wait for the
 * legacy stream, and it for them.
 */
#include "book.h"
#include "gate.h"
#include "hosts.h"

#include <stdlib.h>

#define CALM_NS 100000ull  /* two looks so far apart find nothing running: the first may come between two streams */
#define STEP_MOST_NS 500000ull
#define STEP_LEAST_NS 20000ull
#define SWEEP_NS 100000ull

int waits_open;

static unsigned over; /* holds that have ended, and still count as captures */

static bool running(CUevent event)
{
	return REAL(cuEventQuery)(event) == CUDA_NOT_READY;
}

/* The next three with the guard of the book held. */

static void take_first(struct stream *stream, bool destroy)
{
	struct hold *hold = stream->holds;
	stream->holds = hold->next;
	if (destroy) {
		REAL(cuEventDestroy_v2)(hold->before);
		REAL(cuEventDestroy_v2)(hold->after);
	}
	if (hold->hosts)
		hosts_finished(hold->hosts);
	free(hold->called);
	free(hold);
	ADD(waits_open, -1);
	ADD(over, 1);
}

static enum waits_state look(struct stream *stream)
{
	while (stream->holds) {
		const struct hold *hold = stream->holds;
		if (running(hold->after))
			return running(hold->before) || (hold->hosts && !hosts_inside(hold->hosts)) ? WAITS_BUSY : WAITS_HELD;
		take_first(stream, true);
	}
	if (stream->pending && running(stream->mark))
		return WAITS_BUSY;
	stream->pending = false;
	return WAITS_DONE;
}

void waits_drop(struct stream *stream)
{
	while (stream->holds)
		take_first(stream, false);
}

/* Without the guard: captures come before the book. */
static void count_over(void)
{
	unsigned count = __atomic_exchange_n(&over, 0, __ATOMIC_SEQ_CST);
	if (count)
		captures_close(count);
}

enum waits_state waits_look(CUcontext context)
{
	enum waits_state worst = WAITS_DONE;
	pthread_mutex_lock(&book_guard);
	for (int i = 0; i < BOOK_BUCKETS; i++)
		for (struct stream *stream = book_buckets[i]; stream; stream = stream->next) {
			enum waits_state state = !context || stream->context == context ? look(stream) : WAITS_DONE;
			worst = state > worst ? state : worst;
		}
	pthread_mutex_unlock(&book_guard);
	count_over();
	return worst;
}

bool waits_settle(CUcontext context, uint64_t *busy)
{
	enum waits_state state;
	uint64_t started = clock_now();
	for (int calm = 0; calm < 2;) {
		state = waits_look(context);
		calm = state == WAITS_BUSY ? 0 : calm + 1;
		if (state == WAITS_BUSY)
			*busy = clock_now();
		uint64_t step = (clock_now() - started) / 32;
		step = step < STEP_LEAST_NS ? STEP_LEAST_NS : step > STEP_MOST_NS ? STEP_MOST_NS : step;
		if (calm < 2)
			clock_pause(calm ? CALM_NS : step);
	}
	return state == WAITS_HELD;
}

bool waits_held(CUcontext context, CUstream handle, uint64_t owner)
{
	bool held = false;
	pthread_mutex_lock(&book_guard);
	for (struct stream *stream = *book_bucket(handle); stream && !held; stream = stream->next)
		held = stream->handle == handle && stream->context == context && stream->thread == owner && look(stream) == WAITS_HELD;
	pthread_mutex_unlock(&book_guard);
	count_over();
	return held;
}

void waits_sweep(void)
{
	static uint64_t last;
	uint64_t now = clock_now(), before = __atomic_load_n(&last, __ATOMIC_RELAXED);
	if (waits_any() && now - before > SWEEP_NS && EXCHANGE(last, &before, now))
		waits_look(NULL);
	count_over();
}

void waits_forget(void)
{
	waits_open = 0;
	over = 0;
}
