/*
 * The way to a GPU's time, that every launch passes (launch.c, graph.c), its slow side (gate.c), the work in
 * flight (flight.c), and the threads that end a turn (keeper.c).
 *
 * A launch goes straight through while the turn lasts, the thread has launches left of its batch, its stream is in the
 * book, and no stream is captured: three shared loads and a comparison with the processor's counter. Otherwise it comes
 * to gate_wait, which bounds what is in flight and waits for the next turn. A thread that is between the check and the
 * driver when the gate closes may be one kernel late.
 */
#ifndef GPUPLANE_GATE_H
#define GPUPLANE_GATE_H

#include "../turns.h"
#include "cuda.h"
#include "streams.h"

#define GATE_CONTEXTS 16

struct gate_context {
	CUcontext context;
	CUevent events[2]; /* the ends of the last two batches */
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
	uint64_t until;   /* processor's counter; launches pass before it */
	bool touched;     /* something was launched */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* for launches that wait */
	pthread_cond_t work;    /* for the two threads */
	enum gate_state state;
	bool started, unlimited, polling, stopping;
	bool syncing; /* the drainer is in the driver, */
	bool whole;   /* and waits for contexts: no capture may begin */
	unsigned launching; /* threads that are in the launch of a graph */
	bool one_by_one; /* launches are long: each is waited for */
	struct turn turn;
	uint64_t ends;       /* of the turn */
	uint64_t wanted, done, done_at; /* numbers of the last drain asked for and finished; when */
	unsigned batch;      /* launches that a thread may make before it looks again */
	uint64_t batch_at;   /* when the last batch was full */
	struct gate_context contexts[GATE_CONTEXTS];
};

/* The gate of the only GPU, when there is only one: what the fast path looks at. NULL: it looks at nothing. */
extern struct gate *gate_only;
extern struct gate gates[PAGE_GPUS];
/* Of this thread's batch: what is left, and what it was. */
extern __thread int gate_left, gate_given;

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
bool gate_wait(CUstream stream);

static inline bool gate_pass(CUstream stream)
{
	struct gate *gate = __atomic_load_n(&gate_only, __ATOMIC_RELAXED);
	if (__builtin_expect(gate && gate_left > 0 && streams_known(stream) && !captures_any(), 1) &&
	    __builtin_expect(gate_counter() < __atomic_load_n(&gate->until, __ATOMIC_RELAXED), 1)) {
		gate_left--;
		__atomic_store_n(&gate->touched, true, __ATOMIC_RELAXED);
		return true;
	}
	return gate_wait(stream);
}

/* Behind the launch: while a capture is open, it leaves a mark. */
void gate_mark(CUstream stream);

static inline void gate_launched(CUstream stream)
{
	if (__builtin_expect(captures_any(), 0))
		gate_mark(stream);
}

/* Around the launch of a graph. It is many kernels, which the driver may take long to queue: a turn does not end in it. */
bool gate_begin_graph(CUstream stream);
void gate_end_graph(void);

void gate_setup(int devices);        /* at cuInit */
void gate_wait_whole(void);          /* a capture is about to begin: a wait for whole contexts would spoil it */
void gate_mark_all(void);            /* and it is the first */
void gate_leave(CUcontext context);  /* a context is about to end */
void gate_forget(void);              /* in a forked child */

/* flight.c; with the lock held. What of a context is in flight: the events are those of the context that is current. */
struct gate_context *flight_know(struct gate *gate, CUcontext context);
void flight_bound(struct gate *gate, CUcontext context, CUstream stream, unsigned launched);

/* keeper.c; with the lock held. */
bool keeper_start(struct gate *gate);
void gate_deadline(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t until);

#endif
