/* Executable graphs: made from graphs, launched into streams; and the pool that holds the memory of all graphs. */
#include "graphs.h"

#include <stdlib.h>

enum { FLAG_UPLOAD = 2, FLAGS_ALL = 15 };
enum { MEMORY_USED, MEMORY_USED_HIGH, MEMORY_RESERVED, MEMORY_RESERVED_HIGH };

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *result, CUgraph graph, unsigned long long flags)
{
	NEED(result && flags <= FLAGS_ALL);
	GRAPH(graph);
	struct graph_exec *exec = calloc(1, sizeof *exec);
	if (!exec || cuda_exec_use(exec, graph->nodes, graph->nodes->count) != CUDA_SUCCESS) {
		free(exec);
		return CUDA_OUT_OF_MEMORY;
	}
	pthread_mutex_lock(&cuda_graph_guard);
	exec->magic = MAGIC_EXEC;
	exec->origin = exec->nodes;
	exec->origin_count = exec->count;
	graph->nodes->references += 2;
	pthread_mutex_unlock(&cuda_graph_guard);
	*result = exec;
	return CUDA_SUCCESS;
}

/* The forms of CUDA 10 and 11: a log and a node report a failure; here no update can fail. */
EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *result, CUgraph graph, CUgraphNode *failed, char *log, size_t size)
{
	if (failed)
		*failed = NULL;
	if (log && size)
		*log = 0;
	return cuGraphInstantiateWithFlags(result, graph, 0);
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *result, CUgraph graph, CUgraphNode *failed, char *log, size_t size)
{
	return cuGraphInstantiate_v2(result, graph, failed, log, size);
}

struct instantiation {
	uint64_t flags;
	CUstream upload;
	CUgraphNode failed;
	int result; /* 0: success, 1: an error that its return value describes */
};

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *result, CUgraph graph, struct instantiation *wanted)
{
	CUresult cuGraphUpload(CUgraphExec exec, CUstream handle);
	NEED(wanted);
	CUresult status = cuGraphInstantiateWithFlags(result, graph, wanted->flags);
	if (status == CUDA_SUCCESS && wanted->flags & FLAG_UPLOAD)
		status = cuGraphUpload(*result, wanted->upload);
	wanted->failed = NULL;
	wanted->result = status != CUDA_SUCCESS;
	return status;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	READY();
	NEED(exec && exec->magic == MAGIC_EXEC);
	exec->magic = 0;
	cuda_graph_drop(exec->nodes);
	cuda_graph_drop(exec->origin);
	free(exec->hosts);
	free(exec);
	return CUDA_SUCCESS;
}

/* Lets the pool grow to what the graph needs at once, next to the memory of others. */
static CUresult reserve(const struct graph_exec *exec, CUdevice on)
{
	struct device *device = &cuda_devices[on];
	CUresult result = CUDA_SUCCESS;
	pthread_mutex_lock(&cuda_graph_guard);
	uint64_t now = device->graph_used, most = now;
	for (size_t i = 0; i < exec->count; i++) {
		const struct graph_node *node = exec->nodes->all[i];
		if (node->type == NODE_ALLOCATE && !node->memory->used)
			now += cuda_charge_of(node->memory->size);
		else if (node->type == NODE_FREE)
			now -= cuda_charge_of(node->memory->size);
		most = now > most ? now : most;
	}
	uint64_t more = most > device->graph_reserved ? most - device->graph_reserved : 0;
	if (more && !simgpu_charge(&cuda_view, device->gpu, cuda_instance(on), more, cuda_capacity(on)))
		result = CUDA_OUT_OF_MEMORY;
	else
		device->graph_reserved += more;
	if (device->graph_reserved > device->graph_reserved_high)
		device->graph_reserved_high = device->graph_reserved;
	pthread_mutex_unlock(&cuda_graph_guard);
	return result;
}

EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream handle)
{
	struct context *context;
	struct stream *stream;
	READY();
	NEED(exec && exec->magic == MAGIC_EXEC);
	CUresult result = cuda_stream(handle, &context, &stream);
	return result == CUDA_SUCCESS ? reserve(exec, context->device) : result;
}

static CUresult queue_kernel(struct stream *stream, const struct work *work)
{
	struct work *copy = malloc(sizeof *copy);
	if (!copy)
		return CUDA_OUT_OF_MEMORY;
	*copy = *work;
	CUresult result = cuda_queue(stream, (struct operation){.kind = OPERATION_KERNEL, .work = copy});
	if (result != CUDA_SUCCESS)
		free(copy);
	return result;
}

/* From a host function on, and behind what waits in the stream, nodes are queued: a launch does not wait for them. */
static CUresult run(struct context *context, struct stream *stream, const struct nodes *nodes, size_t count, const struct host_operation **hosts)
{
	CUresult result = CUDA_SUCCESS;
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		const struct graph_node *node = nodes->all[i];
		switch (node->type) {
		case NODE_GRAPH:
			result = run(context, stream, node->child->nodes, node->child->nodes->count, hosts);
			break;
		case NODE_KERNEL:
			result = cuda_queued(stream) ? queue_kernel(stream, node->work) : cuda_run(context, stream, node->work);
			break;
		case NODE_COPY:
		case NODE_FILL:
			if (cuda_queued(stream))
				result = cuda_queue_move(stream, node->move);
			else
				cuda_move(context, stream, node->move);
			break;
		case NODE_HOST:
			result = cuda_queue(stream, (struct operation){.kind = OPERATION_HOST, .host = *(*hosts)++});
			break;
		default: /* memory counts from the launch on */
			pthread_mutex_lock(&cuda_graph_guard);
			cuda_graph_use(node->memory, node->type == NODE_ALLOCATE);
			pthread_mutex_unlock(&cuda_graph_guard);
		}
	}
	return result;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
	struct context *context;
	struct stream *stream;
	READY();
	NEED(exec && exec->magic == MAGIC_EXEC);
	bool captured = false;
	CUresult result = cuda_stream(handle, &context, &stream);
	if (result == CUDA_SUCCESS)
		result = cuda_capture_exec(stream, exec, &captured);
	if (captured)
		return result;
	if (result == CUDA_SUCCESS)
		result = reserve(exec, context->device);
	const struct host_operation *hosts = exec->hosts;
	return result == CUDA_SUCCESS ? run(context, stream, exec->nodes, exec->count, &hosts) : result;
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
	NEED(value && attribute >= MEMORY_USED && attribute <= MEMORY_RESERVED_HIGH);
	CUresult result = cuda_valid_device(device);
	if (result != CUDA_SUCCESS)
		return result;
	const struct device *own = &cuda_devices[device];
	const uint64_t values[] = {own->graph_used, own->graph_used_high, own->graph_reserved, own->graph_reserved_high};
	*(uint64_t *)value = values[attribute];
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	CUresult result = cuda_valid_device(device);
	if (result != CUDA_SUCCESS)
		return result;
	struct device *own = &cuda_devices[device];
	pthread_mutex_lock(&cuda_graph_guard);
	simgpu_uncharge(&cuda_view, own->gpu, own->graph_reserved - own->graph_used);
	own->graph_reserved = own->graph_used;
	pthread_mutex_unlock(&cuda_graph_guard);
	return CUDA_SUCCESS;
}

PER_THREAD(cuGraphInstantiateWithParams, _ptsz, (CUgraphExec *result, CUgraph graph, struct instantiation *wanted),
	   (result, graph, wanted))
PER_THREAD(cuGraphUpload, _ptsz, (CUgraphExec exec, CUstream stream), (exec, stream))
PER_THREAD(cuGraphLaunch, _ptsz, (CUgraphExec exec, CUstream stream), (exec, stream))
