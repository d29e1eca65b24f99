/* Launches that are measured by two events, and waited for before their thread's next launch. costs.h says which. */
#include "gate.h"

#include <stdlib.h>

#define TIMED_EVENT 1u
#define SPARES 64
#define BEHIND_MOST 16 /* launches that may be queued behind what a stream waits for */

static __thread struct launches *own_launches; /* PAGE_GPUS of them */
static pthread_key_t ended;
static uint64_t epoch = 1; /* grows with each context that ends, and its events with it */
__thread struct launches *gate_behind;

/* Events of threads that have ended, for other threads; with `key` something is to be learned from them. */
static struct spare {
	CUcontext context;
	uint64_t epoch, key;
	CUevent events[2];
} spares[SPARES];
static pthread_mutex_t spares_guard = PTHREAD_MUTEX_INITIALIZER;

/* NB: The driver may be gone, so nothing is asked of it. */
static void thread_ended(void *launches)
{
	struct launches *own = launches;
	gate_own = &gate_nothing;
	gate_behind = own_launches = NULL;
	pthread_mutex_lock(&spares_guard);
	for (int gpu = 0; gpu < PAGE_GPUS; gpu++)
		for (int i = 0; own[gpu].events_of && i < SPARES; i++)
			if (!spares[i].context || spares[i].epoch != LOAD(epoch)) {
				spares[i] = (struct spare){own[gpu].events_of, own[gpu].epoch, own[gpu].measured ? own[gpu].key : 0,
							   {own[gpu].events[0], own[gpu].events[1]}};
				break;
			}
	pthread_mutex_unlock(&spares_guard);
	free(launches);
}

static void learn(uint64_t key, const CUevent *events)
{
	float milliseconds = 0;
	bool done = REAL(cuEventElapsedTime)(&milliseconds, events[0], events[1]) == CUDA_SUCCESS;
	costs_learn(key, done ? (uint64_t)((double)milliseconds * 1e6) : FLIGHT_PATIENCE_NS);
}

static bool take_spare(struct launches *own, CUcontext context)
{
	bool found = false;
	pthread_mutex_lock(&spares_guard);
	for (int i = 0; i < SPARES && !found; i++) {
		found = spares[i].context == context && spares[i].epoch == LOAD(epoch) &&
			(!spares[i].key || REAL(cuEventQuery)(spares[i].events[1]) != CUDA_NOT_READY);
		if (!found)
			continue;
		if (spares[i].key)
			learn(spares[i].key, spares[i].events);
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

struct launches *measure_own(int gpu)
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
	if (own->events_of == context && own->epoch == now)
		return true;
	if (own->events_of && own->epoch == now)
		for (int i = 0; i < 2; i++)
			REAL(cuEventDestroy_v2)(own->events[i]);
	own->events_of = NULL;
	if (!take_spare(own, context)) {
		if (REAL(cuEventCreate)(&own->events[0], TIMED_EVENT) != CUDA_SUCCESS)
			return false;
		if (REAL(cuEventCreate)(&own->events[1], TIMED_EVENT) != CUDA_SUCCESS) {
			REAL(cuEventDestroy_v2)(own->events[0]);
			return false;
		}
	}
	own->events_of = context;
	own->epoch = now;
	return true;
}

void measure_begin(struct launches *own, CUcontext context, CUstream stream, uint64_t key)
{
	if (!HAS(cuEventElapsedTime) || !have_events(own, context) || REAL(cuEventRecord)(own->events[0], stream) != CUDA_SUCCESS)
		return;
	own->key = key;
	own->measured_in = stream;
	own->measuring = true;
}

void measure_end(struct launches *own, CUstream stream)
{
	int mode = captures_relax();
	own->measuring = false;
	own->measured = REAL(cuEventRecord)(own->events[1], stream) == CUDA_SUCCESS && !captures_hold(stream);
	own->began = clock_now();
	captures_restore(mode);
}

/* Until the event is reached, or for so long that it may never be: a kernel may wait for what the program does next.
   `expected` is when it should be, 0 where nothing is known. False: the stream is held by something outside, and some more
   may be queued behind it. */
static bool await(struct launches *own, uint64_t expected)
{
	bool held = false;
	uint64_t started = clock_now(), now = started;
	while (now - started < FLIGHT_PATIENCE_NS && REAL(cuEventQuery)(own->events[1]) == CUDA_NOT_READY) {
		held = own->behind < BEHIND_MOST && waits_any() && waits_held(own->events_of, own->measured_in, streams_owner(own->measured_in));
		if (held)
			break;
		flight_pause(started, now, expected);
		now = clock_now();
	}
	own->behind = held ? own->behind + 1 : 0;
	return !held;
}

void measure_learn(struct gate *gate, struct launches *own)
{
	uint32_t known = costs_known(own->key);
	own->measured = false;
	if (own->epoch != LOAD(epoch))
		return;
	pthread_mutex_unlock(&gate->lock);
	if (await(own, known < UINT32_MAX ? own->began + known : 0))
		learn(own->key, own->events);
	pthread_mutex_lock(&gate->lock);
}

void measure_forget_events(void)
{
	ADD(epoch, 1);
}
