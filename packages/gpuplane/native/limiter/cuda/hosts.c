/* The program's host functions behind ours, and how long they live. hosts.h has the invariants. */
#include "hosts.h"
#include "gate.h"

#include <stdlib.h>

struct host {
	struct hosts *hosts;
	CUgraphNode node; /* where it was put; NULL: nowhere */
	CUgraphNode top;  /* the same, or the child graph that it is in; NULL: of another graph than the first */
	struct host_parameters own;
	bool last;      /* nothing that uses a GPU comes behind it in its graph */
	uint64_t until; /* once replaced: the last launch that may call it */
	struct host *next;
};

struct hosts {
	unsigned inside;
	int gpu; /* of the last launch; -1: unknown */
	uint64_t passed; /* launches on that GPU until then */
	unsigned references; /* the executable graph, and those of its launches that may not be over */
	uint64_t launched, finished;
	struct host *used, *replaced;
	CUgraphNode *tops; /* of the graph that it was made of */
	size_t top_count;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER; /* of all but `inside` */

static void run(void *data)
{
	const struct host *host = data;
	struct hosts *hosts = host->hosts;
	int gpu = LOAD(hosts->gpu);
	gate_pause(gpu);
	ADD(hosts->inside, 1);
	host->own.function(host->own.data);
	gate_resume(gpu, !host->last || gpu < 0 || gate_passed(gpu) != LOAD(hosts->passed), &hosts->inside);
	/* NB: From here on the launch may be over, and the memory gone. */
}

bool hosts_inside(const struct hosts *hosts)
{
	return LOAD(hosts->inside) != 0;
}

size_t hosts_nodes(CUgraph graph, CUgraphNode **nodes, int **types)
{
	size_t count = 0;
	*nodes = NULL;
	*types = NULL;
	if (REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || !count)
		return 0;
	*nodes = calloc(count, sizeof **nodes);
	*types = calloc(count, sizeof **types);
	if (!*nodes || !*types || REAL(cuGraphGetNodes)(graph, *nodes, &count) != CUDA_SUCCESS)
		return 0;
	for (size_t i = 0; i < count; i++)
		if (REAL(cuGraphNodeGetType)((*nodes)[i], &(*types)[i]) != CUDA_SUCCESS)
			(*types)[i] = -1;
	return count;
}

static bool child_of(CUgraphNode node, CUgraph *child)
{
	return HAS(cuGraphChildGraphNodeGetGraph) && REAL(cuGraphChildGraphNodeGetGraph)(node, child) == CUDA_SUCCESS;
}

static bool put(CUgraphNode node, void (*function)(void *), void *data)
{
	struct host_parameters parameters = {function, data};
	return REAL(cuGraphHostNodeSetParams)(node, &parameters) == CUDA_SUCCESS;
}

static struct host *make(struct hosts *hosts, CUgraphNode node, CUgraphNode top, struct host_parameters own, bool last)
{
	struct host *host = malloc(sizeof *host);
	if (own.function == run) /* in a graph that could not be cleared */
		own = ((const struct host *)own.data)->own;
	if (host)
		*host = (struct host){.hosts = hosts, .node = node, .top = top, .own = own, .last = last};
	return host;
}

static void wrap(struct hosts *hosts, CUgraph graph, CUgraphNode top, bool last, int depth, struct host **list)
{
	CUgraphNode *nodes;
	int *types;
	if (!depth)
		return;
	size_t count = hosts_nodes(graph, &nodes, &types), candidates = 0;
	for (size_t i = 0; i < count; i++)
		candidates += types[i] == NODE_HOST || types[i] == NODE_GRAPH;
	enum place *alone = candidates ? calloc(count, sizeof *alone) : NULL;
	bool known = alone && hosts_alone(graph, nodes, types, count, alone);
	for (size_t i = 0; known && i < count; i++) {
		struct host_parameters own;
		CUgraph child;
		struct host *host = NULL;
		if (alone[i] == BESIDE_WORK)
			continue;
		bool end = last && alone[i] == BEHIND_WORK;
		if (types[i] == NODE_GRAPH && child_of(nodes[i], &child))
			wrap(hosts, child, top ? top : nodes[i], end, depth - 1, list);
		else if (types[i] == NODE_HOST && REAL(cuGraphHostNodeGetParams)(nodes[i], &own) == CUDA_SUCCESS)
			host = make(hosts, nodes[i], top ? top : nodes[i], own, end);
		if (host && put(nodes[i], run, host)) {
			host->next = *list;
			*list = host;
		} else {
			free(host);
		}
	}
	free(alone);
	free(nodes);
	free(types);
}

static void unwrap(const struct host *list)
{
	for (; list; list = list->next)
		if (list->node)
			put(list->node, list->own.function, list->own.data);
}

static void drop(struct host *list)
{
	while (list) {
		struct host *gone = list;
		list = gone->next;
		free(gone);
	}
}

static void drop_all(struct hosts *hosts)
{
	drop(hosts->used);
	drop(hosts->replaced);
	free(hosts->tops);
	free(hosts);
}

struct host *hosts_wrap(struct hosts *hosts, CUgraph graph)
{
	struct host *list = NULL;
	if (hosts && HAS(cuGraphGetEdges) && HAS(cuGraphHostNodeGetParams) && HAS(cuGraphHostNodeSetParams))
		wrap(hosts, graph, NULL, true, GRAPH_DEPTH, &list);
	return list;
}

struct hosts *hosts_begin(CUgraph graph)
{
	struct hosts *hosts = calloc(1, sizeof *hosts);
	if (!hosts || !(hosts->used = hosts_wrap(hosts, graph))) {
		free(hosts);
		return NULL;
	}
	hosts->references = 1;
	hosts->gpu = -1;
	for (const struct host *host = hosts->used; host; host = host->next)
		hosts->top_count++;
	hosts->tops = calloc(hosts->top_count, sizeof *hosts->tops);
	if (!hosts->tops) /* later changes of single nodes are not seen, and waited for */
		hosts->top_count = 0;
	size_t at = 0;
	for (const struct host *host = hosts->used; host && hosts->tops; host = host->next)
		hosts->tops[at++] = host->top;
	return hosts;
}

struct hosts *hosts_end(struct hosts *hosts, CUresult result)
{
	if (!hosts)
		return NULL;
	unwrap(hosts->used);
	if (result == CUDA_SUCCESS)
		return hosts;
	drop_all(hosts);
	return NULL;
}

bool hosts_has(struct hosts *hosts, CUgraphNode node)
{
	bool found = false;
	for (size_t i = 0; hosts && i < hosts->top_count && !found; i++)
		found = hosts->tops[i] == node;
	return found;
}

struct host *hosts_set(struct hosts *hosts, CUgraphNode node, struct host_parameters *parameters)
{
	struct host *host = hosts_has(hosts, node) ? make(hosts, NULL, node, *parameters, false) : NULL;
	if (host)
		*parameters = (struct host_parameters){run, host};
	return host;
}

/* With the guard held: frees what no launch may call any more. */
static void sweep(struct hosts *hosts)
{
	for (struct host **at = &hosts->replaced; *at;) {
		struct host *host = *at;
		if (host->until > hosts->finished) {
			at = &host->next;
			continue;
		}
		*at = host->next;
		free(host);
	}
}

void hosts_update(struct hosts *hosts, CUgraphNode node, struct host *list, CUresult result)
{
	unwrap(list);
	if (result != CUDA_SUCCESS) {
		drop(list);
		return;
	}
	if (!hosts || (node && !hosts_has(hosts, node)))
		return;
	pthread_mutex_lock(&guard);
	for (struct host **at = &hosts->used; *at;) {
		struct host *host = *at;
		if (node && host->top != node) {
			at = &host->next;
			continue;
		}
		*at = host->next;
		host->until = hosts->launched;
		host->next = hosts->replaced;
		hosts->replaced = host;
	}
	while (list) {
		struct host *host = list;
		list = host->next;
		host->top = node;
		host->next = hosts->used;
		hosts->used = host;
	}
	sweep(hosts);
	pthread_mutex_unlock(&guard);
}

static bool clear(CUgraph graph, int depth)
{
	CUgraphNode *nodes;
	int *types;
	bool cleared = depth > 0;
	if (!depth)
		return false;
	size_t count = hosts_nodes(graph, &nodes, &types);
	for (size_t i = 0; i < count; i++) {
		struct host_parameters found;
		CUgraph child;
		if (types[i] == NODE_GRAPH && child_of(nodes[i], &child))
			cleared &= clear(child, depth - 1);
		if (types[i] != NODE_HOST || REAL(cuGraphHostNodeGetParams)(nodes[i], &found) != CUDA_SUCCESS || found.function != run)
			continue;
		const struct host_parameters own = ((const struct host *)found.data)->own;
		cleared &= put(nodes[i], own.function, own.data);
	}
	free(nodes);
	free(types);
	return cleared;
}

bool hosts_clear(CUstream stream)
{
	CUgraph graph = NULL;
	int status = 0;
	return HAS(cuStreamGetCaptureInfo_v2) &&
	       REAL(cuStreamGetCaptureInfo_v2)(stream, &status, NULL, &graph, NULL, NULL) == CUDA_SUCCESS && graph &&
	       clear(graph, GRAPH_DEPTH);
}

void hosts_launched(struct hosts *hosts, int gpu)
{
	pthread_mutex_lock(&guard);
	STORE(hosts->gpu, gpu);
	STORE(hosts->passed, gate_passed(gpu));
	hosts->launched++;
	hosts->references++;
	pthread_mutex_unlock(&guard);
}

void hosts_pin(struct hosts *hosts)
{
	pthread_mutex_lock(&guard);
	hosts->launched++;
	hosts->references++;
	pthread_mutex_unlock(&guard);
}

void hosts_finished(struct hosts *hosts)
{
	pthread_mutex_lock(&guard);
	hosts->finished++;
	sweep(hosts);
	bool last = !--hosts->references;
	pthread_mutex_unlock(&guard);
	if (last)
		drop_all(hosts);
}

void hosts_destroyed(struct hosts *hosts)
{
	pthread_mutex_lock(&guard);
	bool last = hosts && !--hosts->references;
	pthread_mutex_unlock(&guard);
	if (last)
		drop_all(hosts);
}

void hosts_forget(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	guard = fresh;
}
