/* Contexts: they cost memory, and take what was allocated in them along when they end. */
#include "gate.h"

/* Held over the driver's call and the entry in the books: the driver may give the handle of a context that has just ended
   to a new one at once, and the books know contexts by their handles. */
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static CUcontext primaries[DEVICES];

/* False: it does not fit. */
static bool begin(CUdevice device, struct held *cost)
{
	*cost = (struct held){.gpu = cuda_gpu(device)};
	if (cost->gpu < 0)
		return true;
	cost->bytes = LOAD(limits->gpus[cost->gpu].context_bytes);
	slots_begin_change();
	if (slots_take(cost->gpu, cost->bytes, true))
		return true;
	pool_refresh(cost->gpu);
	if (slots_take(cost->gpu, cost->bytes, true))
		return true;
	slots_refused(cost->gpu);
	slots_end_change();
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
	slots_end_change();
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
	pthread_mutex_lock(&guard);                                                                                     \
	CUresult result = REAL(symbol)(__VA_ARGS__);                                                                    \
	result = begun(result, result == CUDA_SUCCESS ? *context : NULL, cost);                                         \
	pthread_mutex_unlock(&guard);                                                                                   \
	return result

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

/* Of before CUDA 3.2 and 4.0. */
EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
	CREATE(cuCtxCreate, device, context, flags, device);
}

/* Contexts that share with graphics: the same memory, and the same limits in them. */
EXPORT CUresult cuGLCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
	CREATE(cuGLCtxCreate, device, context, flags, device);
}

EXPORT CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
	CREATE(cuGLCtxCreate_v2, device, context, flags, device);
}

EXPORT CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned flags, CUdevice device, unsigned display, void *names)
{
	CREATE(cuVDPAUCtxCreate, device, context, flags, device, display, names);
}

EXPORT CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device, unsigned display, void *names)
{
	CREATE(cuVDPAUCtxCreate_v2, device, context, flags, device, display, names);
}

/* A second reference would keep a context, and all that it holds, behind the end that is counted here. */
EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned flags)
{
	NEED_REAL(cuCtxAttach);
	if (!cuda_active)
		return REAL(cuCtxAttach)(context, flags);
	say(SAY_ATTACH, "cuCtxAttach is not supported under limits, see cuDevicePrimaryCtxRetain");
	return CUDA_NOT_SUPPORTED;
}

static void ended(CUcontext context)
{
	memory_drop_context(context);
	streams_drop(context);
	captures_drop(context);
}

/* A context that a kernel broke says so here too, and is destroyed all the same. */
#define DESTROY(symbol)                                                                                                \
	EXPORT CUresult symbol(CUcontext context)                                                                       \
	{                                                                                                               \
		NEED_REAL(symbol);                                                                                      \
		gate_leave(context);                                                                                    \
		pthread_mutex_lock(&guard);                                                                             \
		bool active = cuda_active;                                                                              \
		if (active)                                                                                             \
			slots_begin_change();                                                                           \
		CUresult result = REAL(symbol)(context);                                                                \
		if (cuda_active && result != CUDA_INVALID_VALUE && result != CUDA_INVALID_CONTEXT &&                    \
		    result != CUDA_NOT_INITIALIZED && result != CUDA_DEINITIALIZED)                                     \
			ended(context);                                                                                 \
		if (active)                                                                                             \
			slots_end_change();                                                                             \
		pthread_mutex_unlock(&guard);                                                                           \
		return result;                                                                                          \
	}
DESTROY(cuCtxDestroy_v2)
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDetach)

void context_forget(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	guard = fresh;
	for (int i = 0; i < DEVICES; i++)
		primaries[i] = NULL;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device), cuDevicePrimaryCtxRelease_v2(CUdevice device);

CUresult context_retain_primary(CUcontext *context, CUdevice device)
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

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	return context_retain_primary(context, device);
}

/* After a release or reset: if the primary context is no more, nothing of it is. Called with the guard held. */
static CUresult primary_left(CUresult result, CUdevice device)
{
	unsigned flags;
	int alive = 1;
	if (cuda_gpu(device) < 0 || !primaries[device])
		return result;
	if (REAL(cuDevicePrimaryCtxGetState)(device, &flags, &alive) == CUDA_SUCCESS && !alive) {
		ended(primaries[device]);
		green_drop(primaries[device]);
		primaries[device] = NULL;
	}
	return result;
}

static void primary_leaves(CUdevice device)
{
	if (cuda_gpu(device) < 0)
		return;
	pthread_mutex_lock(&guard);
	CUcontext context = primaries[device];
	pthread_mutex_unlock(&guard);
	if (context) {
		green_leave(context);
		gate_leave(context);
	}
}

static CUresult leave_primary(CUresult (*real)(CUdevice), CUdevice device)
{
	primary_leaves(device);
	pthread_mutex_lock(&guard);
	bool active = cuda_active;
	if (active)
		slots_begin_change();
	CUresult result = primary_left(real(device), device);
	if (active)
		slots_end_change();
	pthread_mutex_unlock(&guard);
	return result;
}

CUresult context_release_primary(CUdevice device)
{
	return leave_primary(REAL(cuDevicePrimaryCtxRelease_v2), device);
}

#define PRIMARY(symbol)                                                                                                \
	EXPORT CUresult symbol(CUdevice device)                                                                         \
	{                                                                                                               \
		NEED_REAL(symbol);                                                                                      \
		return leave_primary(REAL(symbol), device);                                                             \
	}
PRIMARY(cuDevicePrimaryCtxRelease)
PRIMARY(cuDevicePrimaryCtxRelease_v2)
PRIMARY(cuDevicePrimaryCtxReset)
PRIMARY(cuDevicePrimaryCtxReset_v2)
