/* Pools of stream-ordered memory: what is known of them (pool.c), and the calls that use them (ordered.c). */
#ifndef GPUPLANE_POOL_H
#define GPUPLANE_POOL_H

#include "cuda.h"

struct pool {
	CUmemoryPool handle; /* NULL: the graphs' memory of the device, or a pool that was destroyed while in use */
	CUdevice device;
	int gpu; /* -1: not charged */
	bool graphs;
	uint64_t charged;
	struct pool *next;
};

/* All below are called between these two. */
void pool_lock(void);
void pool_unlock(void);

struct pool *pool_find(CUmemoryPool handle, CUdevice device, bool graphs);
struct pool *pool_add(CUmemoryPool handle, CUdevice device, int gpu, bool graphs);
void pool_destroyed(struct pool *pool, uint64_t used);
uint64_t pool_used(const struct pool *pool);
/* The unused reserve of the pool is enough, or more is charged in the ledger. False: that does not fit. */
bool pool_take(struct pool *pool, uint64_t bytes, uint64_t *granted);
/* Charges what is reserved now instead of what was, of which `granted` is new. False: that is above the limit. */
bool pool_reconcile(struct pool *pool, uint64_t granted);
/* Something was freed, so less may be reserved after the next synchronization. */
extern bool pool_dirty;

#endif
