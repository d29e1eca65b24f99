/* The contexts that were launched in, and what of them is in flight: bounded, so that a turn does not end with seconds of
   work queued. gate.h explains the whole. */
#include "gate.h"

#include <stdlib.h>
#include <sys/prctl.h>

#define PATIENCE_NS 10000000000ull
#define STEP_LEAST_NS 10000ull
#define STEP_MOST_NS 1000000ull
#define EVENT_FLAGS 3u         /* sleep while waiting, no timing */
#define TIMED_EVENT 1u
#define SPARES 64
#define BEHIND_MOST 16         /* batches that may be queued behind what a stream waits for */

struct gate_context *flight_know(struct gate *gate, CUcontext context)
{
	struct gate_context *empty = NULL;
	for (int i = 0; i < gate->context_count; i++) {
		if (gate->contexts[i].context == context)
			return &gate->contexts[i];
		if (!gate->contexts[i].context && !empty)
			empty = &gate->contexts[i];
	}
	if (!empty) {
		struct gate_context *more = realloc(gate->contexts, (size_t)(gate->context_count + 1) * sizeof *more);
		if (!more)
			return NULL;
		gate->contexts = more;
		empty = &more[gate->context_count++];
	}
	*empty = (struct gate_context){.context = context};
	for (int i = 0; i < 2; i++)
		if (REAL(cuEventCreate)(&empty->events[i], EVENT_FLAGS) != CUDA_SUCCESS)
			empty->events[i] = NULL;
	return empty;
}

struct stream_of_gpu {
	CUcontext context;
	CUstream stream;
	int gpu;
};

/* Until the event is reached, or for so long that it may never be: a kernel may wait for what the program does next.
   `expected` is when it should be, 0 where nothing is known. False: the stream is held by something outside, and some more
   may be queued behind it. */
static bool await(struct launches *own, CUevent event, uint64_t expected, const struct stream_of_gpu *where)
{
	bool held = false;
	uint64_t started = clock_now(), now = started;
	int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
	while (now - started < PATIENCE_NS && REAL(cuEventQuery)(event) == CUDA_NOT_READY) {
		held = own->behind < BEHIND_MOST && waits_any() && waits_held(where->context, where->stream, where->gpu);
		if (held)
			break;
		uint64_t step = (now - started) / 32;
		if (expected > now + STEP_LEAST_NS)
			step = expected - now - STEP_LEAST_NS / 2;
		else if (expected)
			step = now > expected ? (now - expected) / 8 : 0;
		if (step > STEP_MOST_NS && expected <= now)
			step = STEP_MOST_NS;
		clock_pause(step > STEP_LEAST_NS ? step : STEP_LEAST_NS);
		now = clock_now();
	}
	prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
	own->behind = held ? own->behind + 1 : 0;
	return !held;
}

static __thread struct launches *own_launches; /* PAGE_GPUS of them */
static pthread_key_t ended;
static uint64_t epoch = 1; /* grows with each context that ends, and its events with it */
__thread struct launches *gate_measuring;

/* Events of threads that have ended, for other threads. */
static struct spare {
	CUcontext context;
	uint64_t epoch;
	CUevent events[2];
} spares[SPARES];
static pthread_mutex_t spares_guard = PTHREAD_MUTEX_INITIALIZER;

/* NB: The driver may be gone, so nothing is asked of it. */
static void thread_ended(void *launches)
{
	struct launches *own = launches;
	gate_own = &gate_nothing;
	gate_measuring = own_launches = NULL;
	pthread_mutex_lock(&spares_guard);
	for (int gpu = 0; gpu < PAGE_GPUS; gpu++)
		for (int i = 0; own[gpu].context && i < SPARES; i++)
			if (!spares[i].context || spares[i].epoch != LOAD(epoch)) {
				spares[i] = (struct spare){own[gpu].context, own[gpu].epoch, {own[gpu].events[0], own[gpu].events[1]}};
				break;
			}
	pthread_mutex_unlock(&spares_guard);
	free(launches);
}

static bool take_spare(struct launches *own, CUcontext context)
{
	bool found = false;
	pthread_mutex_lock(&spares_guard);
	for (int i = 0; i < SPARES && !found; i++) {
		found = spares[i].context == context && spares[i].epoch == LOAD(epoch);
		if (!found)
			continue;
		own->events[0] = spares[i].events[0];
		own->events[1] = spares[i].events[1];
		spares[i].context = NULL;
	}
	pthread_mutex_unlock(&spares_guard);
	return found;
}

static void make_key(void)
{
	pthread_key_create(&ended, thread_ended);
}

struct launches *flight_own(int gpu)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	if (!own_launches && (own_launches = calloc(PAGE_GPUS, sizeof *own_launches))) {
		pthread_once(&once, make_key);
		pthread_setspecific(ended, own_launches);
	}
	return own_launches ? &own_launches[gpu] : NULL;
}

