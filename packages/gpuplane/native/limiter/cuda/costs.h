/*
 * The measured costs of launches, so that the work in flight is bounded by time and not by number.
 *
 * A *key* is a kernel with the size of its grid, as a power of two. A launch whose key is unknown, long or no longer
 * trusted is measured by events around it, and is waited for before this thread's next launch on the GPU. Launches of known
 * short kernels go on without a look while the thread stays in one stream: COSTS_BATCH of them, or COSTS_BUDGET_NS of work. If a
 * batch takes much longer than its keys say, each of its keys is measured again, and more often with each time.
 */
#ifndef GPUPLANE_COSTS_H
#define GPUPLANE_COSTS_H

#include "cuda.h"

#define COSTS_BATCH 16            /* launches of a thread between two looks; flight.c says how many may be in flight */
#define COSTS_BUDGET_NS 2000000ll /* and so much work */
#define COSTS_LONG_NS 5000000u    /* a launch from here on is waited for, which costs little compared with it */
#define COSTS_PLACES 4096

struct cost {
	uint64_t key;  /* 0: none */
	uint32_t ns;   /* at most UINT32_MAX */
	uint16_t owed; /* so many times it has to be found short before it is trusted */
	uint16_t penalty;
};
extern struct cost costs[COSTS_PLACES];

struct gate;
struct flight;

/* Of a thread on one GPU. */
struct launches {
	struct gate *gate;
	CUstream stream;         /* of the batch: */
	CUcontext context;       /* a launch into another one is looked at */
	uint64_t streams_epoch;  /* when it was in the book */
	unsigned in_stream;      /* launches there, one after the other */
	int left, given;         /* of the batch */
	int64_t budget_ns, first_budget_ns; /* left of it; and behind its first launch */
	uint64_t turns;          /* of the gate, when this thread was counted */
	bool unlimited;
	uint64_t generation;     /* of the limits, when it was found to be unlimited */
	struct flight *flight;   /* the batch that the launch begins which is being made: its end is marked behind it, */
	uint64_t flight_number;  /* if it is still that one */
	bool measuring;          /* the launch that is being made is measured: its end is marked behind it */
	bool measured;           /* and that was done: wait for it before the next launch */
	uint64_t key, began;
	CUstream measured_in;
	int behind;              /* so often it was not waited for, since the stream is held */
	CUcontext events_of;     /* of the two events */
	uint64_t epoch;
	CUevent events[2];
	uint16_t used[COSTS_BATCH];
};

static inline uint64_t costs_key(const void *function, uint64_t blocks)
{
	uint64_t key = ((uint64_t)(uintptr_t)function + (uint64_t)(63 - __builtin_clzll(blocks | 1))) * 0x9e3779b97f4a7c15ull;
	return key ? key : 1;
}

/* Takes a launch out of the batch; false: it must be looked at. */
static inline bool costs_spend(struct launches *own, uint64_t key)
{
	unsigned place = (unsigned)(key >> 52) % COSTS_PLACES;
	if (own->left <= 0)
		return false;
	if (__builtin_expect(own->unlimited, 0)) {
		if (own->generation != __atomic_load_n(&limits->generation, __ATOMIC_RELAXED))
			return false;
	} else {
		if (__atomic_load_n(&costs[place].key, __ATOMIC_RELAXED) != key &&
		    __atomic_load_n(&costs[place ^= 1].key, __ATOMIC_RELAXED) != key)
			return false;
		uint32_t ns = __atomic_load_n(&costs[place].ns, __ATOMIC_RELAXED);
		if (ns > own->budget_ns || __atomic_load_n(&costs[place].owed, __ATOMIC_RELAXED))
			return false;
		own->budget_ns -= ns;
		own->used[own->left % COSTS_BATCH] = (uint16_t)place;
	}
	own->left--;
	return true;
}

/* The cost of a key; UINT32_MAX: unknown or not trusted. */
uint32_t costs_known(uint64_t key);
void costs_learn(uint64_t key, uint64_t nanoseconds);
/* Launches of these places took much longer than the table says. */
void costs_distrust(const uint16_t *used, int count);

#endif
