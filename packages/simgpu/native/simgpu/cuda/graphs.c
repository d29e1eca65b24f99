/*
 * Graphs of kernels, moves, host functions and memory, made by hand or by capturing streams (captures.c). Nodes run in the order in which they
 * were added, which is an order that every graph allows; their edges only describe the graph. Memory of a graph has its address from the beginning; what it
 * takes of the GPU's memory comes from one pool of all graphs, which grows at a launch and shrinks when it is trimmed.
 */
#include "graphs.h"

#include <stdlib.h>
#include <string.h>

struct pool_properties {
	int type, handle_types;
	struct { int type, id; } location;
	void *security;
	size_t most;
	unsigned short usage;
	unsigned char reserved[54];
};

struct memory_parameters {
	struct pool_properties pool;
	const void *access;
	size_t access_count, size;
	CUdeviceptr address;
};

struct kernel_parameters {
	CUfunction function;
	uint32_t grid[3], block[3], shared;
	void **params, **extra;
	void *kernel;
	CUcontext context;
};

pthread_mutex_t cuda_graph_guard = PTHREAD_MUTEX_INITIALIZER;
static struct memory *memories;

void cuda_graph_use(struct memory *memory, bool used)
{
	struct device *device = &cuda_devices[memory->device];
	uint64_t charge = cuda_charge_of(memory->size);
	if (used && !memory->used)
		device->graph_used += charge;
	else if (!used && memory->used)
		device->graph_used -= charge;
	if (device->graph_used > device->graph_used_high)
		device->graph_used_high = device->graph_used;
	memory->used = used;
}

void cuda_graph_drop(struct nodes *nodes)
{
	pthread_mutex_lock(&cuda_graph_guard);
	bool last = --nodes->references == 0;
	pthread_mutex_unlock(&cuda_graph_guard);
	for (size_t i = 0; last && i < nodes->count; i++) {
		struct graph_node *node = nodes->all[i];
		if (node->child)
			cuda_graph_free(node->child);
		if (node->type == NODE_ALLOCATE) {
			pthread_mutex_lock(&cuda_graph_guard);
			cuda_graph_use(node->memory, false);
			for (struct memory **at = &memories; *at; at = &(*at)->next)
				if (*at == node->memory) {
					*at = node->memory->next;
					break;
				}
			pthread_mutex_unlock(&cuda_graph_guard);
			cuda_forget(node->memory->address);
			free(node->memory);
		}
		free(node->work);
		free(node->move);
		node->magic = 0;
		free(node);
	}
	if (last) {
		free(nodes->all);
		free(nodes->edges);
		free(nodes);
	}
}

CUresult cuda_graph_add(struct graph *graph, struct graph_node wanted, CUgraphNode *result)
{
	struct nodes *nodes = graph->nodes;
	struct graph_node *node = malloc(sizeof *node);
	pthread_mutex_lock(&cuda_graph_guard);
	struct graph_node **larger = node ? realloc(nodes->all, (nodes->count + 1) * sizeof *larger) : NULL;
	if (larger) {
		*node = wanted;
		node->magic = MAGIC_NODE;
		nodes->all = larger;
		nodes->all[nodes->count++] = node;
		if (result)
			*result = node;
	}
	pthread_mutex_unlock(&cuda_graph_guard);
	if (!larger)
		free(node);
	return larger ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}

CUresult cuda_graph_link(struct graph *graph, struct graph_node *from, struct graph_node *to)
{
	struct nodes *nodes = graph->nodes;
	pthread_mutex_lock(&cuda_graph_guard);
	struct edge *larger = realloc(nodes->edges, (nodes->edge_count + 1) * sizeof *larger);
	if (larger) {
		nodes->edges = larger;
		nodes->edges[nodes->edge_count++] = (struct edge){from, to};
	}
	pthread_mutex_unlock(&cuda_graph_guard);
	return larger ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}