static bool have_events(struct launches *own, CUcontext context)
{
	uint64_t now = LOAD(epoch);
	if (own->context == context && own->epoch == now)
		return true;
	if (own->context && own->epoch == now)
		for (int i = 0; i < 2; i++)
			REAL(cuEventDestroy_v2)(own->events[i]);
	own->context = NULL;
	if (!take_spare(own, context)) {
		if (REAL(cuEventCreate)(&own->events[0], TIMED_EVENT) != CUDA_SUCCESS)
			return false;
		if (REAL(cuEventCreate)(&own->events[1], TIMED_EVENT) != CUDA_SUCCESS) {
			REAL(cuEventDestroy_v2)(own->events[0]);
			return false;
		}
	}
	own->context = context;
	own->epoch = now;
	return true;
}

void flight_measure(struct launches *own, CUcontext context, CUstream stream, uint64_t key)
{
	if (!HAS(cuEventElapsedTime) || !have_events(own, context) || REAL(cuEventRecord)(own->events[0], stream) != CUDA_SUCCESS)
		return;
	own->key = key;
	own->stream = stream;
	own->measuring = true;
	gate_measuring = own;
}

void flight_measured(CUstream stream)
{
	struct launches *own = gate_measuring;
	int mode = captures_relax();
	gate_measuring = NULL;
	own->measuring = false;
	own->measured = REAL(cuEventRecord)(own->events[1], stream) == CUDA_SUCCESS && !captures_hold(stream);
	own->began = clock_now();
	captures_restore(mode);
}

/* With the lock held, which it gives up. Waits for the launch that was measured, and learns what it cost. */
static void learn(struct gate *gate, struct launches *own)
{
	uint32_t known = costs_known(own->key);
	float milliseconds = 0;
	own->measured = false;
	if (own->epoch != LOAD(epoch))
		return;
	pthread_mutex_unlock(&gate->lock);
	struct stream_of_gpu where = {own->context, own->stream, gate->turn.gpu};
	if (await(own, own->events[1], known < UINT32_MAX ? own->began + known : 0, &where)) {
		bool done = REAL(cuEventElapsedTime)(&milliseconds, own->events[0], own->events[1]) == CUDA_SUCCESS;
		costs_learn(own->key, done ? (uint64_t)((double)milliseconds * 1e6) : PATIENCE_NS);
	}
	pthread_mutex_lock(&gate->lock);
}

void flight_bound(struct gate *gate, struct launches *own, CUcontext context, CUstream stream)
{
	struct gate_context *known = flight_know(gate, context);
	int launched = own->given - own->left;
	if (own->measured)
		learn(gate, own);
	else if (launched && gate_open_now(gate) && known && known->events[0] && known->events[1]) {
		/* Marks the end of a batch in the stream, and waits until the one before it is done. */
		int current = known->next;
		CUevent event = known->events[current], before = known->recorded[!current] ? known->events[!current] : NULL;
		known->recorded[current] = false;
		if (REAL(cuEventRecord)(event, stream) != CUDA_SUCCESS)
			return;
		/* Another thread may have drawn the stream into a capture meanwhile, and the event with it. */
		if (captures_any() && captures_hold(stream))
			return;
		known->recorded[current] = true;
		known->streams[current] = stream;
		known->next = !current;
		struct stream_of_gpu where = {context, known->streams[!current], gate->turn.gpu};
		if (!before || REAL(cuEventQuery)(before) != CUDA_NOT_READY)
			return;
		pthread_mutex_unlock(&gate->lock);
		bool reached = await(own, before, 0, &where);
		uint64_t took = clock_now() - own->batch_at, spent = (uint64_t)(COSTS_BUDGET_NS - own->budget_ns);
		if (reached && took > 4 * spent + COSTS_LONG_NS)
			costs_distrust(own);
		pthread_mutex_lock(&gate->lock);
	}
}

void gate_wait_whole(void)
{
	for (int i = 0; i < PAGE_GPUS; i++) {
		struct gate *gate = &gates[i];
		pthread_mutex_lock(&gate->lock);
		while (gate->whole)
			pthread_cond_wait(&gate->work, &gate->lock);
		pthread_mutex_unlock(&gate->lock);
	}
}

void gate_mark_all(void)
{
	for (int i = 0; i < PAGE_GPUS; i++) {
		struct gate *gate = &gates[i];
		pthread_mutex_lock(&gate->lock);
		for (int k = 0; k < gate->context_count; k++) {
			CUcontext context = gate->contexts[k].context;
			pthread_mutex_unlock(&gate->lock);
			if (context)
				streams_mark_default(context, i);
			pthread_mutex_lock(&gate->lock);
		}
		pthread_mutex_unlock(&gate->lock);
	}
	streams_mark_all();
}

void gate_leave(CUcontext context)
{
	for (int i = 0; cuda_active && i < PAGE_GPUS; i++) {
		struct gate *gate = &gates[i];
		pthread_mutex_lock(&gate->lock);
		while (gate->syncing)
			pthread_cond_wait(&gate->work, &gate->lock);
		for (int k = 0; k < gate->context_count; k++) {
			struct gate_context *known = &gate->contexts[k];
			if (known->context != context)
				continue;
			for (int n = 0; n < 2; n++)
				if (known->events[n])
					REAL(cuEventDestroy_v2)(known->events[n]);
			*known = (struct gate_context){.context = NULL};
			ADD(epoch, 1);
			/* A thread that still launches in it enters it again. */
			STORE(gate->until, 0);
		}
		pthread_mutex_unlock(&gate->lock);
	}
}
