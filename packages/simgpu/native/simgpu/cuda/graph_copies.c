/* Copies of graphs: clones, children of other graphs, and graphs that are launched into a captured stream. */
#include "graphs.h"

#include <stdlib.h>

static CUresult copy_node(struct graph *graph, const struct graph_node *node, CUgraphNode *result)
{
	switch (node->type) {
	case NODE_KERNEL: return cuda_add_kernel(graph, node->work);
	case NODE_COPY:
	case NODE_FILL: return cuda_add_move(graph, node->move);
	case NODE_HOST: return cuda_add_host(graph, &node->host);
	case NODE_GRAPH: {
		struct graph_node child;
		CUresult status = cuda_graph_child(node->child->nodes, node->child->nodes->count, &child);
		return status == CUDA_SUCCESS ? cuda_graph_add(graph, child, result) : status;
	}
	default: return CUDA_NOT_SUPPORTED;
	}
}

CUresult cuda_graph_copy(struct graph *graph, const struct nodes *nodes, size_t count)
{
	CUgraphNode node;
	CUresult result = CUDA_SUCCESS;
	size_t first = graph->nodes->count;
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = copy_node(graph, nodes->all[i], &node);
	for (size_t i = 0; i < nodes->edge_count && result == CUDA_SUCCESS; i++) {
		struct graph_node *ends[2] = {NULL, NULL};
		for (size_t k = 0; k < count; k++) {
			ends[0] = nodes->all[k] == nodes->edges[i].from ? graph->nodes->all[first + k] : ends[0];
			ends[1] = nodes->all[k] == nodes->edges[i].to ? graph->nodes->all[first + k] : ends[1];
		}
		if (ends[0] && ends[1])
			result = cuda_graph_link(graph, ends[0], ends[1]);
	}
	return result;
}

CUresult cuda_graph_child(const struct nodes *nodes, size_t count, struct graph_node *node)
{
	struct graph *copy;
	CUresult result = cuda_graph_make(&copy);
	if (result != CUDA_SUCCESS)
		return result;
	result = cuda_graph_copy(copy, nodes, count);
	if (result != CUDA_SUCCESS)
		cuda_graph_free(copy);
	*node = (struct graph_node){.type = NODE_GRAPH, .child = copy};
	return result;
}

/* With the host functions that the executable graph has now. */
static void give_hosts(struct nodes *nodes, const struct host_operation **hosts)
{
	for (size_t i = 0; i < nodes->count; i++) {
		if (nodes->all[i]->type == NODE_HOST)
			nodes->all[i]->host = *(*hosts)++;
		else if (nodes->all[i]->type == NODE_GRAPH)
			give_hosts(nodes->all[i]->child->nodes, hosts);
	}
}

CUresult cuda_add_exec(struct graph *graph, const struct graph_exec *exec)
{
	struct graph_node child;
	const struct host_operation *hosts = exec->hosts;
	CUresult result = cuda_graph_child(exec->nodes, exec->count, &child);
	if (result != CUDA_SUCCESS)
		return result;
	give_hosts(child.child->nodes, &hosts);
	result = cuda_graph_add(graph, child, NULL);
	if (result != CUDA_SUCCESS)
		cuda_graph_free(child.child);
	return result;
}

/* The child is copied, so that later changes of it have no effect. */
EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count, CUgraph child)
{
	struct graph_node wanted;
	NEED(node && (before || !count));
	GRAPH(graph);
	NEED(cuda_graph_valid(child) && child != graph);
	CUresult result = cuda_graph_child(child->nodes, child->nodes->count, &wanted);
	if (result != CUDA_SUCCESS)
		return result;
	result = cuda_graph_add_behind(graph, before, count, wanted, node);
	if (result != CUDA_SUCCESS)
		cuda_graph_free(wanted.child);
	return result;
}

EXPORT CUresult cuGraphClone(CUgraph *result, CUgraph graph)
{
	NEED(result);
	GRAPH(graph);
	CUresult status = cuda_graph_make(result);
	if (status != CUDA_SUCCESS)
		return status;
	status = cuda_graph_copy(*result, graph->nodes, graph->nodes->count);
	if (status != CUDA_SUCCESS)
		cuda_graph_free(*result);
	return status;
}
