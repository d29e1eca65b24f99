/*
 * Threads that make graphs with host functions, change, launch, capture and destroy them while they run, in random order for some
 * seconds. Built together with the limiter's sources and sanitizers; the driver behind it is the simulated one.
 *
 *     graphs SEED SECONDS PERCENT
 *
 * Each host function runs as often as it was launched, with the data that the program gave. Kernels get no more than PERCENT of
 * the time. When all is over, nothing counts as held or captured.
 */
#include "../../native/limiter/cuda/gate.h"
#include "../../native/limiter/cuda/hosts.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

CUresult cuInit(unsigned), cuCtxCreate_v2(CUcontext *, unsigned, CUdevice), cuCtxDestroy_v2(CUcontext), cuStreamSynchronize(CUstream);
CUresult cuStreamBeginCapture_v2(CUstream, int), cuStreamEndCapture(CUstream, CUgraph *), cuStreamDestroy_v2(CUstream);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long), cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphExecDestroy(CUgraphExec), cuGraphExecUpdate_v2(CUgraphExec, CUgraph, void *);
CUresult cuGraphExecHostNodeSetParams(CUgraphExec, CUgraphNode, const struct host_parameters *);
CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *);

#define THREADS 5
#define NODES_MOST 6
#define KERNEL_NS 100000
#define SLACK_NS 80000000.0
#define MAGIC 0x686f7374u

static const char kernel[] = ".version 7.0 .target sm_35 .address_size 64 .visible .entry k() "
			     "{ .pragma \"simgpu.time_ns 100000\"; ret; }";

struct kernel_parameters {
	CUfunction function;
	unsigned grid[3], block[3], shared;
	void **parameters, **extra, *kernel;
	CUcontext context;
};
#define ADDING CUgraphNode *, CUgraph, const CUgraphNode *, size_t
static CUresult (*load)(void **, const void *), (*function_of)(CUfunction *, void *, const char *);
static CUresult (*stream_create)(CUstream *, unsigned), (*graph_create)(CUgraph *, unsigned), (*graph_destroy)(CUgraph);
static CUresult (*add_kernel)(ADDING, const struct kernel_parameters *), (*add_host)(ADDING, const struct host_parameters *);
static CUresult (*add_child)(ADDING, CUgraph), (*graph_clone)(CUgraph *, CUgraph);

static CUcontext context;
static CUfunction function;
static uint64_t until, kernels;

struct called {
	uint32_t magic;
	uint64_t calls, wanted;
};

struct mine {
	uint64_t state;
	CUstream stream;
	CUgraph graph; /* of exec */
	CUgraphNode host;
	CUgraphExec exec;
	unsigned exec_kernels, exec_hosts;
	struct called graph_data, set_data; /* of all host functions of a graph; of one that was set */
	bool set;
};

static void must(int result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "%s: %d\n", what, result);
	abort();
}

static uint64_t next(struct mine *self)
{
	self->state ^= self->state << 13;
	self->state ^= self->state >> 7;
	return self->state ^= self->state << 17;
}

static void host(void *data)
{
	struct called *called = data;
	must(called->magic != MAGIC, "data of a host function");
	if (ADD(called->calls, 1) % 3 == 0)
		clock_pause(300000);
}

/* Kernels and host functions one behind the other or side by side, perhaps with such a graph in the middle. */
static CUgraph make(struct mine *self, unsigned *kernel_count, unsigned *host_count, CUgraphNode *last_host, bool child)
{
	const struct kernel_parameters work = {.function = function, .grid = {1, 1, 1}, .block = {1, 1, 1}};
	const struct host_parameters call = {host, &self->graph_data};
	CUgraphNode node = NULL, before = NULL;
	CUgraph graph, inner;
	must(graph_create(&graph, 0), "graph");
	bool side = next(self) % 4 == 0;
	must(add_host(&before, graph, NULL, 0, &call), "host node");
	*last_host = before;
	++*host_count;
	for (unsigned i = 1 + next(self) % NODES_MOST; i; i--) {
		const CUgraphNode *behind = side ? NULL : &before;
		size_t count = !side;
		if (child && next(self) % 4 == 0) {
			CUgraphNode other;
			inner = make(self, kernel_count, host_count, &other, false);
			must(add_child(&node, graph, behind, count, inner), "child");
			graph_destroy(inner);
		} else if (next(self) % 2) {
			must(add_kernel(&node, graph, behind, count, &work), "kernel node");
			++*kernel_count;
		} else {
			must(add_host(&node, graph, behind, count, &call), "host node");
			++*host_count;
		}
		before = node;
	}
	return graph;
}

static void renew(struct mine *self)
{
	if (self->exec)
		must(cuGraphExecDestroy(self->exec), "destroy"); /* perhaps while it runs */
	if (self->graph)
		graph_destroy(self->graph);
	self->exec_kernels = self->exec_hosts = 0;
	self->set = false;
	self->graph = make(self, &self->exec_kernels, &self->exec_hosts, &self->host, true);
	must(cuGraphInstantiateWithFlags(&self->exec, self->graph, 0), "instantiate");
	if (next(self) % 2)
		return;
	graph_destroy(self->graph); /* the executable one goes on without it */
	self->graph = NULL;
}

