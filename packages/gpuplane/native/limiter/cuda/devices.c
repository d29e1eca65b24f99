/* Initialization, which CUDA device is which GPU of the limits, and what devices say of their memory. */
#include "gate.h"
#include "hosts.h"

#include <string.h>

bool cuda_active;

static int gpus[DEVICES]; /* of each CUDA device: position in the limits, or one of these */
enum { GPU_FORBIDDEN = -2 };
static int device_count;

static void forked(void)
{
	cuda_active = false;
	slots_forget();
	track_forget();
	pool_forget();
	handles_forget();
	context_forget();
	green_forget();
	gate_forget();
	streams_forget();
	captures_forget();
	waits_forget();
	hosts_forget();
}

static void learn_devices(void)
{
	int count = 0;
	uint8_t uuid[16];
	REAL(cuDeviceGetCount)(&count);
	device_count = count < DEVICES ? count : DEVICES;
	for (int i = 0; i < device_count; i++) {
		CUdevice device = i;
		REAL(cuDeviceGet)(&device, i);
		gpus[i] = -1;
		/* The second form names a MIG device where the first names the GPU that it is part of. */
		if (HAS(cuDeviceGetUuid_v2) && REAL(cuDeviceGetUuid_v2)(uuid, device) == CUDA_SUCCESS)
			gpus[i] = page_gpu(uuid);
		if (gpus[i] < 0 && HAS(cuDeviceGetUuid) && REAL(cuDeviceGetUuid)(uuid, device) == CUDA_SUCCESS)
			gpus[i] = page_gpu(uuid);
		if (gpus[i] < 0 && !(limits->flags & LIMITS_FAIL_OPEN))
			gpus[i] = GPU_FORBIDDEN;
	}
}

EXPORT CUresult cuInit(unsigned flags)
{
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	static bool handlers;
	NEED_REAL(cuInit);
	enum attachment attachment = page_attach();
	if (attachment == REFUSED)
		return CUDA_SYSTEM_NOT_READY;
	CUresult result = REAL(cuInit)(flags);
	if (result != CUDA_SUCCESS || attachment == UNLIMITED)
		return result;
	int cancel = cancel_put_off();
	pthread_mutex_lock(&once);
	if (!cuda_active) {
		if (slots_claim()) {
			learn_devices();
			if (!handlers)
				handlers = !pthread_atfork(NULL, NULL, forked);
			cuda_active = true;
			gate_setup(device_count);
		} else if (page_lacks(SAY_SLOTS, "all %d slots of the usage page are taken", PAGE_SLOTS) == REFUSED) {
			result = CUDA_SYSTEM_NOT_READY;
		}
	}
	pthread_mutex_unlock(&once);
	cancel_allow(cancel);
	return result;
}

int cuda_gpu(CUdevice device)
{
	return cuda_active && device >= 0 && device < device_count && gpus[device] >= 0 ? gpus[device] : -1;
}

bool cuda_forbidden(CUdevice device)
{
	if (!cuda_active || device < 0 || device >= device_count || gpus[device] != GPU_FORBIDDEN)
		return false;
	say(SAY_GPU, "CUDA device %d is not among the GPUs of %s and cannot be used", device,
	    limits->name[0] ? limits->name : "this container");
	return true;
}

int cuda_current(CUcontext *context)
{
	CUdevice device;
	CUcontext current = NULL;
	if (!cuda_active || REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || !current ||
	    REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
		return -1;
	if (context)
		*context = __builtin_expect(LOAD(green_open) != 0, 0) ? green_primary(current) : current;
	return cuda_gpu(device);
}

/* The device of a stream; the context is NULL where there is none, and *other says that it is not the current one. */
static CUdevice device_of(CUstream stream, CUcontext *context, bool *other)
{
	CUcontext current = NULL, wanted = NULL;
	CUdevice device = -1;
	if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS)
		current = NULL;
	/* 0 to 2 are the default streams of the current context. The older form refuses streams of green contexts. */
	if ((uintptr_t)stream > 2 && !(HAS(cuStreamGetCtx) && REAL(cuStreamGetCtx)(stream, &wanted) == CUDA_SUCCESS) &&
	    !(HAS(cuStreamGetCtx_v2) && REAL(cuStreamGetCtx_v2)(stream, &wanted, &(CUgreen){NULL}) == CUDA_SUCCESS))
		wanted = NULL;
	*other = wanted && wanted != current;
	*context = wanted ? wanted : current;
	if (*other && REAL(cuCtxPushCurrent_v2)(wanted) != CUDA_SUCCESS)
		return -1;
	if (!*context || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
		device = -1;
	if (*other)
		REAL(cuCtxPopCurrent_v2)(&wanted);
	return device;
}

int cuda_of_stream(CUstream stream, CUcontext *context, bool *other)
{
	return cuda_active ? cuda_gpu(device_of(stream, context, other)) : -1;
}

CUdevice cuda_stream_device(CUstream stream)
{
	CUcontext context;
	bool other;
	return device_of(stream, &context, &other);
}

/* The memory that the container holds, after a look at which processes live: memory of the dead is soon free. */
static uint64_t held(int gpu)
{
	static uint64_t last;
	uint64_t now = clock_now(), before = __atomic_load_n(&last, __ATOMIC_RELAXED);
	if (now - before > 50000000 && EXCHANGE(last, &before, now))
		slots_reap();
	pool_refresh(gpu);
	return slots_sum(gpu);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	NEED_REAL(cuMemGetInfo_v2);
	CUresult result = REAL(cuMemGetInfo_v2)(available, total);
	int gpu = cuda_current(NULL);
	uint64_t limit = result == CUDA_SUCCESS && gpu >= 0 ? slots_limit(gpu) : 0;
	if (!limit || !available || !total)
		return result;
	uint64_t taken = held(gpu), left = taken < limit ? limit - taken : 0;
	if (*total > limit)
		*total = limit;
	if (*available > left)
		*available = left;
	return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	NEED_REAL(cuDeviceTotalMem_v2);
	CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
	int gpu = cuda_gpu(device);
	uint64_t limit = result == CUDA_SUCCESS && gpu >= 0 ? slots_limit(gpu) : 0;
	if (limit && bytes && *bytes > limit)
		*bytes = limit;
	return result;
}
