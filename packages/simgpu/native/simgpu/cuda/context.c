/* Contexts: primary and own, the stack of each thread, and what makes a context unusable. */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH 64

static __thread struct context *stack[DEPTH];
static __thread int depth;
struct context *cuda_contexts;
static uint64_t next_id = 1;

CUresult cuda_usable(struct context *context)
{
	READY();
	if (!context || context->magic != MAGIC_CONTEXT)
		return CUDA_INVALID_CONTEXT;
	if (context->destroyed)
		return CUDA_CONTEXT_IS_DESTROYED;
	if (context->parent) /* what breaks a context breaks all green ones in it */
		return cuda_usable(context->parent);
	const struct simgpu_gpu *gpu = cuda_gpu(context->device);
	if (context->failed == CUDA_SUCCESS && gpu->lost)
		context->failed = CUDA_UNKNOWN;
	if (context->failed == CUDA_SUCCESS && cuda_mps_lost())
		context->failed = CUDA_MPS_RPC_FAILURE;
	if (context->failed == CUDA_SUCCESS && gpu->ecc_uncorrected_volatile > context->ecc_errors)
		context->failed = CUDA_ECC_UNCORRECTABLE;
	return context->failed;
}

CUresult cuda_current(struct context **context)
{
	READY();
	if (!depth || !stack[depth - 1])
		return CUDA_INVALID_CONTEXT;
	*context = stack[depth - 1];
	return cuda_usable(*context);
}

CUresult cuda_set_current(struct context *context)
{
	if (context && context->magic != MAGIC_CONTEXT)
		return CUDA_INVALID_CONTEXT;
	if (!depth)
		depth = 1;
	stack[depth - 1] = context;
	return CUDA_SUCCESS;
}

/* Called with the guard held. `into`: a context that was, and begins again with the same handle; NULL: a new one. */
static CUresult create(CUdevice device, unsigned flags, struct context *into, struct context **result)
{
	struct simgpu_gpu *gpu = cuda_gpu(device);
	struct simgpu_slot *slot = &cuda_view.state->slots[cuda_view.slot];
	uint32_t number = cuda_devices[device].gpu;
	if (gpu->lost || gpu->compute_mode == 2 || !cuda_mps_admits(number))
		return CUDA_DEVICE_UNAVAILABLE;
	if (!simgpu_charge(&cuda_view, number, cuda_instance(device), gpu->context_bytes, cuda_capacity(device)))
		return CUDA_OUT_OF_MEMORY;
	struct context *context = into ? into : calloc(1, sizeof *context), *next = into ? into->next : cuda_contexts;
	if (!context) {
		simgpu_uncharge(&cuda_view, number, gpu->context_bytes);
		return CUDA_OUT_OF_MEMORY;
	}
	*context = (struct context){
		.magic = MAGIC_CONTEXT, .device = device, .flags = flags, .id = next_id++,
		.ecc_errors = gpu->ecc_uncorrected_volatile,
		.limits = {1024, 1 << 20, 8 << 20, 2, 2048, 64},
	};
	context->legacy = (struct stream){.magic = MAGIC_STREAM, .context = context, .id = 1};
	context->next = next;
	if (!into)
		cuda_contexts = context;
	__atomic_add_fetch(&slot->contexts[number], 1, __ATOMIC_SEQ_CST);
	*result = context;
	return CUDA_SUCCESS;
}

uint32_t cuda_context_multiprocessors(const struct context *context)
{
	return context->multiprocessors ? context->multiprocessors : cuda_multiprocessors(context->device);
}

