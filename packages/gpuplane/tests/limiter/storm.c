/*
 * Threads that begin, fork, end and forget captures, launch next to them and behind what waits for something outside, and make and destroy streams, in random order for
 * some seconds. Built together with the limiter's sources and sanitizers; the driver behind it is the simulated one.
 *
 *     storm orderly|wild SEED SECONDS PERCENT
 *
 * In order: no call of the program spoils a capture, so each has to end with the kernels that were recorded. Wild: calls
 * that a capture forbids, captures ended by other threads, destroyed with their streams, and left by threads that end.
 * Either way kernels get no more than PERCENT of the time, and no capture counts as open once its context has ended.
 */
#include "../../native/limiter/cuda/gate.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUresult cuInit(unsigned), cuCtxCreate_v2(CUcontext *, unsigned, CUdevice), cuCtxDestroy_v2(CUcontext), cuCtxSynchronize(void);
CUresult cuStreamBeginCapture_v2(CUstream, int), cuStreamBeginCapture_v2_ptsz(CUstream, int), cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuStreamDestroy_v2(CUstream), cuStreamSynchronize(CUstream), cuMemAlloc_v2(CUdeviceptr *, size_t), cuMemFree_v2(CUdeviceptr);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long), cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *), cuStreamWaitValue32_v2(CUstream, CUdeviceptr, uint32_t, unsigned);
CUresult cuGraphExecDestroy(CUgraphExec), cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);

#define THREADS 6
#define STREAMS 4       /* of each thread, and as many for all */
#define KERNEL_NS 100000
#define SLACK_NS 80000000.0 /* what was saved before the first launch, a long turn, and one kernel of each thread */

static const char kernel[] = ".version 7.0 .target sm_35 .address_size 64 .visible .entry k() "
			     "{ .pragma \"simgpu.time_ns 100000\"; ret; }";

static CUresult (*load)(void **, const void *), (*function_of)(CUfunction *, void *, const char *), (*graph_destroy)(CUgraph);
static CUresult (*stream_create)(CUstream *, unsigned), (*stream_wait)(CUstream, CUevent, unsigned), (*stream_query)(CUstream);

static CUcontext context;
static CUfunction function;
static CUstream shared[STREAMS];
static bool wild;
static uint64_t until, kernels; /* kernels that ran */

