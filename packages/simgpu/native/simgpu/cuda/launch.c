/* Functions and their launch: the kernel runs now, its time is queued. */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

#define LAUNCH_NS 2500ull      /* the least a launch takes on the GPU */
#define SHARING_NS 1000000ull  /* so much time a process may queue ahead while others use the GPU, in place of time slices */
#define EVENT_XID 0x8ull

struct limits {
	uint32_t dimension, least, most;
};

enum { ATTRIBUTE_MAX_THREADS, ATTRIBUTE_SHARED, ATTRIBUTE_CONST, ATTRIBUTE_LOCAL, ATTRIBUTE_REGISTERS, ATTRIBUTE_PTX,
       ATTRIBUTE_BINARY, ATTRIBUTE_CACHE_CA, ATTRIBUTE_MAX_DYNAMIC_SHARED, ATTRIBUTE_CARVEOUT };

#define FUNCTION(handle)                                                                                               \
	struct function *function;                                                                                      \
	CUresult function_result = cuda_function(handle, &function);                                                    \
	if (function_result != CUDA_SUCCESS)                                                                            \
	return function_result

static uint32_t max_threads(const struct ptx_kernel *kernel)
{
	return kernel->max_threads ? kernel->max_threads : 1024;
}

EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction handle)
{
	NEED(value);
	FUNCTION(handle);
	const struct ptx_kernel *kernel = function->kernel;
	const struct simgpu_gpu *gpu = cuda_gpu(function->module->context->device);
	switch (attribute) {
	case ATTRIBUTE_MAX_THREADS: *value = (int)max_threads(kernel); break;
	case ATTRIBUTE_SHARED: *value = (int)kernel->shared_bytes; break;
	case ATTRIBUTE_CONST: *value = 0; break;
	case ATTRIBUTE_LOCAL: *value = (int)kernel->local_bytes; break;
	case ATTRIBUTE_REGISTERS: *value = kernel->registers > 255 ? 255 : (int)kernel->registers; break;
	case ATTRIBUTE_PTX: *value = (int)function->module->ptx->version; break;
	case ATTRIBUTE_BINARY: *value = (int)(gpu->compute_major * 10 + gpu->compute_minor); break;
	case ATTRIBUTE_CACHE_CA: *value = 0; break;
	case ATTRIBUTE_MAX_DYNAMIC_SHARED: *value = (int)(function->dynamic_shared_limit - kernel->shared_bytes); break;
	case ATTRIBUTE_CARVEOUT: *value = function->carveout; break;
	default:
		NEED(attribute > 0 && attribute < 18);
		*value = 0;
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value)
{
	FUNCTION(handle);
	const struct simgpu_gpu *gpu = cuda_gpu(function->module->context->device);
	if (attribute == ATTRIBUTE_CARVEOUT) {
		NEED(value >= -1 && value <= 100);
		function->carveout = value;
		return CUDA_SUCCESS;
	}
	NEED(attribute == ATTRIBUTE_MAX_DYNAMIC_SHARED && value >= 0 &&
	     (uint32_t)value + function->kernel->shared_bytes <= gpu->shared_per_block_optin);
	function->dynamic_shared_limit = (uint32_t)value + function->kernel->shared_bytes;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetAttribute(int *value, int attribute, CUfunction handle, CUdevice device)
{
	CUresult result = cuda_valid_device(device);
	return result == CUDA_SUCCESS ? cuFuncGetAttribute(value, attribute, handle) : result;
}

EXPORT CUresult cuKernelSetAttribute(int attribute, int value, CUfunction handle, CUdevice device)
{
	CUresult result = cuda_valid_device(device);
	return result == CUDA_SUCCESS ? cuFuncSetAttribute(handle, attribute, value) : result;
}

EXPORT CUresult cuFuncSetCacheConfig(CUfunction handle, int config)
{
	FUNCTION(handle);
	(void)function; /* a preference; nothing here depends on it */
	NEED(config >= 0 && config <= 3);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetModule(CUmodule *module, CUfunction handle)
{
	NEED(module);
	FUNCTION(handle);
	*module = function->module;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetName(const char **name, CUfunction handle)
{
	NEED(name);
	FUNCTION(handle);
	*name = function->kernel->name;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size)
{
	NEED(offset);
	FUNCTION(handle);
	NEED(index < function->kernel->param_count);
	*offset = function->kernel->params[index].offset;
	if (size)
		*size = function->kernel->params[index].size;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size)
{
	return cuFuncGetParamInfo(handle, index, offset, size);
}

EXPORT CUresult cuFuncIsLoaded(int *state, CUfunction handle)
{
	NEED(state);
	FUNCTION(handle);
	(void)function;
	*state = 1;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncLoad(CUfunction handle)
{
	FUNCTION(handle);
	(void)function;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, CUfunction handle, int block, size_t shared, unsigned flags)
{
	NEED(count && block > 0 && flags <= 1);
	FUNCTION(handle);
	const struct simgpu_gpu *gpu = cuda_gpu(function->module->context->device);
	uint64_t bytes = function->kernel->shared_bytes + shared;
	uint32_t by_threads = gpu->threads_per_multiprocessor / (uint32_t)block;
	uint64_t by_shared = bytes ? gpu->shared_per_multiprocessor / bytes : 32;
	uint64_t least = by_threads < by_shared ? by_threads : by_shared;
	*count = (uint32_t)block > max_threads(function->kernel) ? 0 : (int)(least > 32 ? 32 : least);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction handle, int block, size_t shared)
{
	return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count, handle, block, shared, 0);
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction handle, size_t (*shared_of)(int),
							  size_t shared, int limit, unsigned flags)
{
	NEED(grid && block && flags <= 1);
	FUNCTION(handle);
	int best = 0, per = 0;
	int most = (int)max_threads(function->kernel);
	if (limit > 0 && limit < most)
		most = limit;
	for (int size = 32; size <= most; size += 32) {
		int count;
		cuOccupancyMaxActiveBlocksPerMultiprocessor(&count, handle, size, shared_of ? shared_of(size) : shared);
		if (count * size >= best * per) {
			best = size;
			per = count;
		}
	}
	*block = best;
	*grid = per * (int)cuda_multiprocessors(function->module->context->device);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction handle, size_t (*shared_of)(int), size_t shared, int limit)
{
	return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, handle, shared_of, shared, limit, 0);
}

/* Parameters come as pointers to each, or as one buffer: {1, buffer, 2, &size, 0}. */
static CUresult collect_params(const struct ptx_kernel *kernel, void **params, void **extra, uint8_t *bytes)
{
	memset(bytes, 0, PTX_MAX_PARAMS);
	if (extra) {
		const void *buffer = NULL;
		size_t size = 0;
		for (int i = 0; extra[i]; i += 2) {
			NEED(extra[i] == (void *)1 || extra[i] == (void *)2);
			if (extra[i] == (void *)1)
				buffer = extra[i + 1];
			else
				size = *(size_t *)extra[i + 1];
		}
		NEED(size >= kernel->param_bytes && (buffer || !kernel->param_bytes) && !params);
		if (kernel->param_bytes)
			memcpy(bytes, buffer, kernel->param_bytes);
		return CUDA_SUCCESS;
	}
	NEED(params || !kernel->param_count);
	for (uint32_t i = 0; i < kernel->param_count; i++) {
		NEED(params[i]);
		memcpy(bytes + kernel->params[i].offset, params[i], kernel->params[i].size);
	}
	return CUDA_SUCCESS;
}

/* A kernel that went wrong breaks its context, and the driver's log gets an XID. */
static CUresult failure(struct context *context, enum ptx_result result)
{
	static const struct { CUresult status; uint64_t xid; } failures[] = {
		[PTX_ILLEGAL_ADDRESS] = {CUDA_ILLEGAL_ADDRESS, 31}, [PTX_MISALIGNED] = {CUDA_MISALIGNED_ADDRESS, 13},
		[PTX_TRAPPED] = {CUDA_ILLEGAL_INSTRUCTION, 13},     [PTX_TOO_LONG] = {CUDA_LAUNCH_TIMEOUT, 8},
		[PTX_NO_MEMORY] = {CUDA_LAUNCH_OUT_OF_RESOURCES, 0},
		[PTX_ASSERTED] = {CUDA_ASSERT, 0},
	};
	if (failures[result].xid)
		simgpu_raise(&cuda_view, cuda_devices[context->device].gpu, EVENT_XID, failures[result].xid);
	cuda_root(context)->failed = failures[result].status;
	return result == PTX_NO_MEMORY ? CUDA_LAUNCH_OUT_OF_RESOURCES : CUDA_SUCCESS;
}

static uint64_t cost_of(const struct simgpu_gpu *gpu, const struct ptx_launch *launch)
{
	uint64_t shared_time = launch->total_ns / launch->parallel_threads;
	uint64_t memory_ns = launch->bytes * 1000 / gpu->bandwidth_mbps;
	uint64_t cost = launch->longest_ns > shared_time ? launch->longest_ns : shared_time;
	return LAUNCH_NS + (cost > memory_ns ? cost : memory_ns);
}

CUresult cuda_prepare(struct work *work, CUfunction handle, const uint32_t *grid, const uint32_t *block, uint32_t shared,
		      void **params, void **extra)
{
	FUNCTION(handle);
	const struct ptx_kernel *kernel = function->kernel;
	for (int axis = 0; axis < 3; axis++)
		NEED(grid[axis] && block[axis] && block[axis] <= (axis == 2 ? 64 : 1024) && grid[axis] <= (axis ? 65535 : 0x7fffffff));
	NEED((uint64_t)block[0] * block[1] * block[2] <= 1024);
	if (block[0] * block[1] * block[2] > max_threads(kernel))
		return CUDA_LAUNCH_OUT_OF_RESOURCES;
	NEED((uint64_t)kernel->shared_bytes + shared <= function->dynamic_shared_limit);
	work->function = function;
	memcpy(work->grid, grid, sizeof work->grid);
	memcpy(work->block, block, sizeof work->block);
	work->shared = shared;
	return collect_params(kernel, params, extra, work->params);
}

void cuda_occupy(struct context *context, struct stream *stream, uint64_t cost, uint64_t memory_ns)
{
	pthread_mutex_lock(&cuda_guard);
	struct simgpu_span span = simgpu_run(&cuda_view, cuda_devices[context->device].gpu, cuda_stream_ready(stream), cost, memory_ns);
	stream->tail = span.end;
	uint64_t *place = &stream->ends[stream->launches++ % QUEUE_DEPTH], full = *place;
	*place = span.end;
	pthread_mutex_unlock(&cuda_guard);
	/* NB: The stream may have ended meanwhile. */
	if (simgpu_contended(&cuda_view, cuda_devices[context->device].gpu) && span.start > full + SHARING_NS)
		full = span.start - SHARING_NS;
	if (full > simgpu_now())
		simgpu_sleep_until(full);
}

CUresult cuda_run(struct context *context, struct stream *stream, const struct work *work)
{
	const struct function *function = work->function;
	const struct ptx_kernel *kernel = function->kernel;
	struct simgpu_gpu *gpu = cuda_gpu(context->device);
	struct ptx_launch launch = {
		.kernel = kernel, .module = function->module->ptx, .base = function->module->base, .grid = {work->grid[0], work->grid[1], work->grid[2]},
		.block = {work->block[0], work->block[1], work->block[2]}, .dynamic_shared = work->shared,
		.multiprocessors = cuda_context_multiprocessors(context), .clock_mhz = gpu->sm_clock_mhz, .params = work->params,
		.find = cuda_window, .find_context = context, .start_ns = simgpu_now(), .wrong_results = gpu->wrong_results == 1,
		.parallel_threads = cuda_context_multiprocessors(context) * gpu->threads_per_multiprocessor,
	};
	enum ptx_result ran = PTX_OK;
	if (gpu->wrong_results != 2) {
		cuda_hold_table(true);
		ran = ptx_run(&launch);
		cuda_hold_table(false);
	}
	uint64_t cost = kernel->cost_ns ? kernel->cost_ns : cost_of(gpu, &launch);
	cuda_occupy(context, stream, cost, launch.bytes * 1000 / gpu->bandwidth_mbps);
	if (ran != PTX_OK)
		return failure(context, ran);
	return CUDA_SUCCESS;
}

static CUresult launch(CUfunction handle, const uint32_t *grid, const uint32_t *block, uint32_t shared, CUstream stream_handle,
		       void **params, void **extra)
{
	struct context *context;
	struct stream *stream;
	struct work work;
	CUresult result = cuda_stream(stream_handle, &context, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	FUNCTION(handle);
	if (function->module->context != cuda_root(context))
		return CUDA_INVALID_HANDLE;
	result = cuda_prepare(&work, handle, grid, block, shared, params, extra);
	if (result != CUDA_SUCCESS)
		return result;
	bool captured;
	result = cuda_capture_kernel(stream, &work, &captured);
	if (result != CUDA_SUCCESS || captured || !cuda_queued(stream))
		return result != CUDA_SUCCESS || captured ? result : cuda_run(context, stream, &work);
	struct work *copy = malloc(sizeof *copy);
	if (!copy)
		return CUDA_OUT_OF_MEMORY;
	*copy = work;
	result = cuda_queue(stream, (struct operation){.kind = OPERATION_KERNEL, .work = copy});
	if (result != CUDA_SUCCESS)
		free(copy);
	return result;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
			       unsigned shared, CUstream stream, void **params, void **extra)
{
	return launch(function, (uint32_t[]){gx, gy, gz}, (uint32_t[]){bx, by, bz}, shared, stream, params, extra);
}

/* Blocks run one after another, so a kernel whose blocks wait for each other would never end. It is refused when it has
   more than one; the driver refuses more blocks than fit at once for the same reason. */
EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
					  unsigned bz, unsigned shared, CUstream stream, void **params)
{
	if ((uint64_t)gx * gy * gz != 1)
		return CUDA_NOT_SUPPORTED;
	return launch(function, (uint32_t[]){gx, gy, gz}, (uint32_t[]){bx, by, bz}, shared, stream, params, NULL);
}

struct launch_config {
	uint32_t grid[3], block[3], shared;
	CUstream stream;
	void *attributes;
	unsigned attribute_count;
};

/* Attributes say how to place and order blocks on the chip; nothing here depends on that. */
EXPORT CUresult cuLaunchKernelEx(const struct launch_config *config, CUfunction function, void **params, void **extra)
{
	NEED(config);
	return launch(function, config->grid, config->block, config->shared, config->stream, params, extra);
}

PER_THREAD(cuLaunchKernel, _ptsz,
	   (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
	    CUstream stream, void **params, void **extra),
	   (function, gx, gy, gz, bx, by, bz, shared, stream, params, extra))
PER_THREAD(cuLaunchKernelEx, _ptsz, (const struct launch_config *config, CUfunction function, void **params, void **extra),
	   (config, function, params, extra))
PER_THREAD(cuLaunchCooperativeKernel, _ptsz,
	   (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
	    CUstream stream, void **params),
	   (function, gx, gy, gz, bx, by, bz, shared, stream, params))
