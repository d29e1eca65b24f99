/*
 * Which nodes of a graph run alone: all that uses a GPU comes before them or behind them. The driver's edges are put into an
 * order in which every edge goes forwards; then two passes from a node find what it reaches and what reaches it. Edges with
 * data, such as those that let a kernel begin before the one it depends on has ended, are not listed by the plain call: it
 * fails, and no node counts as alone.
 */
#include "hosts.h"

#include <stdlib.h>

#define STEPS_MOST (1u << 27) /* of all passes: graphs with very many host functions are waited for */

struct edge {
	size_t from, to;
};

struct order {
	size_t count, edge_count;
	struct edge *edges; /* between places, by the first one */
	size_t *place;      /* of each node */
	size_t *first;      /* edge of each place, and one more */
};

struct named {
	CUgraphNode node;
	size_t number;
};

static int by_node(const void *one, const void *other)
{
	uintptr_t a = (uintptr_t)((const struct named *)one)->node, b = (uintptr_t)((const struct named *)other)->node;
	return (a > b) - (a < b);
}

static int by_first(const void *one, const void *other)
{
	size_t a = ((const struct edge *)one)->from, b = ((const struct edge *)other)->from;
	return (a > b) - (a < b);
}

/* The edges, between numbers of nodes. */
static bool read_edges(struct order *order, CUgraph graph, CUgraphNode *nodes)
{
	size_t count = 0;
	if (REAL(cuGraphGetEdges)(graph, NULL, NULL, &count) != CUDA_SUCCESS)
		return false;
	CUgraphNode *ends = calloc(2 * count + 1, sizeof *ends);
	struct named *names = calloc(order->count, sizeof *names);
	order->edges = calloc(count + 1, sizeof *order->edges);
	bool read = ends && names && order->edges &&
		    (!count || REAL(cuGraphGetEdges)(graph, ends, ends + count, &count) == CUDA_SUCCESS);
	for (size_t i = 0; read && i < order->count; i++)
		names[i] = (struct named){nodes[i], i};
	if (read)
		qsort(names, order->count, sizeof *names, by_node);
	order->edge_count = count;
	for (size_t i = 0; read && i < 2 * count; i++) {
		const struct named wanted = {.node = ends[i]}, *found = bsearch(&wanted, names, order->count, sizeof *names, by_node);
		read = found != NULL;
		if (read)
			*(i < count ? &order->edges[i].from : &order->edges[i - count].to) = found->number;
	}
	free(ends);
	free(names);
	return read;
}

/* Where the edges of each place, or number, begin. */
static void index_edges(struct order *order)
{
	size_t at = 0;
	qsort(order->edges, order->edge_count, sizeof *order->edges, by_first);
	for (size_t i = 0; i <= order->count; i++) {
		while (at < order->edge_count && order->edges[at].from < i)
			at++;
		order->first[i] = at;
	}
}

/* Gives each node a place behind all that it depends on, and turns the edges' numbers into places. */
static bool sort(struct order *order)
{
	size_t *missing = calloc(2 * order->count, sizeof *missing), *ready = missing + order->count, next = 0, last = 0;
	if (!missing)
		return false;
	index_edges(order);
	for (size_t i = 0; i < order->edge_count; i++)
		missing[order->edges[i].to]++;
	for (size_t i = 0; i < order->count; i++)
		if (!missing[i])
			ready[last++] = i;
	for (; next < last; next++) {
		size_t number = ready[next];
		order->place[number] = next;
		for (size_t i = order->first[number]; i < order->first[number + 1]; i++)
			if (!--missing[order->edges[i].to])
				ready[last++] = order->edges[i].to;
	}
	free(missing);
	for (size_t i = 0; i < order->edge_count; i++)
		order->edges[i] = (struct edge){order->place[order->edges[i].from], order->place[order->edges[i].to]};
	index_edges(order);
	return last == order->count;
}

/* Marks what a place reaches, and what reaches it. */
static void reach(const struct order *order, size_t place, bool *marks)
{
	for (size_t i = 0; i < order->count; i++)
		marks[i] = i == place;
	for (size_t from = place; from < order->count; from++)
		for (size_t i = order->first[from]; marks[from] && i < order->first[from + 1]; i++)
			marks[order->edges[i].to] = true;
	for (size_t from = place; from--;)
		for (size_t i = order->first[from]; !marks[from] && i < order->first[from + 1]; i++)
			marks[from] = order->edges[i].to <= place && marks[order->edges[i].to];
}

static bool idle(int type)
{
	return type == NODE_HOST || type == NODE_EMPTY;
}

bool hosts_alone(CUgraph graph, CUgraphNode *nodes, const int *types, size_t count, enum place *places)
{
	struct order order = {.count = count};
	size_t steps = 0;
	bool *marks = calloc(count, sizeof *marks);
	order.place = calloc(count, sizeof *order.place);
	order.first = calloc(count + 1, sizeof *order.first);
	bool known = marks && order.place && order.first && read_edges(&order, graph, nodes) && sort(&order);
	for (size_t i = 0; known && i < count; i++) {
		places[i] = BESIDE_WORK;
		steps += types[i] == NODE_HOST || types[i] == NODE_GRAPH ? 2 * count + order.edge_count : 0;
		if ((types[i] != NODE_HOST && types[i] != NODE_GRAPH) || steps > STEPS_MOST)
			continue;
		reach(&order, order.place[i], marks);
		places[i] = BEHIND_WORK;
		for (size_t k = 0; k < count && places[i] != BESIDE_WORK; k++) {
			if (k == i || idle(types[k]))
				continue;
			if (!marks[order.place[k]])
				places[i] = BESIDE_WORK;
			else if (order.place[k] > order.place[i])
				places[i] = AMONG_WORK;
		}
	}
	free(marks);
	free(order.edges);
	free(order.place);
	free(order.first);
	return known;
}
