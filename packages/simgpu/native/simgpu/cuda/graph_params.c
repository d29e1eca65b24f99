/* Host functions of graphs and of executable ones, and updates of these. */
#include "graphs.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { UPDATE_SUCCESS, UPDATE_ERROR, UPDATE_TOPOLOGY_CHANGED };

struct host_parameters {
	void (*function)(void *);
	void *data;
};

static struct host_operation operation_of(const struct host_parameters *parameters)
{
	return (struct host_operation){.function = parameters->function, .data = parameters->data};
}

EXPORT CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
				   const struct host_parameters *wanted)
{
	NEED(node && wanted && wanted->function && (before || !count));
	GRAPH(graph);
	return cuda_graph_add_behind(graph, before, count, (struct graph_node){.type = NODE_HOST, .host = operation_of(wanted)}, node);
}

#define HOST_NODE(node) NEED((node) && (node)->magic == MAGIC_NODE && (node)->type == NODE_HOST)

EXPORT CUresult cuGraphHostNodeGetParams(CUgraphNode node, struct host_parameters *parameters)
{
	NEED(parameters);
	HOST_NODE(node);
	*parameters = (struct host_parameters){node->host.function, node->host.data};
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphHostNodeSetParams(CUgraphNode node, const struct host_parameters *parameters)
{
	NEED(parameters && parameters->function);
	HOST_NODE(node);
	node->host = operation_of(parameters);
	return CUDA_SUCCESS;
}

size_t cuda_graph_hosts(const struct nodes *nodes, size_t count)
{
	size_t hosts = 0;
	for (size_t i = 0; i < count; i++) {
		const struct graph_node *node = nodes->all[i];
		hosts += node->type == NODE_GRAPH ? cuda_graph_hosts(node->child->nodes, node->child->nodes->count)
						  : node->type == NODE_HOST;
	}
	return hosts;
}

static struct host_operation *collect(const struct nodes *nodes, size_t count, struct host_operation *at)
{
	for (size_t i = 0; i < count; i++) {
		const struct graph_node *node = nodes->all[i];
		if (node->type == NODE_HOST)
			*at++ = node->host;
		else if (node->type == NODE_GRAPH)
			at = collect(node->child->nodes, node->child->nodes->count, at);
	}
	return at;
}

CUresult cuda_exec_use(struct graph_exec *exec, struct nodes *nodes, size_t count)
{
	size_t hosts = cuda_graph_hosts(nodes, count);
	struct host_operation *fresh = malloc((hosts + 1) * sizeof *fresh);
	if (!fresh)
		return CUDA_OUT_OF_MEMORY;
	collect(nodes, count, fresh);
	free(exec->hosts);
	exec->hosts = fresh;
	exec->nodes = nodes;
	exec->count = count;
	return CUDA_SUCCESS;
}

static bool same_shape(const struct nodes *one, size_t count, const struct nodes *other, size_t other_count)
{
	bool same = count == other_count;
	for (size_t i = 0; i < count && same; i++) {
		const struct graph_node *a = one->all[i], *b = other->all[i];
		same = a->type == b->type && (a->type != NODE_GRAPH ||
			same_shape(a->child->nodes, a->child->nodes->count, b->child->nodes, b->child->nodes->count));
	}
	return same;
}

static CUresult update(struct graph_exec *exec, CUgraph graph, int *outcome)
{
	NEED(exec && exec->magic == MAGIC_EXEC && outcome);
	GRAPH(graph);
	struct nodes *before = exec->nodes, *nodes = graph->nodes;
	*outcome = same_shape(before, exec->count, nodes, nodes->count) ? UPDATE_SUCCESS : UPDATE_TOPOLOGY_CHANGED;
	if (*outcome != UPDATE_SUCCESS)
		return CUDA_GRAPH_EXEC_UPDATE_FAILURE;
	CUresult result = cuda_exec_use(exec, nodes, nodes->count);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&cuda_graph_guard);
	nodes->references++;
	pthread_mutex_unlock(&cuda_graph_guard);
	cuda_graph_drop(before);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *failed, int *outcome)
{
	NEED(failed);
	*failed = NULL;
	return update(exec, graph, outcome);
}

struct update_result {
	int outcome;
	CUgraphNode failed, from;
};

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, struct update_result *result)
{
	NEED(result);
	*result = (struct update_result){0};
	return update(exec, graph, &result->outcome);
}

/* The place of a node of the original graph among the host functions; false: it is not in it. */
static bool place_of(const struct nodes *nodes, size_t count, const struct graph_node *wanted, size_t *place)
{
	for (size_t i = 0; i < count; i++) {
		const struct graph_node *node = nodes->all[i];
		if (node == wanted)
			return true;
		if (node->type == NODE_GRAPH) {
			if (place_of(node->child->nodes, node->child->nodes->count, wanted, place))
				return true;
		} else {
			*place += node->type == NODE_HOST;
		}
	}
	return false;
}

EXPORT CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const struct host_parameters *parameters)
{
	size_t place = 0;
	READY();
	NEED(exec && exec->magic == MAGIC_EXEC && parameters && parameters->function);
	HOST_NODE(node);
	NEED(place_of(exec->origin, exec->origin_count, node, &place));
	exec->hosts[place] = operation_of(parameters);
	return CUDA_SUCCESS;
}

/* Host functions are taken from the child; what else differs is refused, since it cannot be changed here. */
EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
	size_t place = 0;
	NEED(exec && exec->magic == MAGIC_EXEC && node && node->magic == MAGIC_NODE && node->type == NODE_GRAPH);
	GRAPH(child);
	NEED(place_of(exec->origin, exec->origin_count, node, &place));
	const struct nodes *own = node->child->nodes, *nodes = child->nodes;
	if (!same_shape(own, own->count, nodes, nodes->count))
		return CUDA_GRAPH_EXEC_UPDATE_FAILURE;
	for (size_t i = 0; i < nodes->count; i++)
		if (nodes->all[i]->work && memcmp(nodes->all[i]->work, own->all[i]->work, offsetof(struct work, params) + PTX_MAX_PARAMS))
			return CUDA_NOT_SUPPORTED;
	collect(nodes, nodes->count, exec->hosts + place);
	return CUDA_SUCCESS;
}

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

EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, struct node_parameters *parameters)
{
	NEED(parameters);
	switch (parameters->type) {
	case NODE_HOST: return cuGraphExecHostNodeSetParams(exec, node, &parameters->host);
	case NODE_GRAPH: return cuGraphExecChildGraphNodeSetParams(exec, node, parameters->child);
	default: return CUDA_NOT_SUPPORTED;
	}
}
