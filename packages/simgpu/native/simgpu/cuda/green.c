/*
 * Green contexts: parts of the multiprocessors of a primary context. Memory, modules and events belong to the primary
 * context; streams belong to the part. Kernels of all parts follow each other on the GPU's time line, as all kernels do.
 */
#include "cuda.h"

#include <stdlib.h>

CUresult cuDevicePrimaryCtxRetain(CUcontext *result, CUdevice device), cuDevicePrimaryCtxRelease_v2(CUdevice device);

#define RESOURCE_SM 1
#define FLAG_DEFAULT_STREAM 1u
#define SPLIT_IGNORE_COSCHEDULING 1u
#define SPLIT_FLAGS 3u
#define LOOK_NS 50000ull

struct resource {
	int type;
	unsigned char padding[88];
	uint32_t device; /* in what the ABI leaves to the driver: the device and 1 */
	union {
		struct { uint32_t count, least, alignment, flags; } sm;
		unsigned char size[40];
	};
	void *next;
};
_Static_assert(sizeof(struct resource) == 144, "ABI");

struct descriptor {
	uint32_t magic;
	CUdevice device;
	uint32_t multiprocessors;
};

struct green {
	uint32_t magic;
	struct context *context;
};

static uint64_t last_id;

#define GREEN(green)                                                                                                   \
	READY();                                                                                                        \
	if (!(green) || (green)->magic != MAGIC_GREEN)                                                                  \
	return CUDA_INVALID_CONTEXT

/* The least size of a part, and what sizes are multiples of, by the guideline in NVIDIA's documentation. */
static void granularity(CUdevice device, bool single, uint32_t *least, uint32_t *alignment)
{
	uint32_t major = cuda_gpu(device)->compute_major;
	*least = major < 7 ? 1 : major == 7 ? 2 : major == 8 ? 4 : single ? 2 : 8;
	*alignment = major < 7 ? 1 : major < 9 || single ? 2 : 8;
}

static struct resource resource_of(CUdevice device, uint32_t count)
{
	struct resource made = {.type = RESOURCE_SM, .device = (uint32_t)device + 1, .sm = {.count = count}};
	granularity(device, false, &made.sm.least, &made.sm.alignment);
	return made;
}

