/*
 * Calls the interposed driver's functions in random order with arguments that are random, wrong or those of before, from
 * several threads, and compares the ledger with what it has counted itself. Built together with the limiter's sources and
 * sanitizers; the driver behind it is the simulated one.
 *
 *     fuzz SEED CALLS
 */
#include "../../native/limiter/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 3
#define KEPT 64

CUresult cuInit(unsigned), cuCtxCreate_v2(CUcontext *, unsigned, CUdevice), cuCtxDestroy_v2(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t), cuMemFree_v2(CUdeviceptr), cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream), cuMemAllocAsync_ptsz(CUdeviceptr *, size_t, CUstream);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream), cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemPoolCreate(CUmemoryPool *, const struct pool_properties *), cuMemPoolDestroy(CUmemoryPool);
CUresult cuMemPoolTrimTo(CUmemoryPool, size_t), cuMemGetInfo_v2(size_t *, size_t *), cuDeviceTotalMem_v2(size_t *, CUdevice);
CUresult cuMemCreate(CUmemHandle *, size_t, const struct memory_properties *, unsigned long long), cuMemRelease(CUmemHandle);
CUresult cuMemUnmap(CUdeviceptr, size_t), cuMemMap(CUdeviceptr, size_t, size_t, CUmemHandle, unsigned long long);
CUresult cuMemRetainAllocationHandle(CUmemHandle *, void *);
CUresult cuArrayCreate_v2(CUarray *, const struct array_descriptor *), cuArrayDestroy(CUarray);
CUresult cuArray3DCreate_v2(CUarray *, const struct array3d_descriptor *);
CUresult cuMipmappedArrayCreate(CUmipmappedArray *, const struct array3d_descriptor *, unsigned);
CUresult cuMipmappedArrayDestroy(CUmipmappedArray), cuStreamSynchronize(CUstream), cuCtxSynchronize(void);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice), cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *), cuGetProcAddress(const char *, void **, int, uint64_t);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuGraphLaunch(CUgraphExec, CUstream), cuLaunchKernelEx(const struct launch_config *, CUfunction, void **, void **);
CUresult cuLaunchCooperativeKernelMultiDevice(struct launch_parameters *, unsigned, unsigned), cuDeviceGraphMemTrim(CUdevice);

struct mine {
	uint64_t state;
	unsigned long calls;
	CUcontext context;
	CUdeviceptr addresses[KEPT];
	CUmemHandle handles[KEPT];
	CUarray arrays[KEPT];
	CUmemoryPool pool;
};

static uint64_t next(struct mine *self)
{
	self->state ^= self->state << 13;
	self->state ^= self->state >> 7;
	self->state ^= self->state << 17;
	return self->state;
}

/* A size: small, at the limit, or senseless. */
static size_t any_size(struct mine *self)
{
	static const size_t odd[] = {0, 1, 511, 512, 513, 2 << 20, SIZE_MAX, SIZE_MAX - 511, 1ull << 63, 1ull << 40};
	uint64_t n = next(self);
	return n % 5 ? next(self) % (8u << 20) : odd[n / 5 % (sizeof odd / sizeof *odd)];
}