/* Frees all that a context holds. The context itself stays as a shell, so that a stale handle is recognised. */
static void destroy(struct context *context)
{
	uint32_t number = cuda_devices[context->device].gpu;
	struct simgpu_slot *slot = &cuda_view.state->slots[cuda_view.slot];
	for (struct context *part = cuda_contexts; part; part = part->next)
		if (part->parent == context && !part->destroyed)
			part->destroyed = true;
	context->destroyed = true;
	cuda_wait_queues(context);
	while (context->modules)
		cuda_module_free(context->modules);
	while (context->streams) {
		struct stream *next = context->streams->next;
		context->streams->magic = 0;
		cuda_capture_leave(context->streams);
		free(context->streams);
		context->streams = next;
	}
	cuda_release_all(context);
	simgpu_uncharge(&cuda_view, number, cuda_gpu(context->device)->context_bytes);
	__atomic_sub_fetch(&slot->contexts[number], 1, __ATOMIC_SEQ_CST);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *result, unsigned flags, CUdevice device)
{
	NEED(result);
	CUresult status = cuda_valid_device(device);
	if (status != CUDA_SUCCESS)
		return status;
	if (depth == DEPTH)
		return CUDA_OUT_OF_MEMORY;
	pthread_mutex_lock(&cuda_guard);
	status = create(device, flags, NULL, result);
	pthread_mutex_unlock(&cuda_guard);
	if (status == CUDA_SUCCESS)
		stack[depth++] = *result;
	return status;
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *result, void *affinity, int count, unsigned flags, CUdevice device)
{
	return affinity || count ? CUDA_NOT_SUPPORTED : cuCtxCreate_v2(result, flags, device);
}

struct create_params {
	void *affinity;
	int affinity_count;
	void *cig;
};

