/* The slow side of a launch: waiting for a turn. gate.h explains the whole. */
#include "gate.h"

#include <string.h>
#include <time.h>

#define UNLIMITED_BATCH 1024 /* launches of whoever has no limit, before they are counted */

struct gate gates[PAGE_GPUS];
struct gate *gate_only;
struct launches gate_nothing = {.gate = gates};
__thread struct launches *gate_own = &gate_nothing;

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
	turn_begin(&gate->turn, (int)(gate - gates));
	gate->lock = fresh;
	pthread_cond_init(&gate->changed, &monotonic);
	pthread_cond_init(&gate->work, &monotonic);
	pthread_condattr_destroy(&monotonic);
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
	gate_own = &gate_nothing;
	for (int i = 0; i < PAGE_GPUS; i++)
		turn_forget(&gates[i].turn);
}

void gate_deadline(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t until)
{
	struct timespec deadline = {(time_t)(until / 1000000000ull), (long)(until % 1000000000ull)};
	pthread_cond_timedwait(condition, lock, &deadline);
}

static void open_gate(struct gate *gate)
{
	uint64_t now = clock_now();
	gate->state = GATE_OPEN;
	__atomic_store_n(&gate->touched, true, __ATOMIC_RELAXED);
	STORE(gate->until, gate_counter() + gate_counts(gate->ends > now ? gate->ends - now : 0));
	pthread_cond_broadcast(&gate->changed);
	pthread_cond_broadcast(&gate->work);
}

/* One of the threads that wait asks for a turn; the others wait for what becomes of it. */
void gate_try_turn(struct gate *gate)
{
	if (gate->polling || gate->state != GATE_SHUT) {
		gate_deadline(&gate->changed, &gate->lock, clock_now() + 5000000);
		return;
	}
	gate->polling = true;
	pthread_mutex_unlock(&gate->lock);
	bool ours = turn_wait(&gate->turn, &gate->ends);
	pthread_mutex_lock(&gate->lock);
	gate->polling = false;
	if (ours)
		open_gate(gate);
}

static bool missing(const struct gate *gate, bool resumes)
{
	if (!resumes)
		return gate->state != GATE_OPEN && !gate->stopping;
	return gate->state == GATE_SHUT && !gate->stopping && !gate->loose && LOAD(limits->gpus[gate->turn.gpu].core);
}

static void wait_turn(struct gate *gate, bool resumes)
{
	uint64_t started = clock_now();
	gate->waiting++;
	while (missing(gate, resumes))
		gate_try_turn(gate);
	gate->waiting--;
	uint64_t waited = clock_now() - started;
	ADD(slots_own()->gpus[gate->turn.gpu].throttled_ns, waited);
	ADD(usage->totals[gate->turn.gpu].throttled_ns, waited);
}

/* Starts the threads, once. False: they are missing, and that was said. */
static bool ready(struct gate *gate)
{
	if (gate->started || gate->unlimited)
		return gate->started;
	if (keeper_start(gate))
		return true;
	gate->unlimited = limits->flags & LIMITS_FAIL_OPEN;
	return false;
}

/* A batch for this thread; what it used of the last one is counted. */
static void refill(struct launches *own, int gpu, int batch)
{
	int used = own->given - own->left;
	if (used > 0) {
		ADD(slots_own()->gpus[gpu].launches, (uint64_t)used);
		ADD(usage->totals[gpu].launches, (uint64_t)used);
	}
	own->given = own->left = batch;
	own->budget_ns = COSTS_BUDGET_NS;
	own->batch_at = clock_now();
}

/* The launch of `key` as the first of a batch, or the only one. */
static void begin_batch(struct launches *own, int gpu, CUcontext context, CUstream stream, uint64_t key)
{
	uint32_t known = costs_known(key);
	bool measure = known >= COSTS_LONG_NS;
	refill(own, gpu, measure ? 1 : COSTS_BATCH);
	if (known > own->budget_ns) /* a batch of its own: one more is in flight */
		own->budget_ns = known;
	if (!measure && costs_spend(own, key))
		return;
	own->left = 0;
	own->given = 1;
	flight_measure(own, context, stream, key);
}

