/*
 * Graphs: their memory nodes are charged when they are launched, since that is when memory is taken, and their launches
 * wait for the GPU's time like those of kernels. Host functions in them are ours while they are instantiated (hosts.h).
 */
#include "gate.h"
#include "holds.h"
#include "hosts.h"

#include <stdlib.h>

#define DEVICE_LAUNCH 4u /* among the flags of an instantiation */
#define INSTANTIATION_FAILED 1

static bool time_is_limited(void)
{
	bool limited = false;
	for (int gpu = 0; cuda_active && gpu < PAGE_GPUS && !limited; gpu++)
		limited = LOAD(limits->gpus[gpu].core) != 0;
	return limited;
}

/* A graph that kernels may launch could launch itself again and again, in one turn that no launch of ours ends. So it is
   refused where time is limited, as a driver refuses it where it is not supported. */
static bool launches_itself(unsigned long long flags)
{
	if (!time_is_limited() || !(flags & DEVICE_LAUNCH))
		return false;
	say(SAY_DEVICE_LAUNCH, "graphs that kernels launch are not supported under a limit of compute");
	return true;
}

/* The memory of all memory nodes of a graph, and of graphs in it. Nodes that use the same memory one after the other are
   counted twice: the difference is returned after the launch. */
static uint64_t footprint(CUgraph graph, int depth)
{
	CUgraphNode *nodes;
	int *types;
	uint64_t sum = 0;
	if (!depth || !HAS(cuGraphMemAllocNodeGetParams))
		return 0;
	size_t count = hosts_nodes(graph, &nodes, &types);
	for (size_t i = 0; i < count; i++) {
		struct alloc_node_parameters node;
		CUgraph child;
		if (types[i] == NODE_MEMORY && REAL(cuGraphMemAllocNodeGetParams)(nodes[i], &node) == CUDA_SUCCESS)
			sum += memory_rounded(node.size);
		else if (types[i] == NODE_GRAPH && HAS(cuGraphChildGraphNodeGetGraph) &&
			 REAL(cuGraphChildGraphNodeGetGraph)(nodes[i], &child) == CUDA_SUCCESS)
			sum += footprint(child, depth - 1);
	}
	free(nodes);
	free(types);
	return sum;
}

static struct hosts *begin(CUgraph graph)
{
	return time_is_limited() ? hosts_begin(graph) : NULL;
}

/* NB: The thread that begins the work ends it, which is the only one to use the graph meanwhile. */
static CUresult instantiated(struct hosts *begun, CUresult result, const CUgraphExec *exec, CUgraph graph)
{
	struct hosts *hosts = hosts_end(begun, result);
	if (!cuda_active || result != CUDA_SUCCESS)
		return result;
	uint64_t bytes = footprint(graph, GRAPH_DEPTH);
	if (bytes || hosts)
		track_put(KIND_EXEC, (uint64_t)(uintptr_t)*exec, (struct held){.bytes = bytes, .owner = hosts});
	return result;
}

#define INSTANTIATE(symbol, parameters, arguments)                                                                     \
	EXPORT CUresult symbol parameters                                                                               \
	{                                                                                                               \
		NEED_REAL(symbol);                                                                                      \
		struct hosts *begun = begin(graph);                                                                     \
		return instantiated(begun, REAL(symbol) arguments, exec, graph);                                        \
	}
INSTANTIATE(cuGraphInstantiate, (CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size),
	    (exec, graph, error, log, size))
INSTANTIATE(cuGraphInstantiate_v2, (CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size),
	    (exec, graph, error, log, size))

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	NEED_REAL(cuGraphInstantiateWithFlags);
	if (launches_itself(flags))
		return CUDA_NOT_SUPPORTED;
	struct hosts *begun = begin(graph);
	return instantiated(begun, REAL(cuGraphInstantiateWithFlags)(exec, graph, flags), exec, graph);
}

struct instantiation {
	uint64_t flags;
	CUstream upload;
	CUgraphNode failed;
	int result;
};

#define WITH_PARAMETERS(symbol)                                                                                        \
	EXPORT CUresult symbol(CUgraphExec *exec, CUgraph graph, struct instantiation *parameters)                      \
	{                                                                                                               \
		NEED_REAL(symbol);                                                                                      \
		if (parameters && launches_itself(parameters->flags)) {                                                 \
			parameters->result = INSTANTIATION_FAILED;                                                      \
			return CUDA_NOT_SUPPORTED;                                                                      \
		}                                                                                                       \
		struct hosts *begun = begin(graph);                                                                     \
		return instantiated(begun, REAL(symbol)(exec, graph, parameters), exec, graph);                         \
	}
WITH_PARAMETERS(cuGraphInstantiateWithParams)
WITH_PARAMETERS(cuGraphInstantiateWithParams_ptsz)

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	struct held held;
	NEED_REAL(cuGraphExecDestroy);
	bool ours = cuda_active && track_take(KIND_EXEC, (uint64_t)(uintptr_t)exec, &held);
	CUresult result = REAL(cuGraphExecDestroy)(exec);
	if (ours && result != CUDA_SUCCESS)
		track_put(KIND_EXEC, (uint64_t)(uintptr_t)exec, held);
	else if (ours && held.owner)
		hosts_destroyed(held.owner);
	return result;
}

typedef CUresult launch_function(CUgraphExec, CUstream);

static CUresult launch(launch_function *real, CUgraphExec exec, CUstream stream, bool per_thread, bool upload)
{
	struct held held = {0};
	struct opening opening;
	uint64_t granted = 0;
	CUdevice device = -1;
	bool allocates = cuda_active && track_get(KIND_EXEC, (uint64_t)(uintptr_t)exec, &held) && held.bytes;
	struct hosts *hosts = upload ? NULL : held.owner;
	if (allocates) {
		device = cuda_stream_device(stream);
		slots_begin_change();
		if (!pool_take_graph(device, held.bytes, &granted)) {
			slots_end_change();
			return CUDA_OUT_OF_MEMORY;
		}
	}
	CUstream meant = streams_meant(stream, per_thread);
	bool hold = hosts && holds_prepare_graph(&opening, meant);
	bool allowed = upload || gate_begin_graph(meant, exec);
	hold = hold && holds_begin_graph(&opening, hosts);
	CUresult result = allowed ? real(exec, stream) : CUDA_DEVICE_UNAVAILABLE;
	if (!upload) {
		gate_launched(meant);
		gate_end_graph();
	}
	if (hold)
		holds_close(&opening, result);
	else if (hosts && result == CUDA_SUCCESS && !(captures_hold(meant) && hosts_clear(meant)))
		hosts_pin(hosts);
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