struct mine {
	uint64_t state;
	CUstream streams[STREAMS];
	CUevent fork, join;
	CUgraphExec exec;
	unsigned exec_kernels;
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

static CUresult launch(CUstream stream)
{
	return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

/* A kernel that runs, unless wild calls of this thread have left the stream captured. */
static void launch_outside(struct mine *self)
{
	CUstream stream = next(self) % 2 ? self->streams[1 + next(self) % (STREAMS - 1)] : next(self) % 2 ? STREAM_LEGACY : STREAM_OWN;
	bool recorded = captures_hold(stream);
	CUresult result = stream == STREAM_OWN ? cuLaunchKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) : launch(stream);
	if (!wild)
		must(result, "launch");
	if (result == CUDA_SUCCESS && !recorded)
		ADD(kernels, 1);
}

static void launch_graph(struct mine *self)
{
	if (self->exec && cuGraphLaunch(self->exec, self->streams[1]) == CUDA_SUCCESS)
		ADD(kernels, self->exec_kernels);
}

static void keep(struct mine *self, CUgraph graph, unsigned count)
{
	if (self->exec)
		cuGraphExecDestroy(self->exec);
	self->exec = NULL;
	if (count && count < 9 && cuGraphInstantiateWithFlags(&self->exec, graph, 0) == CUDA_SUCCESS)
		self->exec_kernels = count;
	graph_destroy(graph);
}

static void renew(CUstream *stream)
{
	cuStreamDestroy_v2(*stream);
	must(stream_create(stream, 1), "cuStreamCreate");
}

static void short_pause(void *data)
{
	(void)data;
	clock_pause(200000);
}

/* Something outside that a stream waits for, and work behind it. It may be captured by a wild thread. */
static void wait_outside(struct mine *self)
{
	CUstream stream = self->streams[2 + next(self) % 2];
	static uint32_t word;
	bool recorded = captures_hold(stream);
	CUresult result = next(self) % 2 ? cuLaunchHostFunc(stream, short_pause, NULL)
					 : cuStreamWaitValue32_v2(stream, (CUdeviceptr)(uintptr_t)&word, 0, 0);
	if (!wild)
		must(result, "wait for something outside");
	for (unsigned i = next(self) % 4; i; i--)
		if (launch(stream) == CUDA_SUCCESS && !recorded)
			ADD(kernels, 1);
}

/* A whole capture, with a second stream drawn in and joined back, and launches next to it. */
static void capture(struct mine *self)
{
	CUstream origin = self->streams[0], drawn = self->streams[1];
	unsigned wanted = 0;
	CUgraph graph;
	size_t count = 0;
	if (next(self) % 2)
		launch_outside(self); /* work that is queued before, in the stream that is drawn in too */
	must(cuStreamBeginCapture_v2(origin, (int)(next(self) % 3)), "begin");
	bool forked = next(self) % 2;
	if (forked) {
		must(REAL(cuEventRecord)(self->fork, origin), "record the fork");
		must(stream_wait(drawn, self->fork, 0), "fork");
	}
	for (unsigned i = next(self) % 20; i; i--) {
		bool beside = next(self) % 3 == 0;
		if (beside) {
			must(launch(self->streams[2]), "launch beside");
			ADD(kernels, 1);
		} else {
			must(launch(forked && next(self) % 2 ? drawn : origin), "launch in a capture");
			wanted++;
		}
	}
	if (next(self) % 8 == 0)
		renew(&self->streams[3]);
	if (forked) {
		must(REAL(cuEventRecord)(self->join, drawn), "record the join");
		must(stream_wait(origin, self->join, 0), "join");
	}
	must(cuStreamEndCapture(origin, &graph), "end");
	must(REAL(cuGraphGetNodes)(graph, NULL, &count), "nodes");
	must(count != wanted, "kernels of a graph");
	keep(self, graph, wanted);
}

static void orderly_step(struct mine *self)
{
	switch (next(self) % 8) {
	case 0: case 1: capture(self); break;
	case 2: launch_graph(self); break;
	case 3: renew(&self->streams[next(self) % STREAMS]); break;
	case 4: wait_outside(self); break;
	default: launch_outside(self);
	}
}

static void wild_step(struct mine *self)
{
	CUstream any = next(self) % 2 ? shared[next(self) % STREAMS] : self->streams[next(self) % STREAMS];
	CUgraph graph = NULL;
	CUdeviceptr address;
	switch (next(self) % 20) {
	case 0: case 1: case 2: cuStreamBeginCapture_v2(any, (int)(next(self) % 4)); break;
	case 3: cuStreamBeginCapture_v2_ptsz(NULL, (int)(next(self) % 3)); break;
	case 4: case 5: case 6:
		if (cuStreamEndCapture(next(self) % 4 ? any : STREAM_OWN, &graph) == CUDA_SUCCESS)
			graph_destroy(graph);
		break;
	case 7: renew(&self->streams[next(self) % STREAMS]); break;
	case 8: REAL(cuEventRecord)(self->fork, any); break;
	case 9: case 10: stream_wait(any, self->fork, 0); break;
	case 11: cuCtxSynchronize(); break;
	case 12: stream_query(any); break;
	case 13: cuStreamSynchronize(any); break;
	case 14: if (cuMemAlloc_v2(&address, 4096) == CUDA_SUCCESS) cuMemFree_v2(address); break;
	case 15: cuMemAllocAsync(&address, 4096, any); break;
	case 17: wait_outside(self); break;
	case 16: cuStreamDestroy_v2(next(self) % 2 ? NULL : STREAM_LEGACY); break;
	default: launch_outside(self);
	}
}

static void *run(void *argument)
{
	struct mine *self = argument;
	REAL(cuCtxSetCurrent)(context);
	for (int i = 0; i < STREAMS; i++)
		must(stream_create(&self->streams[i], 1), "cuStreamCreate");
	must(REAL(cuEventCreate)(&self->fork, 2) || REAL(cuEventCreate)(&self->join, 2), "cuEventCreate");
	/* Wild threads end early, perhaps in the middle of a capture, and are followed by others. */
	for (int i = 0; clock_now() < until && (!wild || i < 400); i++)
		(wild ? wild_step : orderly_step)(self);
	for (int i = 0; i < STREAMS; i++)
		cuStreamDestroy_v2(self->streams[i]);
	return NULL;
}

static void find_functions(void)
{
	void *real = dlopen(REAL_CUDA, RTLD_NOW);
	must(!real, "the driver");
	*(void **)&load = dlsym(real, "cuModuleLoadData");
	*(void **)&function_of = dlsym(real, "cuModuleGetFunction");
	*(void **)&graph_destroy = dlsym(real, "cuGraphDestroy");
	*(void **)&stream_create = dlsym(real, "cuStreamCreate");
	*(void **)&stream_wait = dlsym(real, "cuStreamWaitEvent");
	*(void **)&stream_query = dlsym(real, "cuStreamQuery");
}

int main(int count, char **words)
{
	static struct mine threads[THREADS];
	pthread_t ids[THREADS];
	void *module;
	if (count < 5)
		return 2;
	find_functions();
	wild = !strcmp(words[1], "wild");
	must(cuInit(0) || cuCtxCreate_v2(&context, 0, 0), "context");
	must(load(&module, kernel) || function_of(&function, module, "k"), "kernel");
	for (int i = 0; i < STREAMS; i++)
		must(stream_create(&shared[i], i % 2), "cuStreamCreate");
	uint64_t seed = strtoull(words[2], NULL, 10) * 0x9e3779b97f4a7c15ull, started = clock_now();
	until = started + (uint64_t)(atof(words[3]) * 1e9);
	do {
		for (int i = 0; i < THREADS; i++) {
			memset(&threads[i], 0, sizeof threads[i]);
			threads[i].state = seed = seed * 6364136223846793005ull + (uint64_t)i + 1;
			pthread_create(&ids[i], NULL, run, &threads[i]);
		}
		for (int i = 0; i < THREADS; i++)
			pthread_join(ids[i], NULL);
	} while (clock_now() < until);
	double most = (double)(clock_now() - started) * atof(words[4]) / 100 + SLACK_NS, took = (double)kernels * KERNEL_NS;
	if (!wild)
		must(cuCtxSynchronize(), "wait for the context");
	cuCtxDestroy_v2(context);
	if (took > most || LOAD(captures_open)) {
		fprintf(stderr, "%.0f ms of kernels, %.0f at most; %d captures open\n", took / 1e6, most / 1e6, captures_open);
		return 1;
	}
	printf("%llu\n", (unsigned long long)kernels);
	return 0;
}