static bool enter(int gpu, CUcontext context, CUstream stream, uint64_t key, bool graph)
{
	struct gate *gate = &gates[gpu];
	struct launches *own = flight_own(gpu);
	bool entered = streams_known(stream) || streams_enter(context, stream, gpu);
	if (!own)
		return false;
	if (gate == gate_only)
		gate_own = own;
	own->gate = gate;
	own->generation = LOAD(limits->generation);
	own->unlimited = !LOAD(limits->gpus[gpu].core);
	if (own->unlimited) {
		STORE(gate->until, UINT64_MAX);
		refill(own, gpu, UNLIMITED_BATCH);
		own->left--;
		return true;
	}
	/* With several GPUs each launch comes here. */
	if (gate != gate_only && entered && own->given <= COSTS_BATCH && !graph && !captures_any() &&
	    LOAD(gate->until) && costs_spend(own, key)) {
		__atomic_store_n(&gate->touched, true, __ATOMIC_RELAXED);
		return true;
	}
	/* A launch in a capture runs nothing: the graph is charged when it is launched. */
	if (captures_hold(stream))
		return true;
	if (!entered)
		return false;
	if (own->given > COSTS_BATCH) /* it was unlimited */
		refill(own, gpu, 0);
	pthread_mutex_lock(&gate->lock);
	if (!ready(gate)) {
		bool allowed = gate->unlimited;
		pthread_mutex_unlock(&gate->lock);
		return allowed;
	}
	int mode = captures_relax();
	if (!flight_know(gate, context)) { /* no memory: its end could not be waited for */
		captures_restore(mode);
		pthread_mutex_unlock(&gate->lock);
		return false;
	}
	flight_bound(gate, own, context, stream);
	while (!gate->stopping && !gate_open_now(gate)) {
		if (gate->state == GATE_OPEN) /* over, and the keeper is late */
			gate_deadline(&gate->changed, &gate->lock, clock_now() + 1000000);
		else
			wait_turn(gate, false);
	}
	__atomic_store_n(&gate->touched, true, __ATOMIC_RELAXED);
	ADD(gate->passed, 1);
	if (graph) {
		gate->launching++;
		gate_inside = gate;
	}
	pthread_mutex_unlock(&gate->lock);
	begin_batch(own, gpu, context, stream, key);
	captures_restore(mode);
	return true;
}

/* The GPU of a stream, -1 where there are no limits, with the stream's context current: a program may launch into a stream of
   another context, and only that one's end and events speak of it. */
static int begin_at(CUstream stream, CUcontext *context, bool *other)
{
	int gpu = streams_remembered(stream, context, other);
	if (gpu < 0)
		gpu = cuda_of_stream(stream, context, other);
	if (gpu < 0)
		*other = false;
	else if (*other)
		*other = REAL(cuCtxPushCurrent_v2)(*context) == CUDA_SUCCESS;
	return gpu;
}

static void end_at(bool other)
{
	CUcontext before;
	if (other)
		REAL(cuCtxPopCurrent_v2)(&before);
}

static bool pass(CUstream stream, uint64_t key, bool graph)
{
	CUcontext context;
	bool other;
	int gpu = begin_at(stream, &context, &other);
	bool allowed = gpu < 0 || enter(gpu, context, stream, key, graph);
	end_at(other);
	return allowed;
}

bool gate_wait(CUstream stream, uint64_t key)
{
	return pass(stream, key, false);
}

bool gate_begin_graph(CUstream stream, CUgraphExec exec)
{
	return pass(stream, costs_key(exec, 1), true);
}

void gate_mark(CUstream stream)
{
	CUcontext context;
	bool other;
	int gpu = begin_at(stream, &context, &other);
	if (gpu >= 0 && LOAD(limits->gpus[gpu].core))
		streams_mark(context, stream, gpu);
	end_at(other);
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

uint64_t gate_passed(int gpu)
{
	return LOAD(gates[gpu].passed);
}

void gate_pause(int gpu)
{
	if (gpu >= 0)
		STORE(gates[gpu].paused_at, clock_now());
}

/* It does not wait for the end of a turn, which may wait for functions behind this one in the driver's thread. So it goes on in
   a turn that is about to end, which then ends later; and where work runs without a turn, since that may be such a function's
   graph: that time is paid for later. */
void gate_resume(int gpu, bool work, unsigned *inside)
{
	if (gpu < 0 || !work) {
		ADD(*inside, -1);
		return;
	}
	struct gate *gate = &gates[gpu];
	pthread_mutex_lock(&gate->lock);
	if (gate->started)
		wait_turn(gate, true);
	__atomic_store_n(&gate->touched, true, __ATOMIC_RELAXED);
	gate->resumed = true;
	ADD(*inside, -1);
	pthread_mutex_unlock(&gate->lock);
}
