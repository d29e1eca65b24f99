/* The slow side of a launch: waiting for a turn. gate.h explains the whole. */
#include "gate.h"
#include "counter.h"

#include <string.h>
#include <time.h>

#define READINGS 8
#define EARLY_NS 300000ull   /* more is asked for so long before a turn ends, so that launches wait for no answer, */
#define EARLY_PART 16        /* or in such a part of what is left of it */
#define TIGHT_NS 1000        /* a reading that took no longer is good enough */
#define UNLIMITED_BATCH 1024 /* launches of a thread without a limit, before they are counted */

struct gate gates[PAGE_GPUS];
struct gate *gate_only;
struct launches gate_nothing = {.gate = gates};
__thread struct launches *gate_own = &gate_nothing;

static __thread struct gate *gate_inside; /* whose graph this thread is launching */

static struct counter_reading first;

/* The tightest of several. */
static struct counter_reading read_counter(void)
{
	struct counter_reading best = {0, 0, UINT64_MAX};
	for (int i = 0; i < READINGS && best.after - best.before > TIGHT_NS; i++) {
		struct counter_reading fresh = {.before = clock_now()};
		fresh.counter = gate_counter();
		fresh.after = clock_now();
		if (fresh.after - fresh.before < best.after - best.before)
			best = fresh;
	}
	return best;
}

/* Where the counter is so many nanoseconds from now on, or a little before. */
static uint64_t counter_in(uint64_t nanoseconds)
{
#if defined __aarch64__
	uint64_t hertz;
	__asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hertz));
	return gate_counter() + (uint64_t)((double)nanoseconds * (double)hertz / 1e9);
#else
	struct counter_reading now = read_counter();
	return now.counter + counter_counts(first, now, nanoseconds);
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
	flight_setup(gate);
	gate->lock = fresh;
	pthread_cond_init(&gate->changed, &monotonic);
	pthread_cond_init(&gate->work, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

void gate_setup(int devices)
{
	first = read_counter();
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

void gate_close_at(struct gate *gate, uint64_t ends)
{
	uint64_t now = clock_now(), rest = ends > now ? ends - now : 0;
	gate->asks = ends - (rest / EARLY_PART < EARLY_NS ? rest / EARLY_PART : EARLY_NS);
	STORE(gate->until, counter_in(rest));
}

static void open_gate(struct gate *gate)
{
	gate->state = GATE_OPEN;
	gate->turns++;
	gate->before = gate->threads;
	gate->threads = 0;
	__atomic_store_n(&gate->touched, true, __ATOMIC_RELAXED);
	gate_close_at(gate, gate->ends);
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
	ADD(slots_own->gpus[gate->turn.gpu].throttled_ns, waited);
	ADD(usage->totals[gate->turn.gpu].throttled_ns, waited);
}

/* Starts the threads, once. False: they are missing, and stderr has the reason. */
static bool ready(struct gate *gate)
{
	if (gate->started || gate->unlimited)
		return gate->started;
	if (keeper_start(gate))
		return true;
	gate->unlimited = limits->flags & LIMITS_FAIL_OPEN;
	return false;
}

static bool enter(int gpu, CUcontext context, CUstream stream, uint64_t key, bool graph)
{
	struct gate *gate = &gates[gpu];
	struct launches *own = measure_own(gpu);
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
		batch_refill(own, gpu, UNLIMITED_BATCH);
		own->stream = NULL;
		own->left--;
		return true;
	}
	/* With several GPUs each launch comes here. */
	if (gate != gate_only && entered && own->given <= COSTS_BATCH && !graph && !captures_any() && gate_stays(own, stream) &&
	    own->context == context && LOAD(gate->until) && costs_spend(own, key)) {
		__atomic_store_n(&gate->touched, true, __ATOMIC_RELAXED);
		return true;
	}
	/* A launch in a capture runs nothing: the graph is charged when it is launched. */
	if (captures_hold(stream))
		return true;
	if (!entered)
		return false;
	if (own->given > COSTS_BATCH) /* it was unlimited */
		batch_refill(own, gpu, 0);
	pthread_mutex_lock(&gate->lock);
	if (!ready(gate)) {
		bool allowed = gate->unlimited;
		pthread_mutex_unlock(&gate->lock);
		return allowed;
	}
	int mode = captures_relax();
	if (!launched_know(gate, context)) { /* no memory: its end could not be waited for */
		captures_restore(mode);
		pthread_mutex_unlock(&gate->lock);
		return false;
	}
	if (own->measured)
		measure_learn(gate, own);
	for (uint64_t started = 0; !gate->stopping;) {
		if (gate_open_now(gate)) {
			if (flight_fits(gate, own, context, stream))
				break;
			started = started ? started : clock_now();
			flight_wait(gate, own, context, stream, started);
		} else if (gate->state == GATE_OPEN) { /* over, and the keeper is late */
			gate_deadline(&gate->changed, &gate->lock, clock_now() + 1000000);
		} else {
			wait_turn(gate, false);
		}
	}
	__atomic_store_n(&gate->touched, true, __ATOMIC_RELAXED);
	ADD(gate->passed, 1);
	if (graph) {
		gate->launching++;
		gate_inside = gate;
	}
	bool short_one = batch_begin(gate, own, context, stream, key);
	pthread_mutex_unlock(&gate->lock);
	if (!short_one)
		measure_begin(own, context, stream, key);
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
	bool allowed = gpu < 0;
	if (!allowed) {
		int cancel = cancel_put_off();
		allowed = enter(gpu, context, stream, key, graph);
		cancel_allow(cancel);
	}
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
	int cancel = cancel_put_off();
	pthread_mutex_lock(&gate->lock);
	if (gate->started)
		wait_turn(gate, true);
	__atomic_store_n(&gate->touched, true, __ATOMIC_RELAXED);
	gate->resumed = true;
	ADD(*inside, -1);
	pthread_mutex_unlock(&gate->lock);
	cancel_allow(cancel);
}
