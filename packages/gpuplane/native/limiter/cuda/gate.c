/* The slow side of a launch: bounding what is in flight, and waiting for a turn. gate.h says how it fits together. */
#include "gate.h"

#include <string.h>
#include <time.h>

CUresult cuEventSynchronize(CUevent event);

#define BATCH_MOST 64         /* launches of a thread between two looks; twice that may be in flight */
#define BATCH_NS 2000000ull   /* and so much work, as far as the last batch tells */
#define LONG_NS 5000000ull    /* a single launch from here on is waited for: what that costs is little beside it */
#define LOOK_AGAIN_NS 100000000ull /* whoever has no limit looks that often whether there is one now */
#define EVENT_FLAGS 3u        /* sleep while waiting, no timing */

struct gate gates[PAGE_GPUS];
struct gate *gate_only;
__thread int gate_left, gate_given;
int gate_captures;

static __thread struct gate *gate_inside; /* whose graph this thread is launching */

static uint64_t first_counter, first_ns;

/* How many of the processor's counter are so many nanoseconds. */
uint64_t gate_counts(uint64_t nanoseconds)
{
#if defined __aarch64__
	uint64_t hertz;
	__asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hertz));
	return (uint64_t)((double)nanoseconds * (double)hertz / 1e9);
#else
	uint64_t counter = gate_counter(), now = clock_now();
	return (uint64_t)((double)nanoseconds * (double)(counter - first_counter) / (double)(now - first_ns));
#endif
}

static void begin(struct gate *gate)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	memset(gate, 0, sizeof *gate);
	gate->lock = fresh;
	pthread_cond_init(&gate->changed, &monotonic);
	pthread_cond_init(&gate->work, &monotonic);
	pthread_condattr_destroy(&monotonic);
	gate->batch = 1;
	gate->one_by_one = true;
}

void gate_setup(int devices)
{
	first_counter = gate_counter();
	first_ns = clock_now();
	for (int i = 0; i < PAGE_GPUS; i++)
		begin(&gates[i]);
	int gpu = devices == 1 ? cuda_gpu(0) : -1;
	if (gpu >= 0)
		__atomic_store_n(&gate_only, &gates[gpu], __ATOMIC_SEQ_CST);
	/* The counter's speed is known after a moment. */
	clock_pause(1000000);
}

void gate_forget(void)
{
	gate_only = NULL;
	gate_left = 0;
	gate_captures = 0;
}

void gate_deadline(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t until)
{
	struct timespec deadline = {(time_t)(until / 1000000000ull), (long)(until % 1000000000ull)};
	pthread_cond_timedwait(condition, lock, &deadline);
}

