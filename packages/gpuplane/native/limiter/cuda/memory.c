/* Linear and managed memory, in two phases: taken in the ledger, asked of the driver, kept or given back. */
#include "cuda.h"

CUresult cuMemFree_v2(CUdeviceptr address);

#define SMALL (1ull << 20)
#define BLOCK (2ull << 20)

/* The driver takes memory in blocks of 2 MiB, and lets small allocations share one. */
uint64_t memory_rounded(uint64_t size)
{
	uint64_t unit = size < SMALL ? 512 : BLOCK;
	return size > UINT64_MAX - unit ? UINT64_MAX : (size + unit - 1) / unit * unit;
}

bool memory_take(int gpu, uint64_t bytes)
{
	if (slots_begin_take(gpu, bytes))
		return true;
	pool_refresh(gpu);
	if (slots_take(gpu, bytes, false))
		return true;
	slots_refused(gpu);
	slots_end_change();
	return false;
}

CUresult memory_settle(CUresult result, enum kind kind, uint64_t key, struct held held)
{
	/* Memory that cannot be remembered stays charged for as long as the process lives: too high, not too low. */
	if (result != CUDA_SUCCESS)
		slots_give_end(held.gpu, held.bytes);
	else
		track_put_end(kind, key, held);
	return result;
}

void memory_drop_context(CUcontext context)
{
	static const enum kind kinds[] = {KIND_ADDRESS, KIND_ARRAY, KIND_MIPMAP};
	struct held held;
	uint64_t key;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		while (track_take_owned(kinds[i], context, &key, &held))
			slots_give(held.gpu, held.bytes, false);
	if (track_take(KIND_CONTEXT, (uint64_t)(uintptr_t)context, &held))
		slots_give(held.gpu, held.bytes, true);
	pool_refresh(-1);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
	CUcontext context;
	NEED_REAL(cuMemAlloc_v2);
	int gpu = cuda_current(&context);
	if (gpu < 0 || !address)
		return REAL(cuMemAlloc_v2)(address, size);
	struct held held = {memory_rounded(size), context, gpu};
	if (!memory_take(gpu, held.bytes))
		return CUDA_OUT_OF_MEMORY;
	CUresult result = REAL(cuMemAlloc_v2)(address, size);
	return memory_settle(result, KIND_ADDRESS, result == CUDA_SUCCESS ? *address : 0, held);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags)
{
	CUcontext context;
	NEED_REAL(cuMemAllocManaged);
	int gpu = cuda_current(&context);
	if (gpu < 0 || !address)
		return REAL(cuMemAllocManaged)(address, size, flags);
	struct held held = {memory_rounded(size), context, gpu};
	if (!memory_take(gpu, held.bytes))
		return CUDA_OUT_OF_MEMORY;
	CUresult result = REAL(cuMemAllocManaged)(address, size, flags);
	return memory_settle(result, KIND_ADDRESS, result == CUDA_SUCCESS ? *address : 0, held);
}

static uint64_t product(uint64_t a, uint64_t b)
{
	uint64_t result;
	return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
	CUcontext context;
	NEED_REAL(cuMemAllocPitch_v2);
	int gpu = cuda_current(&context);
	if (gpu < 0 || !address || !pitch)
		return REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element);
	/* Rows are padded to 512 bytes; should a driver pad more, it is seen afterwards. */
	uint64_t row = width > UINT64_MAX - 511 ? UINT64_MAX : (width + 511) / 512 * 512;
	struct held held = {memory_rounded(product(row, height)), context, gpu};
	if (!memory_take(gpu, held.bytes))
		return CUDA_OUT_OF_MEMORY;
	CUresult result = REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element);
	if (result == CUDA_SUCCESS) {
		uint64_t really = memory_rounded(product(*pitch, height));
		uint64_t more = really > held.bytes ? really - held.bytes : 0;
		held.bytes += more;
		if (more && !slots_found(gpu, more)) {
			REAL(cuMemFree_v2)(*address);
			slots_refused(gpu);
			result = CUDA_OUT_OF_MEMORY;
		}
	}
	return memory_settle(result, KIND_ADDRESS, result == CUDA_SUCCESS ? *address : 0, held);
}

CUresult memory_freed(CUresult result, bool ours, CUdeviceptr address, struct held held)
{
	if (ours && result == CUDA_SUCCESS) {
		slots_give_end(held.gpu, held.bytes);
	} else if (ours) {
		track_put_end(KIND_ADDRESS, address, held);
	} else if (cuda_active) {
		if (result == CUDA_SUCCESS)
			pool_freed(address);
		slots_end_change();
	}
	return result;
}

/* Out of the table first: another thread may get the address as soon as the driver has it back. */
#define FREE(symbol, type)                                                                                             \
	EXPORT CUresult symbol(type address)                                                                            \
	{                                                                                                               \
		struct held held = {0};                                                                                 \
		NEED_REAL(symbol);                                                                                      \
		bool ours = cuda_active && track_begin_take(KIND_ADDRESS, address, &held);                              \
		return memory_freed(REAL(symbol)(address), ours, address, held);                                        \
	}
FREE(cuMemFree_v2, CUdeviceptr)
FREE(cuMemFree, unsigned) /* of before CUDA 3.2, see legacy.c */
