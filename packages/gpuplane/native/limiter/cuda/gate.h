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

struct gate_context {
	CUcontext context;
	CUevent events[2]; /* the ends of the last two batches, */
	CUstream streams[2]; /* and where they are */
	bool recorded[2];
	int next;
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
	uint64_t ends;       /* of the turn */
	bool found_idle;     /* by that drain */
	unsigned sparse;     /* for so many more turns the GPU is expected to be idle in them */
	uint64_t wanted, done, done_at; /* numbers of the last drain asked for and finished; when */
	struct gate_context *contexts; /* those with launches; an ended one leaves its place empty */
	int context_count;
};

/* The gate of the only GPU, when there is only one. */
extern struct gate *gate_only;
extern struct gate gates[PAGE_GPUS];
/* What this thread launches on the GPU of gate_only; before its first launch gate_nothing, with none left. */
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

/* How many of it are so many nanoseconds. */
uint64_t gate_counts(uint64_t nanoseconds);
/* False: the launch must not be made, since limits cannot be kept. */
bool gate_wait(CUstream stream, uint64_t key);

/* Whether a launch goes straight through. It was measured then, so the driver has its function. */
static inline bool gate_quick(CUstream stream, uint64_t key)
{
	struct launches *own = gate_own;
	if (__builtin_expect(!streams_known(stream) || captures_any(), 0) ||
	    __builtin_expect(!__atomic_load_n(&own->gate->until, __ATOMIC_RELAXED), 0) ||
	    __builtin_expect(!costs_spend(own, key), 0))
		return false;
	__atomic_store_n(&own->gate->touched, true, __ATOMIC_RELAXED);
	return true;
}

/* Behind the launch: the end of what is measured, and while a capture is open a mark. */
extern __thread struct launches *gate_measuring;
void flight_measured(CUstream stream);
void gate_mark(CUstream stream);

static inline void gate_launched(CUstream stream)
{
	if (__builtin_expect(gate_measuring != NULL, 0))
		flight_measured(stream);
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

/* flight.c; with the lock held. What of a context is in flight: the events are those of the context that is current. */
struct gate_context *flight_know(struct gate *gate, CUcontext context);
/* Waits for what this thread has in flight and is too much. */
void flight_bound(struct gate *gate, struct launches *own, CUcontext context, CUstream stream);
/* Right before a launch that is measured, without the lock. */
void flight_measure(struct launches *own, CUcontext context, CUstream stream, uint64_t key);
/* This thread's launches on a GPU; NULL: there is no memory. */
struct launches *flight_own(int gpu);

/* keeper.c; with the lock held. */
bool keeper_start(struct gate *gate);
/* Waits a while for a turn, and opens the gate when there is one. */
void gate_try_turn(struct gate *gate);
void gate_deadline(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t until);

#endif
