/* Contexts: they cost memory, and take what was allocated in them along when they end. */
#include "gate.h"

/* False: it does not fit. */
static bool begin(CUdevice device, struct held *cost)
{
	*cost = (struct held){.gpu = cuda_gpu(device)};
	if (cost->gpu < 0)
		return true;
	cost->bytes = LOAD(limits->gpus[cost->gpu].context_bytes);
	if (slots_take(cost->gpu, cost->bytes, true))
		return true;
	pool_refresh(cost->gpu);
	if (slots_take(cost->gpu, cost->bytes, true))
		return true;
	slots_refused(cost->gpu);
	return false;
}

static CUresult begun(CUresult result, CUcontext context, struct held cost)
{
	if (cost.gpu < 0)
		return result;
	if (result != CUDA_SUCCESS)
		slots_give(cost.gpu, cost.bytes, true);
	else
		track_put(KIND_CONTEXT, (uint64_t)(uintptr_t)context, cost);
	return result;
}

#define CREATE(symbol, device, ...)                                                                                    \
	struct held cost;                                                                                               \
	NEED_REAL(symbol);                                                                                              \
	if (cuda_forbidden(device))                                                                                     \
		return CUDA_DEVICE_UNAVAILABLE;                                                                         \
	if (!context)                                                                                                   \
		return REAL(symbol)(__VA_ARGS__);                                                                       \
	if (!begin(device, &cost))                                                                                      \
		return CUDA_OUT_OF_MEMORY;                                                                              \
	CUresult result = REAL(symbol)(__VA_ARGS__);                                                                    \
	return begun(result, result == CUDA_SUCCESS ? *context : NULL, cost)

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
	CREATE(cuCtxCreate_v2, device, context, flags, device);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device)
{
	CREATE(cuCtxCreate_v3, device, context, affinity, count, flags, device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device)
{
	CREATE(cuCtxCreate_v4, device, context, parameters, flags, device);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
	NEED_REAL(cuCtxDestroy_v2);
	gate_leave(context);
	CUresult result = REAL(cuCtxDestroy_v2)(context);
	/* A context that a kernel broke says so here too, and is destroyed all the same. */
	if (cuda_active && result != CUDA_INVALID_VALUE && result != CUDA_INVALID_CONTEXT && result != CUDA_NOT_INITIALIZED &&
	    result != CUDA_DEINITIALIZED)
		memory_drop_context(context);
	return result;
}

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static CUcontext primaries[DEVICES];

void context_forget(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	guard = fresh;
	for (int i = 0; i < DEVICES; i++)
		primaries[i] = NULL;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	NEED_REAL(cuDevicePrimaryCtxRetain);
	if (cuda_forbidden(device))
		return CUDA_DEVICE_UNAVAILABLE;
	if (!context || cuda_gpu(device) < 0)
		return REAL(cuDevicePrimaryCtxRetain)(context, device);
	pthread_mutex_lock(&guard);
	struct held cost = {.gpu = -1};
	CUresult result = CUDA_OUT_OF_MEMORY;
	if (primaries[device] || begin(device, &cost)) {
		result = REAL(cuDevicePrimaryCtxRetain)(context, device);
		result = begun(result, *context, cost);
	}
	if (result == CUDA_SUCCESS)
		primaries[device] = *context;
	pthread_mutex_unlock(&guard);
	return result;
}

/* After a release or reset: if the primary context is no more, nothing of it is. */
static CUresult primary_left(CUresult result, CUdevice device)
{
	unsigned flags;
	int alive = 1;
	if (cuda_gpu(device) < 0)
		return result;
	pthread_mutex_lock(&guard);
	if (primaries[device] && REAL(cuDevicePrimaryCtxGetState)(device, &flags, &alive) == CUDA_SUCCESS && !alive) {
		memory_drop_context(primaries[device]);
		primaries[device] = NULL;
	}
	pthread_mutex_unlock(&guard);
	return result;
}

static void primary_leaves(CUdevice device)
{
	if (cuda_gpu(device) >= 0 && primaries[device])
		gate_leave(primaries[device]);
}

#define PRIMARY(symbol)                                                                                                \
	EXPORT CUresult symbol(CUdevice device)                                                                         \
	{                                                                                                               \
		NEED_REAL(symbol);                                                                                      \
		primary_leaves(device);                                                                                 \
		return primary_left(REAL(symbol)(device), device);                                                      \
	}
PRIMARY(cuDevicePrimaryCtxRelease)
PRIMARY(cuDevicePrimaryCtxRelease_v2)
PRIMARY(cuDevicePrimaryCtxReset)
PRIMARY(cuDevicePrimaryCtxReset_v2)
