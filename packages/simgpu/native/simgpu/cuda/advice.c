/* Hints about where managed memory should lie, and profiler marks: checked, and then without effect. */
#include "cuda.h"

static CUresult managed(CUdeviceptr address, size_t size)
{
	struct allocation found;
	CONTEXT(context);
	(void)context;
	NEED(size && cuda_find(address, &found) && found.kind == KIND_MANAGED && size <= found.start + found.size - address);
	return CUDA_SUCCESS;
}

struct location {
	int type, id;
};

EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, CUstream stream)
{
	(void)device;
	(void)stream;
	return managed(address, size);
}

EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, struct location location, unsigned flags, CUstream stream)
{
	(void)location;
	(void)stream;
	NEED(flags == 0);
	return managed(address, size);
}

EXPORT CUresult cuMemAdvise(CUdeviceptr address, size_t size, int advice, CUdevice device)
{
	(void)device;
	NEED(advice >= 1 && advice <= 6);
	return managed(address, size);
}

EXPORT CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, int advice, struct location location)
{
	(void)location;
	NEED(advice >= 1 && advice <= 6);
	return managed(address, size);
}

PER_THREAD(cuMemPrefetchAsync, _ptsz, (CUdeviceptr address, size_t size, CUdevice device, CUstream stream),
	   (address, size, device, stream))
PER_THREAD(cuMemPrefetchAsync_v2, _ptsz,
	   (CUdeviceptr address, size_t size, struct location location, unsigned flags, CUstream stream),
	   (address, size, location, flags, stream))

EXPORT CUresult cuProfilerStart(void)
{
	CONTEXT(context);
	(void)context;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuProfilerStop(void)
{
	return cuProfilerStart();
}
