/*
 * Graphs: their memory nodes are charged when they are launched, since that is when memory is taken, and their launches
 * wait for the GPU's time like those of kernels.
 */
#include "cuda.h"
#include "gate.h"

#include <stdlib.h>

#define NODE_MEMORY 10

/* What the memory nodes of a graph ask for together. Nodes that use the same memory one after the other are counted
   twice: what the driver needs less is given back after the launch. */
static uint64_t footprint(CUgraph graph)
{
	size_t count = 0;
	uint64_t sum = 0;
	if (!HAS(cuGraphMemAllocNodeGetParams) || REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || !count)
		return 0;
	CUgraphNode *nodes = calloc(count, sizeof *nodes);
	if (!nodes || REAL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS)
		count = 0;
	for (size_t i = 0; i < count; i++) {
		struct alloc_node_parameters node;
		int type;
		if (REAL(cuGraphNodeGetType)(nodes[i], &type) == CUDA_SUCCESS && type == NODE_MEMORY &&
		    REAL(cuGraphMemAllocNodeGetParams)(nodes[i], &node) == CUDA_SUCCESS)
			sum += memory_rounded(node.size);
	}
	free(nodes);
	return sum;
}

static CUresult instantiated(CUresult result, const CUgraphExec *exec, CUgraph graph)
{
	if (!cuda_active || result != CUDA_SUCCESS)
		return result;
	uint64_t bytes = footprint(graph);
	if (bytes)
		track_put(KIND_EXEC, (uint64_t)(uintptr_t)*exec, (struct held){.bytes = bytes});
	return result;
}

#define INSTANTIATE(symbol, parameters, arguments)                                                                     \
	EXPORT CUresult symbol parameters                                                                               \
	{                                                                                                               \
		NEED_REAL(symbol);                                                                                      \
		return instantiated(REAL(symbol) arguments, exec, graph);                                               \
	}
INSTANTIATE(cuGraphInstantiate, (CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size),
	    (exec, graph, error, log, size))
INSTANTIATE(cuGraphInstantiate_v2, (CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size),
	    (exec, graph, error, log, size))
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec *exec, CUgraph graph, unsigned long long flags), (exec, graph, flags))
INSTANTIATE(cuGraphInstantiateWithParams, (CUgraphExec *exec, CUgraph graph, void *parameters), (exec, graph, parameters))
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (CUgraphExec *exec, CUgraph graph, void *parameters),
	    (exec, graph, parameters))

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	struct held held;
	NEED_REAL(cuGraphExecDestroy);
	bool ours = cuda_active && track_take(KIND_EXEC, (uint64_t)(uintptr_t)exec, &held);
	CUresult result = REAL(cuGraphExecDestroy)(exec);
	if (ours && result != CUDA_SUCCESS)
		track_put(KIND_EXEC, (uint64_t)(uintptr_t)exec, held);
	return result;
}

typedef CUresult launch_function(CUgraphExec, CUstream);

static CUresult launch(launch_function *real, CUgraphExec exec, CUstream stream, bool per_thread, bool upload)
{
	struct held held;
	uint64_t granted = 0;
	CUdevice device = -1;
	bool allocates = cuda_active && track_get(KIND_EXEC, (uint64_t)(uintptr_t)exec, &held);
	if (allocates) {
		device = cuda_stream_device(stream);
		slots_begin_change();
		if (!pool_take_graph(device, held.bytes, &granted)) {
			slots_end_change();
			return CUDA_OUT_OF_MEMORY;
		}
	}
	CUstream meant = streams_meant(stream, per_thread);
	bool allowed = upload || gate_begin_graph(meant, exec);
	CUresult result = allowed ? real(exec, stream) : CUDA_DEVICE_UNAVAILABLE;
	if (!upload) {
		gate_launched(meant);
		gate_end_graph();
	}
	if (allocates) {
		pool_settle_graph(device, granted);
		slots_end_change();
	}
	return result;
}

#define LAUNCH(symbol, per_thread, upload)                                                                             \
	EXPORT CUresult symbol(CUgraphExec exec, CUstream stream)                                                       \
	{                                                                                                               \
		NEED_REAL(symbol);                                                                                      \
		return launch(REAL(symbol), exec, stream, per_thread, upload);                                          \
	}
LAUNCH(cuGraphLaunch, false, false)
LAUNCH(cuGraphLaunch_ptsz, true, false)
LAUNCH(cuGraphUpload, false, true)
LAUNCH(cuGraphUpload_ptsz, true, true)
