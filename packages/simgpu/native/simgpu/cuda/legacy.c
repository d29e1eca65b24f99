/*
 * The forms of before CUDA 3.2, 4.0 and 11.0 that drivers still have: memory by addresses and sizes of 32 bits, contexts
 * with a count of their holders. Their results follow the documentation of CUDA 3.1.
 */
#include "cuda.h"

#include <limits.h>

CUresult cuCtxCreate_v2(CUcontext *result, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemGetInfo_v2(size_t *available, size_t *total);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags);

static unsigned clamp(size_t bytes)
{
	return bytes < UINT_MAX ? (unsigned)bytes : UINT_MAX;
}

EXPORT CUresult cuCtxCreate(CUcontext *result, unsigned flags, CUdevice device)
{
	return cuCtxCreate_v2(result, flags, device);
}

EXPORT CUresult cuCtxAttach(CUcontext *result, unsigned flags)
{
	NEED(result && flags == 0);
	CONTEXT(context);
	context->attached++;
	*result = context;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDetach(CUcontext context)
{
	READY();
	if (!context || context->magic != MAGIC_CONTEXT || context->destroyed)
		return CUDA_INVALID_CONTEXT;
	if (context->attached) {
		context->attached--;
		return CUDA_SUCCESS;
	}
	return cuCtxDestroy_v2(context);
}

EXPORT CUresult cuCtxDestroy(CUcontext context)
{
	READY();
	if (!context || context->magic != MAGIC_CONTEXT || context->attached)
		return CUDA_INVALID_CONTEXT;
	return cuCtxDestroy_v2(context);
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return cuDevicePrimaryCtxRelease_v2(device);
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	return cuDevicePrimaryCtxReset_v2(device);
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
	return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

/* In the low 2 GiB of addresses, which the system offers to programs that ask for addresses of 32 bits. */
EXPORT CUresult cuMemAlloc(unsigned *address, unsigned size)
{
	uint64_t wide;
	NEED(address);
	CONTEXT(context);
	CUresult result = cuda_allocate(context, size, KIND_DEVICE, ALLOCATE_LOW, NULL, &wide);
	if (result == CUDA_SUCCESS && wide > UINT_MAX) {
		cuda_release(wide, false);
		result = CUDA_OUT_OF_MEMORY;
	}
	if (result == CUDA_SUCCESS)
		*address = (unsigned)wide;
	return result;
}

EXPORT CUresult cuMemAllocPitch(unsigned *address, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
	NEED(address && pitch && width && height && (element == 4 || element == 8 || element == 16));
	uint64_t row = ((uint64_t)width + 511) / 512 * 512;
	NEED(row * height <= UINT_MAX);
	CUresult result = cuMemAlloc(address, (unsigned)(row * height));
	if (result == CUDA_SUCCESS)
		*pitch = (unsigned)row;
	return result;
}

EXPORT CUresult cuMemFree(unsigned address)
{
	return cuMemFree_v2(address);
}

EXPORT CUresult cuMemGetInfo(unsigned *available, unsigned *total)
{
	size_t left, all;
	NEED(available && total);
	CUresult result = cuMemGetInfo_v2(&left, &all);
	if (result == CUDA_SUCCESS) {
		*available = clamp(left);
		*total = clamp(all);
	}
	return result;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
	size_t all;
	NEED(bytes);
	CUresult result = cuDeviceTotalMem_v2(&all, device);
	if (result == CUDA_SUCCESS)
		*bytes = clamp(all);
	return result;
}
