/*
 * Stream-ordered memory. A pool keeps what is freed, and gives it back when it pleases, so what is charged is what the
 * pool has reserved, not what is allocated from it. The memory of graphs is a pool too, one for each device.
 */
#include "cuda.h"

#include <stdlib.h>

CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream), cuMemAllocAsync_ptsz(CUdeviceptr *, size_t, CUstream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream), cuMemFreeAsync_ptsz(CUdeviceptr, CUstream);

enum { POOL_RESERVED = 5, POOL_USED = 7, GRAPH_USED = 0, GRAPH_RESERVED = 2 };

struct pool {
	CUmemoryPool handle; /* NULL: the graphs' memory of the device, or a pool that was destroyed while in use */
	CUdevice device;
	int gpu; /* -1: not charged */
	bool graphs;
	uint64_t charged;
	struct pool *next;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;
static bool dirty; /* something was freed, so less may be reserved after the next synchronization */

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

/* The functions below are called with the guard held. */

static struct pool *find(CUmemoryPool handle, CUdevice device, bool graphs)
{
	for (struct pool *pool = pools; pool; pool = pool->next)
		if (pool->graphs == graphs && (graphs ? pool->device == device : pool->handle == handle))
			return pool;
	return NULL;
}

static struct pool *add(CUmemoryPool handle, CUdevice device, int gpu, bool graphs)
{
	struct pool *pool = calloc(1, sizeof *pool);
	if (!pool)
		return NULL;
	*pool = (struct pool){.handle = handle, .device = device, .gpu = gpu, .graphs = graphs, .next = pools};
	return pools = pool;
}

/* Charges what is reserved now instead of what was, of which `granted` is new. False: that is above the limit. */
static bool reconcile(struct pool *pool, uint64_t granted)
{
	uint64_t had = pool->charged + granted, has = attribute(pool, POOL_RESERVED, GRAPH_RESERVED);
	pool->charged = has;
	if (has < had)
		slots_give(pool->gpu, had - has, false);
	return has <= had || slots_found(pool->gpu, has - had);
}

static void refresh(int gpu)
{
	__atomic_store_n(&dirty, false, __ATOMIC_RELAXED);
	for (struct pool *pool = pools; pool; pool = pool->next)
		if (pool->gpu >= 0 && (gpu < 0 || pool->gpu == gpu))
			reconcile(pool, 0);
}

/* What the pool has reserved and does not use is enough, or more is taken in the ledger. */
static bool take(struct pool *pool, uint64_t bytes, uint64_t *granted)
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
	dirty = false;
}

