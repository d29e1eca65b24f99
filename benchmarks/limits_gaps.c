/*
 * A program that launches kernels in one of several ways for as long as it may, and one that sees how long it waits for the GPU.
 *
 *     gaps WAY MICROSECONDS SECONDS CAPTURE
 *
 * WAY: one (stream), forty (streams in turn), fresh (a stream for each launch), thread (for each launch), or watch. CAPTURE is 1 for a
 * capture that stays open. It begins when a line comes; `watch` prints its longest wait in milliseconds, others 0.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int (*function)();

#define FREE 1
#define RELAXED 2
#define OWN ((void *)2)
#define STREAMS 40
#define PAUSE_US 60000 /* least pause: the simulated driver makes a launch wait where another process used the GPU 50 ms ago */

static function launch, create, destroy, set_context;
static void *context, *kernel, *streams[STREAMS];

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void must(int result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "%s: %d\n", what, result);
	exit(1);
}

static void run(void *stream)
{
	must(launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
}

static void *in_thread(void *nothing)
{
	must(set_context(context), "cuCtxSetCurrent");
	run(OWN);
	return nothing;
}

static void step(const char *way, long number)
{
	void *brief;
	pthread_t thread;
	if (!strcmp(way, "fresh")) {
		must(create(&brief, FREE), "cuStreamCreate");
		run(brief);
		must(destroy(brief), "cuStreamDestroy");
	} else if (!strcmp(way, "thread")) {
		must(pthread_create(&thread, NULL, in_thread, NULL), "pthread_create");
		pthread_join(thread, NULL);
	} else {
		run(streams[strcmp(way, "forty") ? 0 : number % STREAMS]);
	}
}

static double watch(function wait)
{
	double start = now();
	run(NULL);
	must(wait(), "cuCtxSynchronize");
	double took = now() - start;
	usleep(PAUSE_US + (unsigned)rand() % PAUSE_US);
	return took;
}

int main(int count, char **words)
{
	if (count < 5)
		return 2;
	const char *way = words[1];
	void *module, *captured, *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!cuda)
		return puts(dlerror()), 1;
	launch = (function)dlsym(cuda, "cuLaunchKernel");
	create = (function)dlsym(cuda, "cuStreamCreate");
	destroy = (function)dlsym(cuda, "cuStreamDestroy_v2");
	set_context = (function)dlsym(cuda, "cuCtxSetCurrent");
	function wait = (function)dlsym(cuda, "cuCtxSynchronize");
	char ptx[200], line[10];
	snprintf(ptx, sizeof ptx, ".version 7.0 .target sm_35 .address_size 64 .visible .entry k() "
				  "{ .pragma \"simgpu.time_ns %ld\"; ret; }", atol(words[2]) * 1000);
	must(((function)dlsym(cuda, "cuInit"))(0), "cuInit");
	must(((function)dlsym(cuda, "cuCtxCreate_v2"))(&context, 0, 0), "cuCtxCreate");
	must(((function)dlsym(cuda, "cuModuleLoadData"))(&module, ptx), "cuModuleLoadData");
	must(((function)dlsym(cuda, "cuModuleGetFunction"))(&kernel, module, "k"), "cuModuleGetFunction");
	for (int i = 0; i < STREAMS; i++)
		must(create(&streams[i], FREE), "cuStreamCreate");
	run(NULL);
	must(wait(), "cuCtxSynchronize");
	must(create(&captured, FREE), "cuStreamCreate");
	if (*words[4] == '1')
		must(((function)dlsym(cuda, "cuStreamBeginCapture_v2"))(captured, RELAXED), "cuStreamBeginCapture");
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		return 1;
	double longest = 0, until = now() + atof(words[3]);
	for (long number = 0; now() < until; number++) {
		double took = 0;
		if (strcmp(way, "watch"))
			step(way, number);
		else
			took = watch(wait);
		longest = took > longest ? took : longest;
	}
	printf("%f\n", longest * 1000);
	_exit(fflush(stdout) != 0);
}
