/*
 * Memory by the forms of before CUDA 3.2, with addresses and sizes of 32 bits. Drivers have them still, under the names
 * without a suffix, which a program that looks names up by itself may well take. They count as the newer forms do.
 */
#include "cuda.h"

#include <limits.h>

CUresult cuMemGetInfo_v2(size_t *available, size_t *total);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);

EXPORT CUresult cuMemAlloc(unsigned *address, unsigned size)
{
	CUcontext context;
	NEED_REAL(cuMemAlloc);
	int gpu = cuda_current(&context);
	if (gpu < 0 || !address)
		return REAL(cuMemAlloc)(address, size);
	struct held held = {memory_rounded(size), context, gpu};
	if (!memory_take(gpu, held.bytes))
		return CUDA_OUT_OF_MEMORY;
	CUresult result = REAL(cuMemAlloc)(address, size);
	return memory_settle(result, KIND_ADDRESS, result == CUDA_SUCCESS ? *address : 0, held);
}

EXPORT CUresult cuMemAllocPitch(unsigned *address, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
	CUcontext context;
	NEED_REAL(cuMemAllocPitch);
	int gpu = cuda_current(&context);
	if (gpu < 0 || !address || !pitch)
		return REAL(cuMemAllocPitch)(address, pitch, width, height, element);
	struct held held = {memory_rounded(((uint64_t)width + 511) / 512 * 512 * height), context, gpu};
	if (!memory_take(gpu, held.bytes))
		return CUDA_OUT_OF_MEMORY;
	CUresult result = REAL(cuMemAllocPitch)(address, pitch, width, height, element);
	return memory_settle(result, KIND_ADDRESS, result == CUDA_SUCCESS ? *address : 0, held);
}

static unsigned clamp(uint64_t bytes)
{
	return bytes < UINT_MAX ? (unsigned)bytes : UINT_MAX;
}

EXPORT CUresult cuMemGetInfo(unsigned *available, unsigned *total)
{
	size_t left, all;
	NEED_REAL(cuMemGetInfo);
	CUresult result = REAL(cuMemGetInfo)(available, total);
	int gpu = cuda_current(NULL);
	if (result != CUDA_SUCCESS || gpu < 0 || !slots_limit(gpu) || cuMemGetInfo_v2(&left, &all) != CUDA_SUCCESS)
		return result;
	*available = clamp(left);
	*total = clamp(all);
	return result;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
	size_t all;
	NEED_REAL(cuDeviceTotalMem);
	CUresult result = REAL(cuDeviceTotalMem)(bytes, device);
	if (result == CUDA_SUCCESS && cuDeviceTotalMem_v2(&all, device) == CUDA_SUCCESS)
		*bytes = clamp(all);
	return result;
}
