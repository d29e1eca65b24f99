/*
 * The way to a GPU's time, that every launch passes (launch.c, graph.c), its slow side (gate.c), the work in
 * flight (flight.c), and the threads that end a turn (keeper.c).
 *
 * A launch goes straight through while the keeper has not closed the gate, its kernel is known to be short, the thread has
 * launches left of its batch (costs.h), its stream is in the book, and no stream is captured: a few shared loads, since a look
 * at the clock costs as much as all of them. Otherwise it comes to gate_wait, which looks at the clock, bounds what is in
 * flight and waits for the next turn. So if the keeper is late, a thread is at most the rest of a batch late; one that is
 * between the check and the driver when the gate closes, or when a capture begins, may be one short kernel late.
 */
#ifndef GPUPLANE_GATE_H
#define GPUPLANE_GATE_H

#include "../turns.h"
#include "costs.h"
#include "cuda.h"
#include "streams.h"

#define FLIGHTS 96

/* Some launches in a stream, up to an event in it (flight.c). */
struct flight {
	uint64_t number; /* 0: none */
	CUcontext context;
	CUstream stream;
	uint64_t owner;       /* the thread whose own default stream it is, else 0 */
	bool recorded, held;  /* the event is in the stream; behind what the stream waits for */
	int launches, spent;  /* and those whose cost was known: all, or none if one is measured */
	int64_t ns, ahead_ns; /* its work, and that in flight with it */
	uint64_t recorded_at;
	uint16_t used[COSTS_BATCH];
	struct flight *next;
};

struct gate_context {
	CUcontext context;
	CUevent events[FLIGHTS]; /* of the flights in it; made when they are needed */
};

enum gate_state {
	GATE_SHUT,    /* not our turn */
	GATE_OPEN,    /* our turn */
	GATE_CLOSING, /* our turn, and over: the GPU still works for us */
};

/* One for each GPU. All under `lock`, except until and touched. */
struct gate {
	uint64_t until;   /* processor's counter, where the turn ends; 0: no launch passes without a look */
	bool touched;     /* something was launched */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* for launches that wait */
	pthread_cond_t work;    /* for the two threads */
	enum gate_state state;
	bool started, unlimited, polling, stopping;
	bool syncing; /* the drainer is in the driver, */
	bool whole;   /* and waits for contexts: no capture may begin */
	bool parked;  /* work is held back in streams, and may run at any time, */
	bool loose;   /* or runs without a turn */
	bool resumed; /* a graph goes on since the drain began */
	uint64_t paused_at; /* when the last host function began */
	uint64_t passed;    /* launches that came this way, which are all of them while a wait is open */
	unsigned waiting;   /* threads that wait for a turn */
	unsigned launching; /* threads that are in the launch of a graph */
	struct turn turn;
	uint64_t ends, asks; /* of the turn; when the keeper asks for more */
	bool found_idle;     /* by that drain */
	unsigned sparse;     /* for so many more turns the GPU is expected to be idle in them */
	uint64_t wanted, done, done_at; /* numbers of the last drain asked for and finished; when */
	struct gate_context *contexts; /* those with launches; an ended one leaves its place empty */
	int context_count;
	uint64_t turns;      /* that have begun, */
	int threads, before; /* and how many threads have launched in this one, and in that before */
	struct flight flights[FLIGHTS];
	struct flight *flying, *held, *landed; /* oldest first; the last ones are free */
	uint64_t last_flight;
	int flying_launches, held_launches;
	int64_t flying_ns;
};

/* The gate of the only GPU, when there is only one. */
extern struct gate *gate_only;
extern struct gate gates[PAGE_GPUS];
/* The launches of this thread on the GPU of gate_only; before its first launch gate_nothing, with none left. */
extern struct launches gate_nothing;
extern __thread struct launches *gate_own;

static inline uint64_t gate_counter(void)
{
#if defined __x86_64__
	uint32_t low, high;
	__asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
	return (uint64_t)high << 32 | low;
#elif defined __aarch64__
	uint64_t value;
	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
	return value;
#else
	return clock_now();
#endif
}

/* False: the launch must not be made, since limits cannot be enforced. */
bool gate_wait(CUstream stream, uint64_t key);

/* Whether a launch is in the stream of its thread's batch. Without a limit it may be in any that is in the book. */
static inline bool gate_stays(const struct launches *own, CUstream stream)
{
	return (own->stream == stream && own->streams_epoch == __atomic_load_n(&streams_epoch, __ATOMIC_RELAXED)) ||
	       __builtin_expect(own->unlimited && streams_known(stream), 0);
}

/* Whether a launch goes straight through. It was measured then, so the driver has its function. */
static inline bool gate_quick(CUstream stream, uint64_t key)
{
	struct launches *own = gate_own;
	if (__builtin_expect(!gate_stays(own, stream) || captures_any(), 0) ||
	    __builtin_expect(!__atomic_load_n(&own->gate->until, __ATOMIC_RELAXED), 0) ||
	    __builtin_expect(!costs_spend(own, key), 0))
		return false;
	__atomic_store_n(&own->gate->touched, true, __ATOMIC_RELAXED);
	return true;
}

/* Behind the launch: the end of what is measured or in flight, and while a capture is open a mark. */
extern __thread struct launches *gate_behind;
void flight_launched(CUstream stream);
void gate_mark(CUstream stream);