/* What this thread asks of events must not spoil another one's capture. The second call undoes the first. */
static void relax_capture(void)
{
	static __thread int mode = GATE_CAPTURE_RELAXED;
	if (HAS(cuThreadExchangeStreamCaptureMode))
		REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

static struct gate_context *know(struct gate *gate, CUcontext context)
{
	struct gate_context *empty = NULL;
	for (int i = 0; i < GATE_CONTEXTS; i++) {
		if (gate->contexts[i].context == context)
			return &gate->contexts[i];
		if (!gate->contexts[i].context && !empty)
			empty = &gate->contexts[i];
	}
	if (empty) {
		*empty = (struct gate_context){.context = context};
		for (int i = 0; i < 2; i++)
			if (REAL(cuEventCreate)(&empty->events[i], EVENT_FLAGS) != CUDA_SUCCESS)
				empty->events[i] = NULL;
	}
	return empty;
}

/* Marks the end of a batch in the stream, and waits until the one before it is done. Where a single launch is long, or
   nothing is known yet, it waits for this one: a turn must not end with seconds of work queued. */
static void bound_flight(struct gate *gate, CUcontext context, CUstream stream, bool per_thread, unsigned launched)
{
	struct gate_context *known = know(gate, context);
	if (!known || !known->events[0] || !known->events[1] || !launched)
		return;
	int current = known->next;
	CUevent event = known->events[current], before = known->recorded[!current] ? known->events[!current] : NULL;
	CUresult result = per_thread && HAS(cuEventRecord_ptsz) ? REAL(cuEventRecord_ptsz)(event, stream)
								: REAL(cuEventRecord)(event, stream);
	if (result != CUDA_SUCCESS)
		return;
	known->recorded[current] = true;
	known->next = !current;
	CUevent last = gate->one_by_one ? event : before;
	bool busy = last && REAL(cuEventQuery)(last) == CUDA_NOT_READY;
	pthread_mutex_unlock(&gate->lock);
	if (busy)
		REAL(cuEventSynchronize)(last);
	uint64_t now = clock_now();
	pthread_mutex_lock(&gate->lock);
	uint64_t each = (now - gate->batch_at) / launched;
	uint64_t batch = busy ? BATCH_NS / (each ? each : 1) : (uint64_t)gate->batch * 2;
	gate->batch_at = now;
	gate->one_by_one = each >= LONG_NS;
	gate->batch = gate->one_by_one || !batch ? 1 : batch < BATCH_MOST ? (unsigned)batch : BATCH_MOST;
}

static void open_gate(struct gate *gate)
{
	uint64_t now = clock_now();
	gate->state = GATE_OPEN;
	gate->batch_at = now;
	__atomic_store_n(&gate->touched, true, __ATOMIC_RELAXED);
	STORE(gate->until, gate_counter() + gate_counts(gate->ends > now ? gate->ends - now : 0));
	pthread_cond_broadcast(&gate->changed);
	pthread_cond_broadcast(&gate->work);
}

/* One of the threads that wait asks for the lease; the others wait for what becomes of it. */
static void wait_turn(struct gate *gate)
{
	uint64_t started = clock_now(), wait = 0;
	while (gate->state != GATE_OPEN && !gate->stopping) {
		if (gate->polling || gate->state == GATE_CLOSING) {
			gate_deadline(&gate->changed, &gate->lock, clock_now() + 5000000);
			continue;
		}
		uint32_t seen = LOAD(gate->turn.page->futex);
		if (lease_try(&gate->turn, &gate->ends, &wait)) {
			open_gate(gate);
			break;
		}
		gate->polling = true;
		pthread_mutex_unlock(&gate->lock);
		lease_sleep(&gate->turn, seen, wait);
		pthread_mutex_lock(&gate->lock);
		gate->polling = false;
	}
	uint64_t waited = clock_now() - started;
	ADD(slots_own()->gpus[gate->turn.gpu].throttled_ns, waited);
	ADD(usage->totals[gate->turn.gpu].throttled_ns, waited);
}

/* Joins the lease and starts the threads, once. False: something is missing, and was said. */
static bool ready(struct gate *gate, int gpu)
{
	if (gate->started || gate->unlimited)
		return gate->started;
	struct lease_page *page = gate->joined ? gate->turn.page : page_lease(gpu);
	if (page && !gate->joined) {
		gate->joined = lease_join(&gate->turn, page, gpu);
		if (!gate->joined)
			page_lacks(SAY_LEASE, "all %d places in the lease of the GPU's time are taken", PAGE_TENANTS);
	}
	if (gate->joined && keeper_start(gate))
		return true;
	gate->unlimited = limits->flags & LIMITS_FAIL_OPEN;
	return false;
}

/* A batch for this thread; what it used of the last one is counted. */
static void refill(struct gate *gate, int gpu, int batch)
{
	(void)gate;
	int used = gate_given - gate_left;
	if (used > 0) {
		ADD(slots_own()->gpus[gpu].launches, (uint64_t)used);
		ADD(usage->totals[gpu].launches, (uint64_t)used);
	}
	gate_given = gate_left = batch;
}

static bool enter(int gpu, CUcontext context, CUstream stream, bool per_thread, bool graph)
{
	struct gate *gate = &gates[gpu];
	bool several = gate != gate_only;
	if (!LOAD(limits->gpus[gpu].core)) {
		STORE(gate->until, gate_counter() + gate_counts(LOOK_AGAIN_NS));
		refill(gate, gpu, several ? 1 : 1 << 20);
		gate_left--;
		return true;
	}
	/* A launch in a capture runs nothing, and waiting could spoil the capture. */
	if (cuda_capturing(stream, per_thread))
		return true;
	pthread_mutex_lock(&gate->lock);
	if (!ready(gate, gpu)) {
		bool allowed = gate->unlimited;
		pthread_mutex_unlock(&gate->lock);
		return allowed;
	}
	unsigned launched = (unsigned)(gate_given > gate_left ? gate_given - gate_left : 0);
	relax_capture();
	if (gate->state == GATE_OPEN && gate_counter() < gate->until && gate_left <= 0 && !LOAD(gate_captures))
		bound_flight(gate, context, stream, per_thread, launched);
	else
		know(gate, context);
	relax_capture();
	while (!gate->stopping && (gate->state != GATE_OPEN || gate_counter() >= gate->until)) {
		if (gate->state == GATE_OPEN) /* over, and the keeper is late */
			gate_deadline(&gate->changed, &gate->lock, clock_now() + 1000000);
		else
			wait_turn(gate);
	}
	if (gate_left <= 0)
		refill(gate, gpu, several ? 1 : (int)gate->batch);
	gate_left--;
	__atomic_store_n(&gate->touched, true, __ATOMIC_RELAXED);
	if (graph) {
		gate->launching++;
		gate_inside = gate;
	}
	pthread_mutex_unlock(&gate->lock);
	return true;
}

bool gate_wait(CUstream stream, bool per_thread)
{
	CUcontext context;
	int gpu = cuda_current(&context);
	return gpu < 0 || enter(gpu, context, stream, per_thread, false);
}

bool gate_begin_graph(CUstream stream, bool per_thread)
{
	CUcontext context;
	int gpu = cuda_current(&context);
	gate_given -= gate_left;
	gate_left = 0;
	return gpu < 0 || enter(gpu, context, stream, per_thread, true);
}

void gate_end_graph(void)
{
	struct gate *gate = gate_inside;
	if (!gate)
		return;
	gate_inside = NULL;
	pthread_mutex_lock(&gate->lock);
	gate->launching--;
	pthread_cond_broadcast(&gate->work);
	pthread_mutex_unlock(&gate->lock);
}

void gate_capture(int change)
{
	if (!cuda_active)
		return;
	ADD(gate_captures, change);
	/* A drain that goes on must be over before the capture begins. */
	for (int i = 0; change > 0 && i < PAGE_GPUS; i++) {
		pthread_mutex_lock(&gates[i].lock);
		while (gates[i].syncing)
			pthread_cond_wait(&gates[i].work, &gates[i].lock);
		pthread_mutex_unlock(&gates[i].lock);
	}
}

void gate_leave(CUcontext context)
{
	for (int i = 0; cuda_active && i < PAGE_GPUS; i++) {
		struct gate *gate = &gates[i];
		pthread_mutex_lock(&gate->lock);
		while (gate->syncing)
			pthread_cond_wait(&gate->work, &gate->lock);
		for (int k = 0; k < GATE_CONTEXTS; k++) {
			struct gate_context *known = &gate->contexts[k];
			if (known->context != context)
				continue;
			for (int n = 0; n < 2; n++)
				if (known->events[n])
					REAL(cuEventDestroy_v2)(known->events[n]);
			*known = (struct gate_context){.context = NULL};
			/* Whoever still launches in it comes by again and is known again. */
			STORE(gate->until, 0);
		}
		pthread_mutex_unlock(&gate->lock);
	}
}