CUresult cuda_graph_add_behind(struct graph *graph, const CUgraphNode *before, size_t count, struct graph_node wanted, CUgraphNode *result)
{
	for (size_t i = 0; i < count; i++)
		NEED(before[i] && before[i]->magic == MAGIC_NODE);
	CUresult status = cuda_graph_add(graph, wanted, result);
	for (size_t i = 0; i < count && status == CUDA_SUCCESS; i++)
		status = cuda_graph_link(graph, before[i], *result);
	return status;
}

CUresult cuda_graph_entered(struct graph *graph, uint64_t capture, unsigned branch, const struct history *before, struct history *linked)
{
	struct nodes *nodes = graph->nodes;
	struct graph_node *node = nodes->all[nodes->count - 1];
	CUresult result = CUDA_SUCCESS;
	node->capture = capture;
	node->branch = branch;
	node->number = before->operations[branch];
	for (unsigned i = 0; i < CAPTURE_STREAMS && result == CUDA_SUCCESS; i++) {
		uint32_t number = before->operations[i] - (i == branch);
		if (!number || number == linked->operations[i])
			continue;
		for (size_t k = nodes->count - 1; k--;)
			if (nodes->all[k]->capture == capture && nodes->all[k]->branch == i && nodes->all[k]->number == number) {
				result = cuda_graph_link(graph, nodes->all[k], node);
				break;
			}
	}
	*linked = *before;
	linked->operations[branch]--; /* the next one comes behind this one */
	return result;
}

static CUresult add_kernel(struct graph *graph, const CUgraphNode *before, size_t count, const struct work *work, CUgraphNode *result)
{
	struct work *copy = malloc(sizeof *copy);
	if (!copy)
		return CUDA_OUT_OF_MEMORY;
	*copy = *work;
	return cuda_graph_add_behind(graph, before, count, (struct graph_node){.type = NODE_KERNEL, .work = copy}, result);
}

CUresult cuda_add_move(struct graph *graph, const struct move *move)
{
	struct move *copy = malloc(sizeof *copy);
	if (!copy)
		return CUDA_OUT_OF_MEMORY;
	*copy = *move;
	return cuda_graph_add(graph, (struct graph_node){.type = move->element ? NODE_FILL : NODE_COPY, .move = copy}, NULL);
}

CUresult cuda_add_host(struct graph *graph, const struct host_operation *host)
{
	return cuda_graph_add(graph, (struct graph_node){.type = NODE_HOST, .host = *host}, NULL);
}

static CUresult add_memory(struct graph *graph, const CUgraphNode *before, size_t count, struct context *context, uint64_t size,
			   uint64_t *address, CUgraphNode *result)
{
	struct memory *memory = calloc(1, sizeof *memory);
	if (!memory)
		return CUDA_OUT_OF_MEMORY;
	*memory = (struct memory){.size = size, .device = context->device};
	CUresult status = cuda_allocate(context, size, KIND_GRAPH, 0, NULL, &memory->address);
	if (status != CUDA_SUCCESS) {
		free(memory);
		return status;
	}
	*address = memory->address;
	pthread_mutex_lock(&cuda_graph_guard);
	memory->next = memories;
	memories = memory;
	pthread_mutex_unlock(&cuda_graph_guard);
	return cuda_graph_add_behind(graph, before, count, (struct graph_node){.type = NODE_ALLOCATE, .memory = memory}, result);
}

static CUresult add_free(struct graph *graph, const CUgraphNode *before, size_t count, uint64_t address, CUgraphNode *result)
{
	struct memory *found = NULL;
	pthread_mutex_lock(&cuda_graph_guard);
	for (struct memory *memory = memories; memory && !found; memory = memory->next)
		if (memory->address == address)
			found = memory;
	pthread_mutex_unlock(&cuda_graph_guard);
	NEED(found);
	return cuda_graph_add_behind(graph, before, count, (struct graph_node){.type = NODE_FREE, .memory = found}, result);
}

CUresult cuda_add_kernel(struct graph *graph, const struct work *work)
{
	CUgraphNode node;
	return add_kernel(graph, NULL, 0, work, &node);
}

