/*
 * Threads of one process that pthread_cancel ends at random moments, while they wait for memory or for a turn; then the
 * process itself allocates and launches.
 *
 *     cancelled COUNT
 *
 * Prints {"cancelled": N, "allocation": SECONDS, "launch": SECONDS}: what those calls took after the last thread ended. Which
 * share: GPUPLANE_LIMITS. libcuda.so.1 is loaded by its name.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define PATIENCE 10 /* seconds, then the process is stuck */

typedef int (*function)();
static function set_current, launch, allocate, release;
static void *context, *kernel;

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
	_exit(1);
}

/* Wants more than the limit, so that it waits for others and looks for the dead. */
static void *use_memory(void *unused)
{
	(void)unused;
	must(set_current(context), "cuCtxSetCurrent");
	for (uint64_t address;; pthread_testcancel())
		if (!allocate(&address, (size_t)(32 * MIB)))
			release(address);
	return NULL;
}

static void *use_time(void *unused)
{
	(void)unused;
	must(set_current(context), "cuCtxSetCurrent");
	for (;; pthread_testcancel())
		launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
	return NULL;
}

int main(int count, char **words)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *module;
	function init = (function)dlsym(cuda, "cuInit"), create = (function)dlsym(cuda, "cuCtxCreate_v2");
	function load = (function)dlsym(cuda, "cuModuleLoadData"), find = (function)dlsym(cuda, "cuModuleGetFunction");
	set_current = (function)dlsym(cuda, "cuCtxSetCurrent");
	launch = (function)dlsym(cuda, "cuLaunchKernel");
	allocate = (function)dlsym(cuda, "cuMemAlloc_v2");
	release = (function)dlsym(cuda, "cuMemFree_v2");
	int wanted = count > 1 ? atoi(words[1]) : 0, cancelled = 0;
	uint64_t kept;
	must(init(0), "cuInit");
	must(create(&context, 0, 0), "cuCtxCreate");
	must(load(&module, ".version 7.0 .target sm_35 .address_size 64 .visible .entry k() "
			   "{ .pragma \"simgpu.time_ns 4000000\"; ret; }"), "cuModuleLoadData");
	must(find(&kernel, module, "k"), "cuModuleGetFunction");
	must(allocate(&kept, (size_t)(40 * MIB)), "cuMemAlloc");
	setvbuf(stdout, NULL, _IOLBF, 0);
	srand(7);
	alarm(PATIENCE * 4); /* a thread that waits for a lock of the dead ends by no cancellation */
	for (; cancelled < wanted; cancelled++) {
		pthread_t thread;
		pthread_create(&thread, NULL, cancelled % 2 ? use_time : use_memory, NULL);
		usleep((useconds_t)(rand() % 6000));
		pthread_cancel(thread);
		pthread_join(thread, NULL);
	}
	double began = now();
	must(release(kept), "cuMemFree");
	must(allocate(&kept, (size_t)(64 * MIB)), "cuMemAlloc of all");
	double allocated = now();
	must(launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
	printf("{\"cancelled\": %d, \"allocation\": %f, \"launch\": %f}\n", cancelled, allocated - began, now() - allocated);
	return 0;
}
