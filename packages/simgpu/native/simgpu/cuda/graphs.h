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
};

struct nodes {
	struct graph_node **all;
	size_t count;
	unsigned references;
};

/* An executable graph shares the nodes as they were. */
struct graph {
	uint32_t magic;
	struct nodes *nodes;
};

struct graph_exec {
	uint32_t magic;
	struct nodes *nodes;
	size_t count;
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

#endif