static void one_call(struct mine *self)
{
	static const char *const names[] = {"cuMemAlloc", "cuLaunchKernel", "", "cuGetProcAddress", "cu", "cuMemFree\n", "cuInit"};
	static const int formats[] = {0, 1, 0x20, 0x77, -1, 0x10};
	size_t a, b;
	void *found;
	int status;
	CUdeviceptr *address = &self->addresses[next(self) % KEPT];
	CUmemHandle *handle = &self->handles[next(self) % KEPT];
	CUarray *array = &self->arrays[next(self) % KEPT];
	CUcontext other;
	struct pool_properties pool = {.type = 1, .location = {(int)(next(self) % 3), (int)(next(self) % 3) - 1}};
	struct memory_properties memory = {.type = 1, .location = {1, (int)(next(self) % 4) - 1}};
	struct array_descriptor flat = {any_size(self) % 5000, next(self) % 5000, formats[next(self) % 6], (unsigned)(next(self) % 6)};
	struct array3d_descriptor deep = {any_size(self), any_size(self), any_size(self), formats[next(self) % 6],
					  (unsigned)(next(self) % 6), (unsigned)next(self)};
	switch (next(self) % 30) {
	case 0: case 1: case 2: if (!*address && cuMemAlloc_v2(address, any_size(self))) *address = 0; break;
	case 3: case 4: case 5: if (!cuMemFree_v2(*address)) *address = 0; break;
	case 6: if (!*address && cuMemAllocManaged(address, any_size(self), 1)) *address = 0; break;
	case 7: if (!*address && cuMemAllocPitch_v2(address, &a, any_size(self), any_size(self), 4)) *address = 0; break;
	case 8: if (!*address && cuMemAllocAsync(address, any_size(self), NULL)) *address = 0; break;
	case 9: if (!*address && cuMemAllocAsync_ptsz(address, any_size(self), NULL)) *address = 0; break;
	case 10: if (!cuMemFreeAsync(*address, NULL)) *address = 0; break;
	case 11: if (!self->pool && cuMemPoolCreate(&self->pool, &pool)) self->pool = NULL; break;
	case 12: if (self->pool && !cuMemPoolDestroy(self->pool)) self->pool = NULL; break;
	case 13: if (!*address && self->pool && cuMemAllocFromPoolAsync(address, any_size(self), self->pool, NULL)) *address = 0; break;
	case 14: cuMemPoolTrimTo(self->pool, 0); break;
	case 15: if (!*handle && cuMemCreate(handle, any_size(self) >> 21 << 21, &memory, 0)) *handle = 0; break;
	case 16: if (!*handle || !cuMemRelease(*handle)) *handle = 0; break;
	case 17: cuMemUnmap(next(self), any_size(self) % (64u << 20)); break;
	case 18: cuMemMap(next(self), any_size(self), 0, *handle, 0); break;
	case 19: if (!*array && cuArrayCreate_v2(array, &flat)) *array = NULL; break;
	case 20: if (!*array && cuArray3DCreate_v2(array, &deep)) *array = NULL; break;
	case 21: if (!cuArrayDestroy(*array)) *array = NULL; break;
	case 22: cuMipmappedArrayCreate((CUmipmappedArray *)&found, &deep, (unsigned)next(self) | 64); break;
	case 23: cuMemGetInfo_v2(next(self) % 4 ? &a : NULL, &b); cuDeviceTotalMem_v2(next(self) % 4 ? &a : NULL, (CUdevice)next(self)); break;
	case 24: cuGetProcAddress_v2(names[next(self) % 7], next(self) % 8 ? &found : NULL, (int)next(self) % 20000, next(self) % 4, &status); break;
	case 25: cuGetProcAddress(next(self) % 8 ? names[next(self) % 7] : NULL, &found, (int)next(self), next(self)); break;
	case 26: cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); cuLaunchKernelEx(NULL, NULL, NULL, NULL); break;
	case 27: cuGraphLaunch(NULL, NULL); cuLaunchCooperativeKernelMultiDevice(NULL, (unsigned)next(self) % 3, 0); break;
	case 28: cuStreamSynchronize(NULL); cuDeviceGraphMemTrim((CUdevice)next(self) % 3); break;
	case 29:
		if (next(self) % 16 || cuDevicePrimaryCtxRetain(next(self) % 4 ? &other : NULL, (CUdevice)(next(self) % 3) - 1))
			break;
		cuDevicePrimaryCtxRelease_v2(0);
	}
	/* Whatever was asked: within the limit. */
	if (slots_sum(0) > slots_limit(0)) {
		fprintf(stderr, "%llu bytes are held above the limit\n", (unsigned long long)(slots_sum(0) - slots_limit(0)));
		abort();
	}
}

static pthread_barrier_t begun; /* contexts cost memory too: all are there before it is all taken */

static void *run(void *argument)
{
	struct mine *self = argument;
	CUresult result = cuCtxCreate_v2(&self->context, 0, 0);
	if (result) {
		fprintf(stderr, "no context: %d\n", result);
		abort();
	}
	pthread_barrier_wait(&begun);
	for (unsigned long i = 0; i < self->calls; i++)
		one_call(self);
	/* Everything back: then nothing is held. */
	for (int i = 0; i < KEPT; i++) {
		if (self->addresses[i])
			cuMemFree_v2(self->addresses[i]);
		if (self->handles[i])
			cuMemRelease(self->handles[i]);
		if (self->arrays[i])
			cuArrayDestroy(self->arrays[i]);
	}
	if (self->pool)
		cuMemPoolDestroy(self->pool);
	cuCtxSynchronize();
	return NULL;
}

int main(int count, char **words)
{
	static struct mine threads[THREADS];
	pthread_t ids[THREADS];
	if (count < 3 || cuInit(0))
		return 2;
	pthread_barrier_init(&begun, NULL, THREADS);
	for (int i = 0; i < THREADS; i++) {
		threads[i].state = strtoull(words[1], NULL, 10) * 0x9e3779b97f4a7c15ull + (uint64_t)i + 1;
		threads[i].calls = strtoul(words[2], NULL, 10);
		pthread_create(&ids[i], NULL, run, &threads[i]);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(ids[i], NULL);
	for (int i = 0; i < THREADS; i++)
		cuCtxDestroy_v2(threads[i].context);
	printf("%llu\n", (unsigned long long)slots_sum(0));
	return 0;
}
