/*
 * A program that launches one kernel after the other for as long as it may, and what part of the GPU's time it got.
 *
 *     busy MICROSECONDS SECONDS SETTLED [waits]
 *
 * It begins when a line comes; what counts begins SETTLED seconds later. With `waits` it waits for each kernel. Parts are those of windows of equal length,
 * averaged over where they begin, so that neither a turn nor a kernel at an edge counts.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef int (*function)();

#define MOST 2000000
#define STARTS 50

static double times[MOST];

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

int main(int count, char **words)
{
	if (count < 4)
		return 2;
	double us = atof(words[1]), seconds = atof(words[2]), settled = atof(words[3]);
	void *context, *module, *kernel, *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!cuda)
		return puts(dlerror()), 1;
	function launch = (function)dlsym(cuda, "cuLaunchKernel");
	function wait = (function)dlsym(cuda, "cuCtxSynchronize");
	char ptx[200], line[10];
	snprintf(ptx, sizeof ptx, ".version 7.0 .target sm_35 .address_size 64 .visible .entry k() "
				  "{ .pragma \"simgpu.time_ns %ld\"; ret; }", (long)(us * 1000));
	must(((function)dlsym(cuda, "cuInit"))(0), "cuInit");
	must(((function)dlsym(cuda, "cuCtxCreate_v2"))(&context, 0, 0), "cuCtxCreate");
	must(((function)dlsym(cuda, "cuModuleLoadData"))(&module, ptx), "cuModuleLoadData");
	must(((function)dlsym(cuda, "cuModuleGetFunction"))(&kernel, module, "k"), "cuModuleGetFunction");
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		return 1;
	long done = 0;
	double start = now(), end = start + seconds;
	while (done < MOST && (done ? times[done - 1] : start) < end) {
		must(launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
		if (count > 4)
			must(wait(), "cuCtxSynchronize");
		times[done++] = now();
	}
	double first = start + settled, slack = 10 * us / 1e6;
	slack = slack < 0.3 ? 0.3 : slack;
	double length = end - first - slack, sum = 0;
	for (int i = 0; i < STARTS; i++) {
		double from = first + slack * i / STARTS;
		for (long k = 0; k < done; k++)
			sum += times[k] >= from && times[k] < from + length;
	}
	printf("%f\n", 100 * sum / STARTS * us / 1e6 / length);
	_exit(fflush(stdout) != 0);
}
