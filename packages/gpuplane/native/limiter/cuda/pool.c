/*
 * Stream-ordered memory. A pool keeps what is freed, and gives it back when it pleases, so what is charged is what the
 * pool has reserved, not what is allocated from it. The memory of graphs is a pool too, one for each device.
 */
#include "pool.h"

#include <stdlib.h>

enum { POOL_RESERVED = 5, POOL_USED = 7, GRAPH_USED = 0, GRAPH_RESERVED = 2 };

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;
bool pool_dirty;

static uint64_t attribute(const struct pool *pool, int of_pool, int of_graphs)
{
	uint64_t value = 0;
	if (pool->graphs) {
		if (!HAS(cuDeviceGetGraphMemAttribute) ||
		    REAL(cuDeviceGetGraphMemAttribute)(pool->device, of_graphs, &value) != CUDA_SUCCESS)
			return 0;
	} else if (!pool->handle || REAL(cuMemPoolGetAttribute)(pool->handle, of_pool, &value) != CUDA_SUCCESS) {
		return pool->charged;
	}
	return value;
}

struct pool *pool_find(CUmemoryPool handle, CUdevice device, bool graphs)
{
	for (struct pool *pool = pools; pool; pool = pool->next)
		if (pool->graphs == graphs && (graphs ? pool->device == device : pool->handle == handle))
			return pool;
	return NULL;
}

struct pool *pool_add(CUmemoryPool handle, CUdevice device, int gpu, bool graphs)
{
	struct pool *pool = calloc(1, sizeof *pool);
	if (!pool)
		return NULL;
	*pool = (struct pool){.handle = handle, .device = device, .gpu = gpu, .graphs = graphs, .next = pools};
	return pools = pool;
}

bool pool_reconcile(struct pool *pool, uint64_t granted)
{
	uint64_t had = pool->charged + granted, has = attribute(pool, POOL_RESERVED, GRAPH_RESERVED);
	pool->charged = has;
	if (has < had)
		slots_give(pool->gpu, had - has, false);
	return has <= had || slots_found(pool->gpu, has - had);
}

static void refresh(int gpu)
{
	__atomic_store_n(&pool_dirty, false, __ATOMIC_RELAXED);
	for (struct pool *pool = pools; pool; pool = pool->next)
		if (pool->gpu >= 0 && (gpu < 0 || pool->gpu == gpu))
			pool_reconcile(pool, 0);
}

bool pool_take(struct pool *pool, uint64_t bytes, uint64_t *granted)
{
	uint64_t reserved = attribute(pool, POOL_RESERVED, GRAPH_RESERVED), used = attribute(pool, POOL_USED, GRAPH_USED);
	*granted = 0;
	if (pool->gpu < 0 || (reserved >= used && reserved - used >= bytes))
		return true;
	if (!slots_take(pool->gpu, bytes, false)) {
		refresh(pool->gpu);
		if (!slots_take(pool->gpu, bytes, false)) {
			slots_refused(pool->gpu);
			return false;
		}
	}
	*granted = bytes;
	return true;
}

uint64_t pool_used(const struct pool *pool)
{
	return attribute(pool, POOL_USED, GRAPH_USED);
}

/* Unused memory is released at once, the rest when it is freed. */
void pool_destroyed(struct pool *pool, uint64_t used)
{
	if (pool->gpu >= 0 && used < pool->charged) {
		slots_give(pool->gpu, pool->charged - used, false);
		pool->charged = used;
	}
	pool->handle = NULL;
	if (pool->charged)
		return;
	/* Allocations that went with a context are still known by their addresses. */
	struct held held;
	uint64_t key;
	while (track_take_owned(KIND_STREAM_ORDERED, pool, &key, &held))
		;
	for (struct pool **at = &pools; *at; at = &(*at)->next)
		if (*at == pool) {
			*at = pool->next;
			break;
		}
	free(pool);
}

void pool_lock(void)
{
	pthread_mutex_lock(&guard);
}

void pool_unlock(void)
{
	pthread_mutex_unlock(&guard);
}

void pool_refresh(int gpu)
{
	pthread_mutex_lock(&guard);
	refresh(gpu);
	pthread_mutex_unlock(&guard);
}

void pool_forget(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	guard = fresh;
	pools = NULL;
	pool_dirty = false;
}

void pool_freed(CUdeviceptr address)
{
	struct held held;
	bool ours = track_take(KIND_STREAM_ORDERED, address, &held);
	__atomic_store_n(&pool_dirty, true, __ATOMIC_RELAXED);
	if (!ours) /* of a graph, or imported */
		return;
	struct pool *pool = held.owner;
	pthread_mutex_lock(&guard);
	if (!pool->handle) { /* a destroyed pool does not report what it still holds */
		uint64_t less = held.bytes < pool->charged ? held.bytes : pool->charged;
		pool->charged -= less;
		slots_give(pool->gpu, less, false);
	}
	pthread_mutex_unlock(&guard);
}

bool pool_take_graph(CUdevice device, uint64_t bytes, uint64_t *granted)
{
	int gpu = cuda_gpu(device);
	*granted = 0;
	if (gpu < 0)
		return true;
	pthread_mutex_lock(&guard);
	struct pool *pool = pool_find(NULL, device, true);
	pool = pool ? pool : pool_add(NULL, device, gpu, true);
	bool taken = pool && pool_take(pool, bytes, granted);
	pthread_mutex_unlock(&guard);
	return taken;
}

void pool_settle_graph(CUdevice device, uint64_t granted)
{
	pthread_mutex_lock(&guard);
	struct pool *pool = pool_find(NULL, device, true);
	if (pool)
		pool_reconcile(pool, granted);
	pthread_mutex_unlock(&guard);
}
