/*
 * Physical memory by handle (virtual memory management). It lives while its handle is held or any of it is mapped.
 * Handles that were imported are unknown here: who exported them was charged.
 */
#include "cuda.h"

#include <stdlib.h>

struct block {
	uint64_t bytes;
	int gpu;
	unsigned handles, mappings;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

/* With the guard held. */
static void let_go(struct block *block)
{
	if (block->handles || block->mappings)
		return;
	slots_give(block->gpu, block->bytes, false);
	free(block);
}

void handles_forget(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	guard = fresh;
}

EXPORT CUresult cuMemCreate(CUmemHandle *handle, size_t size, const struct memory_properties *properties, unsigned long long flags)
{
	NEED_REAL(cuMemCreate);
	int gpu = handle && properties && properties->location.type == LOCATION_DEVICE ? cuda_gpu(properties->location.id) : -1;
	if (gpu < 0)
		return REAL(cuMemCreate)(handle, size, properties, flags);
	struct block *block = calloc(1, sizeof *block);
	if (!block || !memory_take(gpu, size)) {
		free(block);
		return CUDA_OUT_OF_MEMORY;
	}
	*block = (struct block){size, gpu, 1, 0};
	CUresult result = REAL(cuMemCreate)(handle, size, properties, flags);
	result = memory_settle(result, KIND_HANDLE, result == CUDA_SUCCESS ? *handle : 0, (struct held){size, block, gpu});
	if (result != CUDA_SUCCESS)
		free(block);
	return result;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemHandle *handle, void *address)
{
	struct held held;
	NEED_REAL(cuMemRetainAllocationHandle);
	pthread_mutex_lock(&guard);
	CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
	/* The driver may give the same memory another handle; then the mapping alone keeps it alive here. */
	if (cuda_active && result == CUDA_SUCCESS && track_get(KIND_HANDLE, *handle, &held))
		((struct block *)held.owner)->handles++;
	pthread_mutex_unlock(&guard);
	return result;
}

EXPORT CUresult cuMemRelease(CUmemHandle handle)
{
	struct held held;
	NEED_REAL(cuMemRelease);
	pthread_mutex_lock(&guard);
	bool ours = cuda_active && track_get(KIND_HANDLE, handle, &held);
	if (ours)
		slots_begin_change();
	CUresult result = REAL(cuMemRelease)(handle);
	if (ours && result == CUDA_SUCCESS) {
		struct block *block = held.owner;
		if (!--block->handles)
			track_take(KIND_HANDLE, handle, &held);
		let_go(block);
	}
	if (ours)
		slots_end_change();
	pthread_mutex_unlock(&guard);
	return result;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemHandle handle, unsigned long long flags)
{
	struct held held;
	NEED_REAL(cuMemMap);
	pthread_mutex_lock(&guard);
	CUresult result = REAL(cuMemMap)(address, size, offset, handle, flags);
	if (cuda_active && result == CUDA_SUCCESS && track_get(KIND_HANDLE, handle, &held)) {
		((struct block *)held.owner)->mappings++;
		held.bytes = size;
		track_put(KIND_MAPPING, address, held);
	}
	pthread_mutex_unlock(&guard);
	return result;
}

/* A call may end several mappings that lie side by side. */
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
	struct held held;
	NEED_REAL(cuMemUnmap);
	pthread_mutex_lock(&guard);
	if (cuda_active)
		slots_begin_change();
	CUresult result = REAL(cuMemUnmap)(address, size);
	for (uint64_t at = address; cuda_active && result == CUDA_SUCCESS && at - address < size;) {
		uint64_t step = 64 << 10;
		if (track_take(KIND_MAPPING, at, &held)) {
			struct block *block = held.owner;
			block->mappings--;
			let_go(block);
			step = held.bytes ? held.bytes : step;
		}
		at += step;
	}
	if (cuda_active)
		slots_end_change();
	pthread_mutex_unlock(&guard);
	return result;
}