void pool_freed(CUdeviceptr address)
{
	struct held held;
	bool ours = track_take(KIND_STREAM_ORDERED, address, &held);
	__atomic_store_n(&dirty, true, __ATOMIC_RELAXED);
	if (!ours) /* of a graph, or imported */
		return;
	struct pool *pool = held.owner;
	pthread_mutex_lock(&guard);
	if (!pool->handle) { /* nobody can ask a destroyed pool what it still holds */
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
	struct pool *pool = find(NULL, device, true);
	pool = pool ? pool : add(NULL, device, gpu, true);
	bool taken = pool && take(pool, bytes, granted);
	pthread_mutex_unlock(&guard);
	return taken;
}

void pool_settle_graph(CUdevice device, uint64_t granted)
{
	pthread_mutex_lock(&guard);
	struct pool *pool = find(NULL, device, true);
	if (pool)
		reconcile(pool, granted);
	pthread_mutex_unlock(&guard);
}

struct request {
	CUdeviceptr *address;
	size_t size;
	CUmemoryPool pool;
	CUstream stream;
	bool from_pool, per_thread;
};

static CUresult call_real(const struct request *wanted)
{
	if (wanted->from_pool && wanted->per_thread)
		return REAL(cuMemAllocFromPoolAsync_ptsz)(wanted->address, wanted->size, wanted->pool, wanted->stream);
	if (wanted->from_pool)
		return REAL(cuMemAllocFromPoolAsync)(wanted->address, wanted->size, wanted->pool, wanted->stream);
	if (wanted->per_thread)
		return REAL(cuMemAllocAsync_ptsz)(wanted->address, wanted->size, wanted->stream);
	return REAL(cuMemAllocAsync)(wanted->address, wanted->size, wanted->stream);
}

static void call_free(const struct request *done)
{
	if (done->per_thread)
		REAL(cuMemFreeAsync_ptsz)(*done->address, done->stream);
	else
		REAL(cuMemFreeAsync)(*done->address, done->stream);
}

static CUresult allocate(const struct request *wanted)
{
	uint64_t granted = 0, bytes = memory_rounded(wanted->size);
	CUmemoryPool handle = wanted->pool;
	CUdevice device = cuda_active && wanted->address ? cuda_stream_device(wanted->stream) : -1;
	/* In a capture it becomes a node of a graph, which takes memory when it is launched. */
	if (cuda_gpu(device) < 0 || cuda_capturing(wanted->stream, wanted->per_thread) ||
	    (!wanted->from_pool && REAL(cuDeviceGetMemPool)(&handle, device) != CUDA_SUCCESS))
		return call_real(wanted);
	pthread_mutex_lock(&guard);
	struct pool *pool = find(handle, device, false);
	pool = pool ? pool : add(handle, device, cuda_gpu(device), false);
	CUresult result = CUDA_OUT_OF_MEMORY;
	if (pool && take(pool, bytes, &granted)) {
		result = call_real(wanted);
		if (result == CUDA_SUCCESS)
			track_put(KIND_STREAM_ORDERED, *wanted->address, (struct held){bytes, pool, pool->gpu});
		bool fits = pool->gpu < 0 || reconcile(pool, granted);
		if (result == CUDA_SUCCESS && !fits) {
			/* The pool took more than was asked for, and that is too much. */
			call_free(wanted);
			__atomic_store_n(&dirty, true, __ATOMIC_RELAXED);
			slots_refused(pool->gpu);
			result = CUDA_OUT_OF_MEMORY;
		}
	}
	pthread_mutex_unlock(&guard);
	return result;
}

#define ALLOCATE(symbol, ptsz)                                                                                         \
	EXPORT CUresult symbol(CUdeviceptr *address, size_t size, CUstream stream)                                      \
	{                                                                                                               \
		NEED_REAL(symbol);                                                                                      \
		return allocate(&(struct request){address, size, NULL, stream, false, ptsz});                           \
	}
ALLOCATE(cuMemAllocAsync, false)
ALLOCATE(cuMemAllocAsync_ptsz, true)

#define ALLOCATE_FROM(symbol, ptsz)                                                                                    \
	EXPORT CUresult symbol(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)                   \
	{                                                                                                               \
		NEED_REAL(symbol);                                                                                      \
		return allocate(&(struct request){address, size, pool, stream, true, ptsz});                            \
	}
ALLOCATE_FROM(cuMemAllocFromPoolAsync, false)
ALLOCATE_FROM(cuMemAllocFromPoolAsync_ptsz, true)

#define FREE(symbol)                                                                                                   \
	EXPORT CUresult symbol(CUdeviceptr address, CUstream stream)                                                    \
	{                                                                                                               \
		struct held held;                                                                                       \
		NEED_REAL(symbol);                                                                                      \
		bool ours = cuda_active && track_take(KIND_ADDRESS, address, &held);                                    \
		CUresult result = REAL(symbol)(address, stream);                                                        \
		if (ours && result == CUDA_SUCCESS)                                                                     \
			slots_give(held.gpu, held.bytes, false);                                                        \
		else if (ours)                                                                                          \
			track_put(KIND_ADDRESS, address, held);                                                         \
		else if (cuda_active && result == CUDA_SUCCESS)                                                         \
			pool_freed(address);                                                                            \
		return result;                                                                                          \
	}
FREE(cuMemFreeAsync)
FREE(cuMemFreeAsync_ptsz)

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const struct pool_properties *properties)
{
	NEED_REAL(cuMemPoolCreate);
	CUresult result = REAL(cuMemPoolCreate)(pool, properties);
	if (!cuda_active || result != CUDA_SUCCESS)
		return result;
	bool on_device = properties->location.type == LOCATION_DEVICE;
	pthread_mutex_lock(&guard);
	/* One in the host's memory is known too, so that it is not taken for one of the current device. */
	add(*pool, on_device ? properties->location.id : -1, on_device ? cuda_gpu(properties->location.id) : -1, false);
	pthread_mutex_unlock(&guard);
	return result;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	NEED_REAL(cuMemPoolDestroy);
	pthread_mutex_lock(&guard);
	struct pool *pool = cuda_active ? find(handle, -1, false) : NULL;
	/* What is not in use goes at once, the rest when it is freed. */
	uint64_t used = pool ? attribute(pool, POOL_USED, GRAPH_USED) : 0;
	CUresult result = REAL(cuMemPoolDestroy)(handle);
	if (pool && result == CUDA_SUCCESS) {
		if (pool->gpu >= 0 && used < pool->charged) {
			slots_give(pool->gpu, pool->charged - used, false);
			pool->charged = used;
		}
		pool->handle = NULL;
	}
	pthread_mutex_unlock(&guard);
	return result;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	NEED_REAL(cuMemPoolTrimTo);
	CUresult result = REAL(cuMemPoolTrimTo)(pool, keep);
	pool_refresh(-1);
	return result;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	NEED_REAL(cuDeviceGraphMemTrim);
	CUresult result = REAL(cuDeviceGraphMemTrim)(device);
	pool_refresh(-1);
	return result;
}

/* After these, pools have given back what they do not want to keep. */
#define SYNCHRONIZE(symbol, parameters, arguments)                                                                     \
	EXPORT CUresult symbol parameters                                                                               \
	{                                                                                                               \
		NEED_REAL(symbol);                                                                                      \
		CUresult result = REAL(symbol) arguments;                                                               \
		if (__atomic_load_n(&dirty, __ATOMIC_RELAXED))                                                          \
			pool_refresh(-1);                                                                               \
		return result;                                                                                          \
	}
SYNCHRONIZE(cuStreamSynchronize, (CUstream stream), (stream))
SYNCHRONIZE(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
SYNCHRONIZE(cuCtxSynchronize, (void), ())
SYNCHRONIZE(cuCtxSynchronize_v2, (CUcontext context), (context))
SYNCHRONIZE(cuEventSynchronize, (CUevent event), (event))
