/* Stream-ordered allocation: pools only count; memory is taken and given back at once. */
#include "cuda.h"

#include <stdlib.h>

enum { SETTING_FIRST = 1, SETTING_LAST = 3, THRESHOLD = 4, RESERVED = 5, RESERVED_HIGH = 6, USED = 7, USED_HIGH = 8 };

/* Called with the guard held. */
static struct pool *make(CUdevice device)
{
	struct pool *pool = calloc(1, sizeof *pool);
	if (pool)
		*pool = (struct pool){.magic = MAGIC_POOL, .device = device, .settings = {0, 1, 1, 1}};
	return pool;
}

static CUresult default_pool(CUdevice device, bool chosen, struct pool **result)
{
	CUresult status = cuda_valid_device(device);
	if (status != CUDA_SUCCESS)
		return status;
	struct device *own = &cuda_devices[device];
	pthread_mutex_lock(&cuda_guard);
	if (!own->default_pool)
		own->default_pool = make(device);
	*result = chosen && own->pool ? own->pool : own->default_pool;
	pthread_mutex_unlock(&cuda_guard);
	return *result ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	NEED(pool);
	return default_pool(device, false, pool);
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	NEED(pool);
	return default_pool(device, true, pool);
}

#define POOL(pool)                                                                                                     \
	READY();                                                                                                        \
	if (!(pool) || (pool)->magic != MAGIC_POOL)                                                                     \
	return CUDA_INVALID_VALUE

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	CUresult status = cuda_valid_device(device);
	if (status != CUDA_SUCCESS)
		return status;
	POOL(pool);
	NEED(pool->device == device);
	cuda_devices[device].pool = pool;
	return CUDA_SUCCESS;
}

struct pool_properties {
	int type, handle_types;
	struct { int type, id; } location;
	void *security;
	size_t most;
	unsigned short usage;
	unsigned char reserved[54];
};

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const struct pool_properties *properties)
{
	NEED(pool && properties);
	CUresult status = cuda_valid_device(properties->location.id);
	if (status != CUDA_SUCCESS)
		return status;
	if (properties->handle_types || properties->location.type != 1) /* no sharing, GPU memory only */
		return CUDA_NOT_SUPPORTED;
	*pool = make(properties->location.id);
	return *pool ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	POOL(pool);
	struct device *own = &cuda_devices[pool->device];
	NEED(pool != own->default_pool);
	if (own->pool == pool)
		own->pool = NULL;
	/* Allocations that still live keep counting in it, so the struct stays. */
	pool->magic = 0;
	if (!pool->used)
		free(pool);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	POOL(pool);
	(void)keep; /* unused memory is released */
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	NEED(value);
	POOL(pool);
	if (attribute >= SETTING_FIRST && attribute <= SETTING_LAST) {
		*(int *)value = (int)pool->settings[attribute];
		return CUDA_SUCCESS;
	}
	switch (attribute) {
	case THRESHOLD: *(uint64_t *)value = pool->threshold; return CUDA_SUCCESS;
	case RESERVED: case USED: *(uint64_t *)value = pool->used; return CUDA_SUCCESS;
	case RESERVED_HIGH: case USED_HIGH: *(uint64_t *)value = pool->used_high; return CUDA_SUCCESS;
	}
	return CUDA_INVALID_VALUE;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	NEED(value);
	POOL(pool);
	if (attribute >= SETTING_FIRST && attribute <= SETTING_LAST)
		pool->settings[attribute] = *(int *)value != 0;
	else if (attribute == THRESHOLD)
		pool->threshold = *(uint64_t *)value;
	else if (attribute == RESERVED_HIGH || attribute == USED_HIGH)
		pool->used_high = pool->used;
	else
		return CUDA_INVALID_VALUE;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream handle)
{
	struct context *context;
	struct stream *stream;
	NEED(address);
	CUresult result = cuda_stream(handle, &context, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	POOL(pool);
	bool captured;
	result = cuda_capture_allocation(stream, size, address, &captured);
	if (result != CUDA_SUCCESS || captured)
		return result;
	return cuda_allocate(context, size, KIND_DEVICE, 0, pool, address);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream handle)
{
	struct context *context;
	struct stream *stream;
	struct pool *pool;
	bool captured = false;
	NEED(address);
	CUresult result = cuda_stream(handle, &context, &stream);
	if (result == CUDA_SUCCESS)
		result = cuda_capture_allocation(stream, size, address, &captured);
	if (captured)
		return result;
	if (result == CUDA_SUCCESS)
		result = default_pool(context->device, true, &pool);
	return result == CUDA_SUCCESS ? cuda_allocate(context, size, KIND_DEVICE, 0, pool, address) : result;
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
	struct context *context;
	struct stream *stream;
	bool captured = false;
	CUresult result = cuda_stream(handle, &context, &stream);
	if (result == CUDA_SUCCESS)
		result = cuda_capture_free(stream, address, &captured);
	if (captured)
		return result;
	return result == CUDA_SUCCESS ? cuda_release(address, false) : result;
}

PER_THREAD(cuMemAllocAsync, _ptsz, (CUdeviceptr *address, size_t size, CUstream handle), (address, size, handle))
PER_THREAD(cuMemAllocFromPoolAsync, _ptsz, (CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream handle),
	   (address, size, pool, handle))
PER_THREAD(cuMemFreeAsync, _ptsz, (CUdeviceptr address, CUstream handle), (address, handle))