EXPORT CUresult cuCtxCreate_v4(CUcontext *result, struct create_params *params, unsigned flags, CUdevice device)
{
	if (params && (params->affinity || params->affinity_count || params->cig))
		return CUDA_NOT_SUPPORTED;
	return cuCtxCreate_v2(result, flags, device);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
	READY();
	if (!context || context->magic != MAGIC_CONTEXT || context->destroyed || context->primary || context->parent)
		return CUDA_INVALID_CONTEXT;
	CUresult failed = context->failed;
	if (failed == CUDA_SUCCESS)
		cuda_wait_context(context);
	cuda_end_locals(context);
	pthread_mutex_lock(&cuda_guard);
	destroy(context);
	pthread_mutex_unlock(&cuda_guard);
	if (depth && stack[depth - 1] == context)
		depth--;
	return failed;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	READY();
	if (!context || context->magic != MAGIC_CONTEXT || context->destroyed)
		return CUDA_INVALID_CONTEXT;
	if (depth == DEPTH)
		return CUDA_INVALID_VALUE;
	stack[depth++] = context;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	READY();
	if (!depth)
		return CUDA_INVALID_CONTEXT;
	depth--;
	if (context)
		*context = stack[depth];
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
	READY();
	return cuda_set_current(context);
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
	NEED(context);
	READY();
	*context = depth ? stack[depth - 1] : NULL;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
	NEED(device);
	CONTEXT(context);
	*device = context->device;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext wanted)
{
	NEED(device);
	if (!wanted)
		return cuCtxGetDevice(device);
	CUresult result = cuda_usable(wanted);
	if (result == CUDA_SUCCESS)
		*device = wanted->device;
	return result;
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags)
{
	NEED(flags);
	CONTEXT(context);
	*flags = context->flags;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetFlags(unsigned flags)
{
	CONTEXT(context);
	context->flags = flags;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetId(CUcontext wanted, unsigned long long *id)
{
	NEED(id);
	CONTEXT(context);
	*id = (wanted ? wanted : context)->id;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
	NEED(version);
	READY();
	(void)context;
	*version = cuda_view.state->cuda_version >= 12000 ? 3020 : 3010;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void)
{
	CONTEXT(context);
	CUresult result = cuda_capture_wait_all(context);
	if (result != CUDA_SUCCESS)
		return result;
	cuda_wait_context(context);
	return cuda_usable(context);
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext wanted)
{
	if (!wanted)
		return cuCtxSynchronize();
	CUresult result = cuda_usable(wanted);
	if (result == CUDA_SUCCESS)
		result = cuda_capture_wait_all(wanted);
	if (result != CUDA_SUCCESS)
		return result;
	cuda_wait_context(wanted);
	return cuda_usable(wanted);
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value)
{
	CONTEXT(context);
	if (limit < 0 || limit > 5)
		return CUDA_UNSUPPORTED_LIMIT;
	context->limits[limit] = value;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetLimit(size_t *value, int limit)
{
	NEED(value);
	CONTEXT(context);
	if (limit < 0 || limit > 5)
		return CUDA_UNSUPPORTED_LIMIT;
	*value = context->limits[limit];
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCacheConfig(int *config)
{
	NEED(config);
	CONTEXT(context);
	*config = context->cache_config;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCacheConfig(int config)
{
	CONTEXT(context);
	NEED(config >= 0 && config <= 3);
	context->cache_config = config;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	CONTEXT(context);
	(void)context;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	NEED(peer && flags == 0);
	CONTEXT(context);
	CUresult result = cuda_usable(peer);
	if (result != CUDA_SUCCESS)
		return result;
	int can = 0;
	CUresult cuDeviceCanAccessPeer(int *, CUdevice, CUdevice);
	cuDeviceCanAccessPeer(&can, context->device, peer->device);
	if (!can)
		return CUDA_PEER_ACCESS_UNSUPPORTED;
	if (context->peers >> peer->device & 1)
		return CUDA_PEER_ACCESS_ALREADY_ENABLED;
	context->peers |= 1u << peer->device;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	NEED(peer);
	CONTEXT(context);
	if (peer->magic != MAGIC_CONTEXT)
		return CUDA_INVALID_CONTEXT;
	if (!(context->peers >> peer->device & 1))
		return CUDA_PEER_ACCESS_NOT_ENABLED;
	context->peers &= ~(1u << peer->device);
	return CUDA_SUCCESS;
}

/* Called with the guard held. The shell of the primary context, which is there before it is active. */
static struct context *primary_handle(CUdevice device)
{
	struct device *own = &cuda_devices[device];
	if (!own->primary_handle) {
		struct context *shell = calloc(1, sizeof *shell);
		if (!shell)
			return NULL;
		*shell = (struct context){.magic = MAGIC_CONTEXT, .device = device, .primary = true, .destroyed = true, .next = cuda_contexts};
		own->primary_handle = cuda_contexts = shell;
	}
	return own->primary_handle;
}

struct context *cuda_primary(CUdevice device)
{
	pthread_mutex_lock(&cuda_guard);
	struct context *handle = primary_handle(device);
	pthread_mutex_unlock(&cuda_guard);
	return handle;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *result, CUdevice device)
{
	NEED(result);
	CUresult status = cuda_valid_device(device);
	if (status != CUDA_SUCCESS)
		return status;
	struct device *own = &cuda_devices[device];
	pthread_mutex_lock(&cuda_guard);
	if (!own->primary) {
		struct context *handle = primary_handle(device);
		status = handle ? create(device, own->primary_flags, handle, &own->primary) : CUDA_OUT_OF_MEMORY;
	}
	if (status == CUDA_SUCCESS) {
		own->primary->primary = true;
		own->primary_references++;
		*result = own->primary;
	}
	pthread_mutex_unlock(&cuda_guard);
	return status;
}

static void end_primary(struct device *own)
{
	if (own->primary)
		destroy(own->primary);
	own->primary = NULL;
	own->primary_references = 0;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	CUresult status = cuda_valid_device(device);
	if (status != CUDA_SUCCESS)
		return status;
	struct device *own = &cuda_devices[device];
	if (own->primary && own->primary_references == 1)
		cuda_end_locals(own->primary);
	pthread_mutex_lock(&cuda_guard);
	if (!own->primary)
		status = CUDA_INVALID_CONTEXT;
	else if (--own->primary_references == 0)
		end_primary(own);
	pthread_mutex_unlock(&cuda_guard);
	return status;
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	CUresult status = cuda_valid_device(device);
	if (status != CUDA_SUCCESS)
		return status;
	if (cuda_devices[device].primary)
		cuda_end_locals(cuda_devices[device].primary);
	pthread_mutex_lock(&cuda_guard);
	end_primary(&cuda_devices[device]);
	pthread_mutex_unlock(&cuda_guard);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
	CUresult status = cuda_valid_device(device);
	if (status != CUDA_SUCCESS)
		return status;
	cuda_devices[device].primary_flags = flags;
	if (cuda_devices[device].primary)
		cuda_devices[device].primary->flags = flags;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	CUresult status = cuda_valid_device(device);
	if (status != CUDA_SUCCESS)
		return status;
	if (flags)
		*flags = cuda_devices[device].primary_flags;
	if (active)
		*active = cuda_devices[device].primary != NULL;
	return CUDA_SUCCESS;
}
