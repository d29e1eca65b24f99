/* Graphs as graphs.c makes them and graph_execs.c runs them. */
#ifndef SIMGPU_GRAPHS_H
#define SIMGPU_GRAPHS_H

#include "cuda.h"

enum { NODE_KERNEL = 0, NODE_COPY = 1, NODE_FILL = 2, NODE_HOST = 3, NODE_GRAPH = 4, NODE_ALLOCATE = 10, NODE_FREE = 11 };

/* `used` from the launch of its node until it is freed, by a graph or by a call. */
struct memory {
	uint64_t address, size;
	CUdevice device;
	bool used;
	struct memory *next;
};

struct graph_node {
	uint32_t magic;
	int type;
	struct work *work;
	struct move *move;
	struct host_operation host;
	struct memory *memory;
	struct graph *child; /* a copy of its own */
	uint64_t capture;    /* which it comes from, 0: none; the branch there, and its number in it, from 1 on */
	unsigned branch;
	uint32_t number;
};

struct edge {
	struct graph_node *from, *to;
};

struct nodes {
	struct graph_node **all;
	size_t count;
	struct edge *edges;
	size_t edge_count;
	unsigned references;
};

/* An executable graph shares the nodes as they were. */
struct graph {
	uint32_t magic;
	struct nodes *nodes;
};

/* Its nodes are found by those of the graph that it was made of, whatever it was updated with since. */
struct graph_exec {
	uint32_t magic;
	struct nodes *nodes, *origin;
	size_t count, origin_count;
	struct host_operation *hosts; /* of all nodes and graphs in them, in the order in which they run */
};

extern pthread_mutex_t cuda_graph_guard; /* of references, of `used`, and of what devices hold for graphs */

#define GRAPH(graph)                                                                                                   \
	READY();                                                                                                        \
	if (!(graph) || (graph)->magic != MAGIC_GRAPH)                                                                  \
	return CUDA_INVALID_VALUE

/* With the guard held: counts memory as used or as free. */
void cuda_graph_use(struct memory *memory, bool used);
/* Gives up one reference. */
void cuda_graph_drop(struct nodes *nodes);
CUresult cuda_graph_add(struct graph *graph, struct graph_node wanted, CUgraphNode *result);
/* One more node, behind those named. */
CUresult cuda_graph_add_behind(struct graph *graph, const CUgraphNode *before, size_t count, struct graph_node wanted, CUgraphNode *result);
/* Copies of nodes and their edges; memory cannot be in two graphs, which the driver refuses too. */
CUresult cuda_graph_copy(struct graph *graph, const struct nodes *nodes, size_t count);
/* A node with a copy of such nodes as its child, not yet in any graph. */
CUresult cuda_graph_child(const struct nodes *nodes, size_t count, struct graph_node *node);
size_t cuda_graph_hosts(const struct nodes *nodes, size_t count); /* how many host functions there are */
/* The graph that an executable graph runs from now on. */
CUresult cuda_exec_use(struct graph_exec *exec, struct nodes *nodes, size_t count);

#endif
