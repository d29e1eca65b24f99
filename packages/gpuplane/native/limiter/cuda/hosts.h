/*
 * Host functions that are nodes of graphs. While such a function runs alone, the GPU does nothing for its graph, so no turn is
 * kept for it; what comes behind it in the graph waits for a turn. Invariants:
 *
 * - An executable graph has our function in the place of the program's. A graph has it only during the calls that take it from
 *   there, so the program reads its own function wherever it asks.
 * - A function counts as running only where everything else of its graph, and of the graphs around it, comes before or behind
 *   it (alone.c). Other host functions are left as they are, and their graph is waited for.
 * - The driver runs an executable graph once at a time, so functions that run belong to its oldest launch.
 * - A function that the driver may still call lives as long as the executable graph, and until its launches are over.
 * - Nothing here calls the driver from a host function: that is not allowed.
 */
#ifndef GPUPLANE_HOSTS_H
#define GPUPLANE_HOSTS_H

#include "cuda.h"

#define NODE_HOST 3
#define NODE_GRAPH 4
#define NODE_EMPTY 5
#define NODE_MEMORY 10
#define GRAPH_DEPTH 64 /* of graphs in graphs: no driver lets a program come so far */

struct hosts; /* of an executable graph */
struct host;  /* one function, and those behind it in a list */

/* The nodes of a graph, and their types; the caller frees both. Returns how many; 0: none, or no memory. */
size_t hosts_nodes(CUgraph graph, CUgraphNode **nodes, int **types);
/* alone.c: where the host functions and child graphs are among the nodes that use a GPU. False: nothing is known. */
enum place { BESIDE_WORK, AMONG_WORK, BEHIND_WORK }; /* what is among it or behind all of it runs alone */
bool hosts_alone(CUgraph graph, CUgraphNode *nodes, const int *types, size_t count, enum place *places);

/* Around the instantiation of a graph. NULL: it has no host functions that run alone. */
struct hosts *hosts_begin(CUgraph graph);
struct hosts *hosts_end(struct hosts *hosts, CUresult result);
/* Around an update, from a graph, of all of an executable graph, or of the child graph of one of its nodes. */
struct host *hosts_wrap(struct hosts *hosts, CUgraph graph);
void hosts_update(struct hosts *hosts, CUgraphNode node, struct host *list, CUresult result);
/* Around an update of one function: puts ours into the parameters. NULL: they stay as they are. */
struct host *hosts_set(struct hosts *hosts, CUgraphNode node, struct host_parameters *parameters);
/* Whether a node of the graph that it was made of is, or has, a host function that runs alone. */
bool hosts_has(struct hosts *hosts, CUgraphNode node);
/* Takes our functions out of the graph that the stream is captured into. False: some may be left. */
bool hosts_clear(CUstream stream);

void hosts_launched(struct hosts *hosts, int gpu);
void hosts_finished(struct hosts *hosts); /* a launch is over, or failed */
void hosts_destroyed(struct hosts *hosts); /* the executable graph is */
void hosts_pin(struct hosts *hosts);      /* a launch of which it will not be known when it is over */
bool hosts_inside(const struct hosts *hosts); /* whether one of them runs, or waits for a turn at its end */
void hosts_forget(void); /* in a forked child */

#endif
