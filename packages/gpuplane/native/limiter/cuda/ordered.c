/* Stream-ordered allocation: the calls, and those after which pools have given memory back. */
#include "pool.h"
#include "streams.h"

CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream), cuMemAllocAsync_ptsz(CUdeviceptr *, size_t, CUstream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream), cuMemFreeAsync_ptsz(CUdeviceptr, CUstream);

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
	if (cuda_gpu(device) < 0 || captures_hold(streams_meant(wanted->stream, wanted->per_thread)) ||
	    (!wanted->from_pool && REAL(cuDeviceGetMemPool)(&handle, device) != CUDA_SUCCESS))
		return call_real(wanted);
	pool_lock();
	struct pool *pool = pool_find(handle, device, false);
	pool = pool ? pool : pool_add(handle, device, cuda_gpu(device), false);
	CUresult result = CUDA_OUT_OF_MEMORY;
	slots_begin_change();
	if (pool && pool_take(pool, bytes, &granted)) {
		result = call_real(wanted);
		if (result == CUDA_SUCCESS)
			track_put(KIND_STREAM_ORDERED, *wanted->address, (struct held){bytes, pool, pool->gpu});
		bool fits = pool->gpu < 0 || pool_reconcile(pool, granted);
		if (result == CUDA_SUCCESS && !fits) {
			/* The pool took more than was asked for, and that is too much. */
			call_free(wanted);
			__atomic_store_n(&pool_dirty, true, __ATOMIC_RELAXED);
			slots_refused(pool->gpu);
			result = CUDA_OUT_OF_MEMORY;
		}
	}
	slots_end_change();
	pool_unlock();
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
		struct held held = {0};                                                                                 \
		NEED_REAL(symbol);                                                                                      \
		bool ours = cuda_active && track_begin_take(KIND_ADDRESS, address, &held);                              \
		return memory_freed(REAL(symbol)(address, stream), ours, address, held);                                \
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
	pool_lock();
	/* One in the host's memory is known too, so that it is not taken for one of the current device. */
	pool_add(*pool, on_device ? properties->location.id : -1, on_device ? cuda_gpu(properties->location.id) : -1, false);
	pool_unlock();
	return result;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	NEED_REAL(cuMemPoolDestroy);
	pool_lock();
	struct pool *pool = cuda_active ? pool_find(handle, -1, false) : NULL;
	uint64_t used = pool ? pool_used(pool) : 0;
	CUresult result = REAL(cuMemPoolDestroy)(handle);
	if (pool && result == CUDA_SUCCESS)
		pool_destroyed(pool, used);
	pool_unlock();
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
		if (__atomic_load_n(&pool_dirty, __ATOMIC_RELAXED))                                                          \
			pool_refresh(-1);                                                                               \
		return result;                                                                                          \
	}
SYNCHRONIZE(cuStreamSynchronize, (CUstream stream), (stream))
SYNCHRONIZE(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
SYNCHRONIZE(cuCtxSynchronize, (void), ())
SYNCHRONIZE(cuCtxSynchronize_v2, (CUcontext context), (context))
SYNCHRONIZE(cuEventSynchronize, (CUevent event), (event))