EXPORT CUresult cuDeviceGetDevResource(CUdevice device, struct resource *result, int type)
{
	NEED(result);
	CUresult status = cuda_valid_device(device);
	if (status != CUDA_SUCCESS)
		return status;
	if (type != RESOURCE_SM)
		return CUDA_INVALID_RESOURCE_TYPE;
	*result = resource_of(device, cuda_multiprocessors(device));
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevResource(CUcontext context, struct resource *result, int type)
{
	NEED(result);
	CUresult status = cuda_usable(context);
	if (status == CUDA_SUCCESS && type != RESOURCE_SM)
		status = CUDA_INVALID_RESOURCE_TYPE;
	if (status == CUDA_SUCCESS)
		*result = resource_of(context->device, cuda_context_multiprocessors(context));
	return status;
}

EXPORT CUresult cuGreenCtxGetDevResource(struct green *green, struct resource *result, int type)
{
	GREEN(green);
	return cuCtxGetDevResource(green->context, result, type);
}

EXPORT CUresult cuDevSmResourceSplitByCount(struct resource *result, unsigned *groups, const struct resource *input,
					    struct resource *remaining, unsigned flags, unsigned wanted)
{
	uint32_t size, alignment;
	NEED(groups && input && flags <= SPLIT_FLAGS);
	READY();
	if (input->type != RESOURCE_SM)
		return CUDA_INVALID_RESOURCE_TYPE;
	if (!input->device || input->device > cuda_device_count || wanted > input->sm.count)
		return CUDA_INVALID_RESOURCE_CONFIGURATION;
	CUdevice device = (CUdevice)input->device - 1;
	granularity(device, flags & SPLIT_IGNORE_COSCHEDULING, &size, &alignment);
	if (wanted > size)
		size = (wanted + alignment - 1) / alignment * alignment;
	unsigned possible = input->sm.count / size;
	if (!possible)
		return CUDA_INVALID_RESOURCE_CONFIGURATION;
	if (!result || *groups > possible)
		*groups = possible;
	for (unsigned i = 0; result && i < *groups; i++)
		result[i] = resource_of(device, size);
	uint32_t rest = input->sm.count - *groups * size;
	if (remaining)
		*remaining = rest ? resource_of(device, rest) : (struct resource){.type = 0};
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevResourceGenerateDesc(struct descriptor **result, const struct resource *resources, unsigned count)
{
	uint32_t multiprocessors = 0;
	NEED(result && resources && count);
	READY();
	for (unsigned i = 0; i < count; i++) {
		if (resources[i].type != RESOURCE_SM)
			return CUDA_INVALID_RESOURCE_TYPE;
		if (!resources[i].device || resources[i].device != resources[0].device)
			return CUDA_INVALID_RESOURCE_CONFIGURATION;
		multiprocessors += resources[i].sm.count;
	}
	CUdevice device = (CUdevice)resources[0].device - 1;
	if (!multiprocessors || resources[0].device > cuda_device_count || multiprocessors > cuda_multiprocessors(device))
		return CUDA_INVALID_RESOURCE_CONFIGURATION;
	struct descriptor *made = malloc(sizeof *made); /* the driver has no call that frees it either */
	if (!made)
		return CUDA_OUT_OF_MEMORY;
	*made = (struct descriptor){MAGIC_DESCRIPTOR, device, multiprocessors};
	*result = made;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxCreate(struct green **result, const struct descriptor *descriptor, CUdevice device, unsigned flags)
{
	CUcontext primary;
	NEED(result && descriptor && descriptor->magic == MAGIC_DESCRIPTOR && flags == FLAG_DEFAULT_STREAM);
	CUresult status = cuda_valid_device(device);
	if (status == CUDA_SUCCESS && descriptor->device != device)
		status = CUDA_INVALID_RESOURCE_CONFIGURATION;
	if (status == CUDA_SUCCESS)
		status = cuDevicePrimaryCtxRetain(&primary, device);
	if (status != CUDA_SUCCESS)
		return status;
	struct green *green = malloc(sizeof *green);
	struct context *context = calloc(1, sizeof *context);
	if (!green || !context) {
		free(green);
		free(context);
		cuDevicePrimaryCtxRelease_v2(device);
		return CUDA_OUT_OF_MEMORY;
	}
	pthread_mutex_lock(&cuda_guard);
	*context = (struct context){.magic = MAGIC_CONTEXT, .device = device, .flags = primary->flags, .parent = primary, .green = green,
				    .multiprocessors = descriptor->multiprocessors, .ecc_errors = primary->ecc_errors,
				    .id = ++last_id << 32 | primary->id, .next = cuda_contexts};
	for (size_t i = 0; i < sizeof context->limits / sizeof *context->limits; i++)
		context->limits[i] = primary->limits[i];
	context->legacy = (struct stream){.magic = MAGIC_STREAM, .context = context, .id = 1};
	cuda_contexts = context;
	pthread_mutex_unlock(&cuda_guard);
	*green = (struct green){MAGIC_GREEN, context};
	*result = green;
	return CUDA_SUCCESS;
}

/* Its streams are not destroyed with it: that is up to the program. */
EXPORT CUresult cuGreenCtxDestroy(struct green *green)
{
	GREEN(green);
	struct context *context = green->context;
	if (!context->destroyed) {
		if (context->parent->failed == CUDA_SUCCESS)
			cuda_wait_context(context);
		context->destroyed = true;
		cuDevicePrimaryCtxRelease_v2(context->device);
	}
	green->magic = 0;
	free(green);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *result, struct green *green)
{
	NEED(result);
	GREEN(green);
	*result = green->context;
	return cuda_usable(green->context);
}

EXPORT CUresult cuGreenCtxGetId(struct green *green, unsigned long long *id)
{
	NEED(id);
	GREEN(green);
	*id = green->context->id;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxStreamCreate(CUstream *result, struct green *green, unsigned flags, int priority)
{
	NEED(result && flags == STREAM_NON_BLOCKING);
	GREEN(green);
	CUresult status = cuda_usable(green->context);
	return status == CUDA_SUCCESS ? cuda_stream_make(green->context, flags, priority, result) : status;
}

EXPORT CUresult cuStreamGetGreenCtx(CUstream handle, struct green **result)
{
	struct context *context;
	struct stream *stream;
	NEED(result);
	CUresult status = cuda_stream(handle, &context, &stream);
	if (status == CUDA_SUCCESS)
		*result = context->green;
	return status;
}

/* All streams of a context, for an event behind them or before them: none may be captured. */
static CUresult whole(struct context *context, struct event *event)
{
	CUresult status = cuda_usable(context);
	if (status != CUDA_SUCCESS)
		return status;
	if (!event || event->magic != MAGIC_EVENT || cuda_root(event->context) != cuda_root(context))
		return CUDA_INVALID_HANDLE;
	return cuda_capture_wait_all(context);
}

EXPORT CUresult cuCtxRecordEvent(CUcontext context, CUevent event)
{
	CUresult status = whole(context, event);
	if (status != CUDA_SUCCESS)
		return status;
	uint64_t record = __atomic_add_fetch(&event->marks->recorded, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&cuda_guard);
	cuda_wait_queues(context); /* not queued: it waits with its caller */
	cuda_event_reached(event, record, cuda_context_ready(context));
	pthread_mutex_unlock(&cuda_guard);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxWaitEvent(CUcontext context, CUevent event)
{
	CUresult status = whole(context, event);
	if (status != CUDA_SUCCESS)
		return status;
	uint64_t record = __atomic_load_n(&event->marks->recorded, __ATOMIC_SEQ_CST);
	while (!cuda_event_known(event, record))
		simgpu_sleep_until(simgpu_now() + LOOK_NS);
	uint64_t time = event->marks->time;
	pthread_mutex_lock(&cuda_guard);
	if (time > context->legacy.tail)
		context->legacy.tail = time;
	for (struct stream *stream = context->streams; stream; stream = stream->next)
		if (time > stream->tail)
			stream->tail = time;
	pthread_mutex_unlock(&cuda_guard);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxRecordEvent(struct green *green, CUevent event)
{
	GREEN(green);
	return cuCtxRecordEvent(green->context, event);
}

EXPORT CUresult cuGreenCtxWaitEvent(struct green *green, CUevent event)
{
	GREEN(green);
	return cuCtxWaitEvent(green->context, event);
}