static void count_launch(struct mine *self)
{
	ADD(kernels, self->exec_kernels);
	ADD(self->graph_data.wanted, self->exec_hosts - self->set);
	ADD(self->set_data.wanted, self->set);
}

static void change(struct mine *self)
{
	const struct host_parameters other = {host, &self->set_data};
	uint64_t outcome[3];
	CUgraph copy;
	if (!self->graph)
		return;
	if (next(self) % 2) {
		must(cuGraphExecHostNodeSetParams(self->exec, self->host, &other), "set");
		self->set = true;
		return;
	}
	must(graph_clone(&copy, self->graph), "clone");
	must(cuGraphExecUpdate_v2(self->exec, copy, outcome), "update");
	graph_destroy(copy);
	self->set = false;
}

/* Its launch is recorded, and what it was recorded in is launched, perhaps when it is no more. */
static void capture(struct mine *self)
{
	CUgraph graph;
	CUgraphExec outer;
	must(cuStreamBeginCapture_v2(self->stream, 2), "begin");
	must(cuGraphLaunch(self->exec, self->stream), "launch in a capture");
	must(cuStreamEndCapture(self->stream, &graph), "end");
	unsigned launches = (unsigned)(next(self) % 3);
	for (unsigned i = 0; i < launches; i++)
		count_launch(self);
	if (next(self) % 2)
		renew(self);
	must(cuGraphInstantiateWithFlags(&outer, graph, 0), "instantiate the outer one");
	while (launches--)
		must(cuGraphLaunch(outer, self->stream), "launch the outer one");
	must(cuGraphExecDestroy(outer), "destroy the outer one");
	graph_destroy(graph);
}

static void *run(void *argument)
{
	struct mine *self = argument;
	REAL(cuCtxSetCurrent)(context);
	must(stream_create(&self->stream, 1), "cuStreamCreate");
	self->graph_data.magic = self->set_data.magic = MAGIC;
	renew(self);
	while (clock_now() < until)
		switch (next(self) % 12) {
		case 0: renew(self); break;
		case 1: case 2: change(self); break;
		case 3: capture(self); break;
		case 4: must(cuStreamSynchronize(self->stream), "wait"); break;
		case 5:
			must(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, self->stream, NULL, NULL), "launch");
			ADD(kernels, 1);
			break;
		case 6:
			must(cuLaunchHostFunc(self->stream, host, &self->graph_data), "host function");
			ADD(self->graph_data.wanted, 1);
			break;
		default:
			must(cuGraphLaunch(self->exec, self->stream), "launch of a graph");
			count_launch(self);
		}
	must(cuStreamSynchronize(self->stream), "last wait");
	must(cuGraphExecDestroy(self->exec), "last destroy");
	must(LOAD(self->graph_data.calls) != self->graph_data.wanted, "calls of host functions");
	must(LOAD(self->set_data.calls) != self->set_data.wanted, "calls of functions that were set");
	cuStreamDestroy_v2(self->stream);
	return NULL;
}

static void *found(void *library, const char *name)
{
	void *function = dlsym(library, name);
	must(!function, name);
	return function;
}

static void find_functions(void)
{
	void *real = dlopen(REAL_CUDA, RTLD_NOW);
	must(!real, "the driver");
	*(void **)&load = found(real, "cuModuleLoadData");
	*(void **)&function_of = found(real, "cuModuleGetFunction");
	*(void **)&stream_create = found(real, "cuStreamCreate");
	*(void **)&graph_create = found(real, "cuGraphCreate");
	*(void **)&graph_destroy = found(real, "cuGraphDestroy");
	*(void **)&add_kernel = found(real, "cuGraphAddKernelNode_v2");
	*(void **)&add_host = found(real, "cuGraphAddHostNode");
	*(void **)&add_child = found(real, "cuGraphAddChildGraphNode");
	*(void **)&graph_clone = found(real, "cuGraphClone");
}

int main(int count, char **words)
{
	static struct mine threads[THREADS];
	pthread_t ids[THREADS];
	void *module;
	if (count < 4)
		return 2;
	find_functions();
	must(cuInit(0) || cuCtxCreate_v2(&context, 0, 0), "context");
	must(load(&module, kernel) || function_of(&function, module, "k"), "kernel");
	uint64_t seed = strtoull(words[1], NULL, 10) * 0x9e3779b97f4a7c15ull, started = clock_now();
	until = started + (uint64_t)(atof(words[2]) * 1e9);
	for (int i = 0; i < THREADS; i++) {
		threads[i].state = seed = seed * 6364136223846793005ull + (uint64_t)i + 1;
		pthread_create(&ids[i], NULL, run, &threads[i]);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(ids[i], NULL);
	double most = (double)(clock_now() - started) * atof(words[3]) / 100 + SLACK_NS, took = (double)kernels * KERNEL_NS;
	waits_look(NULL);
	bool held = LOAD(captures_open) || LOAD(waits_open);
	cuCtxDestroy_v2(context);
	if (took > most || held) {
		fprintf(stderr, "%.0f ms of kernels, %.0f at most; held: %d\n", took / 1e6, most / 1e6, held);
		return 1;
	}
	printf("%llu\n", (unsigned long long)kernels);
	return 0;
}
