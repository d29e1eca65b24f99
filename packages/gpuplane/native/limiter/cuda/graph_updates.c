/* Changes of executable graphs: the host functions that they bring are replaced by ours (hosts.h). */
#include "hosts.h"

static struct hosts *hosts_of(CUgraphExec exec)
{
	struct held held;
	return cuda_active && track_get(KIND_EXEC, (uint64_t)(uintptr_t)exec, &held) ? held.owner : NULL;
}

EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *failed, int *outcome)
{
	NEED_REAL(cuGraphExecUpdate);
	struct hosts *hosts = hosts_of(exec);
	struct host *list = hosts_wrap(hosts, graph);
	CUresult result = REAL(cuGraphExecUpdate)(exec, graph, failed, outcome);
	hosts_update(hosts, NULL, list, result);
	return result;
}

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, void *outcome)
{
	NEED_REAL(cuGraphExecUpdate_v2);
	struct hosts *hosts = hosts_of(exec);
	struct host *list = hosts_wrap(hosts, graph);
	CUresult result = REAL(cuGraphExecUpdate_v2)(exec, graph, outcome);
	hosts_update(hosts, NULL, list, result);
	return result;
}

EXPORT CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const struct host_parameters *parameters)
{
	NEED_REAL(cuGraphExecHostNodeSetParams);
	struct host_parameters ours = parameters ? *parameters : (struct host_parameters){0};
	struct hosts *hosts = hosts_of(exec);
	struct host *host = ours.function ? hosts_set(hosts, node, &ours) : NULL;
	CUresult result = REAL(cuGraphExecHostNodeSetParams)(exec, node, host ? &ours : parameters);
	hosts_update(hosts, node, host, result);
	return result;
}

static struct host *wrap_child(struct hosts *hosts, CUgraphNode node, CUgraph child)
{
	return hosts_has(hosts, node) ? hosts_wrap(hosts, child) : NULL;
}

EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
	NEED_REAL(cuGraphExecChildGraphNodeSetParams);
	struct hosts *hosts = hosts_of(exec);
	struct host *list = wrap_child(hosts, node, child);
	CUresult result = REAL(cuGraphExecChildGraphNodeSetParams)(exec, node, child);
	hosts_update(hosts, node, list, result);
	return result;
}

/* The parameters of a node of any type. */
struct node_parameters {
	int type, reserved[3];
	union {
		struct host_parameters host;
		CUgraph child;
		int64_t room[29];
	};
	int64_t more;
};
_Static_assert(sizeof(struct node_parameters) == 256, "ABI");

EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, const struct node_parameters *parameters)
{
	NEED_REAL(cuGraphExecNodeSetParams);
	int type = parameters ? parameters->type : -1;
	struct hosts *hosts = type == NODE_HOST || type == NODE_GRAPH ? hosts_of(exec) : NULL;
	if (!hosts)
		return REAL(cuGraphExecNodeSetParams)(exec, node, parameters);
	struct node_parameters ours = *parameters;
	struct host *list = type == NODE_GRAPH ? wrap_child(hosts, node, ours.child)
		: ours.host.function ? hosts_set(hosts, node, &ours.host) : NULL;
	CUresult result = REAL(cuGraphExecNodeSetParams)(exec, node, &ours);
	hosts_update(hosts, node, list, result);
	return result;
}