static inline void gate_launched(CUstream stream)
{
	if (__builtin_expect(gate_behind != NULL, 0))
		flight_launched(stream);
	if (__builtin_expect(captures_any(), 0))
		gate_mark(stream);
}

/* A function of the driver that passes the gate, if `held`: else it takes no time of the GPU. `key` is what its cost is
   known by (costs.h). The quick end is a few comparisons and a jump, so the slow one is a function of its own. */
#define GATED(symbol, per_thread, stream, held, key, parameters, ...)                                                   \
	CUresult symbol parameters;                                                                                     \
	static __attribute__((noinline)) CUresult slow_##symbol parameters                                              \
	{                                                                                                               \
		CUstream meant = streams_meant(stream, per_thread);                                                     \
		NEED_REAL(symbol);                                                                                      \
		if (!gate_wait(meant, key))                                                                             \
			return CUDA_DEVICE_UNAVAILABLE;                                                                 \
		CUresult result = REAL(symbol)(__VA_ARGS__);                                                            \
		gate_launched(meant);                                                                                   \
		return result;                                                                                          \
	}                                                                                                               \
	EXPORT CUresult symbol parameters                                                                               \
	{                                                                                                               \
		if (!(held)) {                                                                                          \
			NEED_REAL(symbol);                                                                              \
			return REAL(symbol)(__VA_ARGS__);                                                               \
		}                                                                                                       \
		if (gate_quick(streams_meant(stream, per_thread), key))                                                 \
			return REAL(symbol)(__VA_ARGS__);                                                               \
		return slow_##symbol(__VA_ARGS__);                                                                      \
	}

/* Around the launch of a graph. It is many kernels, which the driver may take long to queue: a turn does not end in it. */
bool gate_begin_graph(CUstream stream, CUgraphExec exec);
void gate_end_graph(void);
/* A host function begins. */
void gate_pause(int gpu);
/* At its end: waits for a turn if there is work behind it, then counts it down in *inside. */
void gate_resume(int gpu, bool work, unsigned *inside);
/* A number that each launch on the GPU changes while a wait is open. */
uint64_t gate_passed(int gpu);

void gate_setup(int devices);        /* at cuInit */
void gate_wait_whole(void);          /* a capture is about to begin: a wait for whole contexts would spoil it */
void gate_mark_all(void);            /* and it is the first */
void gate_leave(CUcontext context);  /* a context is about to end */
void gate_forget(void);              /* in a forked child */

static inline bool gate_open_now(const struct gate *gate)
{
	return gate->state == GATE_OPEN && gate_counter() < gate->until;
}

/* launched.c; with the lock held. NULL: there is no memory. */
struct gate_context *launched_know(struct gate *gate, CUcontext context);

/* batch.c; with the lock held, but for the first. A batch for this thread; what it used of the last one is counted. */
void batch_refill(struct launches *own, int gpu, int launches);
/* How many launches the next one may have in a stream. */
int batch_size(const struct launches *own, CUcontext context, CUstream stream);
/* The launches of the thread behind the last event, and their work. */
int batch_open_launches(const struct launches *own);
int64_t batch_open_ns(const struct launches *own);
/* The launch of `key` as the first of a batch; false: as the only one, and it is to be measured. */
bool batch_begin(struct gate *gate, struct launches *own, CUcontext context, CUstream stream, uint64_t key);

/* flight.c; with the lock held. */
#define FLIGHT_PATIENCE_NS 10000000000ull
/* The launches of a batch behind its event. */
struct batch_end {
	int launches;
	int64_t ns;
	uint16_t used[COSTS_BATCH];
};
void flight_setup(struct gate *gate);
/* Whether there is room for a batch, and a wait for some more room, which began at `started`. */
bool flight_fits(struct gate *gate, const struct launches *own, CUcontext context, CUstream stream);
void flight_wait(struct gate *gate, const struct launches *own, CUcontext context, CUstream stream, uint64_t started);
/* The end of a batch and the first launch of the next, whose work is `ns`; it is `spent`, or it is measured. The context is current. */
void flight_begin(struct gate *gate, struct launches *own, const struct batch_end *before, uint32_t ns, bool spent);
void flight_drop(struct gate *gate, CUcontext context); /* one that ends */
/* Sleeps a while, of a wait that began at `started`; `expected` is when it should be over, 0 where nothing is known. */
void flight_pause(uint64_t started, uint64_t now, uint64_t expected);

/* measure.c */
struct launches *measure_own(int gpu); /* this thread's launches on a GPU; NULL: there is no memory */
/* Right before a launch that is measured, and right behind it; without the lock. */
void measure_begin(struct launches *own, CUcontext context, CUstream stream, uint64_t key);
void measure_end(struct launches *own, CUstream stream);
/* Waits for the launch that was measured, and learns what it cost. With the lock held, which it gives up. */
void measure_learn(struct gate *gate, struct launches *own);
void measure_forget_events(void); /* those of a context that ends */

/* keeper.c; with the lock held. */
bool keeper_start(struct gate *gate);
/* From that time on no launch goes through. */
void gate_close_at(struct gate *gate, uint64_t ends);
/* Waits a while for a turn, and opens the gate when there is one. */
void gate_try_turn(struct gate *gate);
void gate_deadline(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t until);

#endif