CUresult cuda_add_allocation(struct graph *graph, struct context *context, uint64_t size, uint64_t *address)
{
	CUgraphNode node;
	return add_memory(graph, NULL, 0, context, size, address, &node);
}

CUresult cuda_add_free(struct graph *graph, uint64_t address)
{
	CUgraphNode node;
	return add_free(graph, NULL, 0, address, &node);
}

CUresult cuda_graph_make(struct graph **result)
{
	struct graph *graph = calloc(1, sizeof *graph);
	struct nodes *nodes = calloc(1, sizeof *nodes);
	if (!graph || !nodes) {
		free(graph);
		free(nodes);
		return CUDA_OUT_OF_MEMORY;
	}
	nodes->references = 1;
	*graph = (struct graph){MAGIC_GRAPH, nodes};
	*result = graph;
	return CUDA_SUCCESS;
}

void cuda_graph_free(struct graph *graph)
{
	graph->magic = 0;
	cuda_graph_drop(graph->nodes);
	free(graph);
}

bool cuda_graph_valid(const struct graph *graph)
{
	return graph && graph->magic == MAGIC_GRAPH;
}

EXPORT CUresult cuGraphCreate(CUgraph *result, unsigned flags)
{
	NEED(result && flags == 0);
	READY();
	return cuda_graph_make(result);
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
	GRAPH(graph);
	cuda_graph_free(graph);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
					const struct kernel_parameters *wanted)
{
	struct work work;
	NEED(node && wanted && (before || !count));
	GRAPH(graph);
	CUresult result = cuda_prepare(&work, wanted->function, wanted->grid, wanted->block, wanted->shared, wanted->params, wanted->extra);
	return result == CUDA_SUCCESS ? add_kernel(graph, before, count, &work, node) : result;
}

EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *child)
{
	NEED(node && node->magic == MAGIC_NODE && node->child && child);
	*child = node->child;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
				       struct memory_parameters *wanted)
{
	NEED(node && wanted && wanted->size && (before || !count));
	GRAPH(graph);
	CONTEXT(context);
	NEED(wanted->pool.location.type == 1 && wanted->pool.location.id == context->device);
	return add_memory(graph, before, count, context, wanted->size, &wanted->address, node);
}

EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count, CUdeviceptr address)
{
	NEED(node && (before || !count));
	GRAPH(graph);
	return add_free(graph, before, count, address, node);
}

EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *list, size_t *count)
{
	NEED(count);
	GRAPH(graph);
	const struct nodes *nodes = graph->nodes;
	for (size_t i = 0; list && i < *count; i++)
		list[i] = i < nodes->count ? nodes->all[i] : NULL;
	if (!list || *count > nodes->count)
		*count = nodes->count;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	NEED(count && !from == !to);
	GRAPH(graph);
	const struct nodes *nodes = graph->nodes;
	for (size_t i = 0; from && i < *count; i++) {
		from[i] = i < nodes->edge_count ? nodes->edges[i].from : NULL;
		to[i] = i < nodes->edge_count ? nodes->edges[i].to : NULL;
	}
	if (!from || *count > nodes->edge_count)
		*count = nodes->edge_count;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
	NEED(node && node->magic == MAGIC_NODE && type);
	*type = node->type;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, struct memory_parameters *parameters)
{
	NEED(node && node->magic == MAGIC_NODE && node->type == NODE_ALLOCATE && parameters);
	*parameters = (struct memory_parameters){
		.pool = {.type = 1, .location = {1, node->memory->device}}, .size = node->memory->size,
		.address = node->memory->address,
	};
	return CUDA_SUCCESS;
}

bool cuda_graph_freed(uint64_t address)
{
	bool freed = false;
	pthread_mutex_lock(&cuda_graph_guard);
	for (struct memory *memory = memories; memory; memory = memory->next)
		if (memory->address == address && memory->used) {
			cuda_graph_use(memory, false);
			freed = true;
		}
	pthread_mutex_unlock(&cuda_graph_guard);
	return freed;
}
