/*
 * Processes that use a share and are killed at random moments, and others that measure what that does to them.
 *
 *     kills kill COUNT SEED    forks children that allocate, free and launch, and kills COUNT of them; says what they were at
 *     kills stop COUNT SEED    the same, and each is stopped first, for 50 ms
 *     kills watch BYTES        launches and allocates until its stdin ends; says how long the longest call of each took
 *     kills whole BYTES        the CUresult of allocating so much
 *     kills free               what the driver says is free
 *
 * Which share: GPUPLANE_LIMITS, as of every program. libcuda.so.1 is loaded by its name.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WIDTH 4    /* children at a time */
#define BLOCKS 6
#define STOPPED_NS 50000000
#define MIB (1ull << 20)

typedef int (*function)();
static function init, create, load, find, launch, sync_all, allocate, release, info;

enum doing { STARTING, ALLOCATING, LAUNCHING, FREEING, KINDS };
static const char *const doings[] = {"starting", "allocating", "launching", "freeing"};

static uint64_t state;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void must(int result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "%s: %d\n", what, result);
	_exit(1);
}

static void bind_driver(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!cuda) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	init = (function)dlsym(cuda, "cuInit");
	create = (function)dlsym(cuda, "cuCtxCreate_v2");
	load = (function)dlsym(cuda, "cuModuleLoadData");
	find = (function)dlsym(cuda, "cuModuleGetFunction");
	launch = (function)dlsym(cuda, "cuLaunchKernel");
	sync_all = (function)dlsym(cuda, "cuCtxSynchronize");
	allocate = (function)dlsym(cuda, "cuMemAlloc_v2");
	release = (function)dlsym(cuda, "cuMemFree_v2");
	info = (function)dlsym(cuda, "cuMemGetInfo_v2");
}

/* A context, and a kernel of 200 us. */
static void *begin(void)
{
	static const char ptx[] = ".version 7.0 .target sm_35 .address_size 64 .visible .entry k() "
				  "{ .pragma \"simgpu.time_ns 200000\"; ret; }";
	void *context, *module, *kernel;
	must(init(0), "cuInit");
	must(create(&context, 0, 0), "cuCtxCreate");
	must(load(&module, ptx), "cuModuleLoadData");
	must(find(&kernel, module, "k"), "cuModuleGetFunction");
	return kernel;
}

static void start_kernel(void *kernel)
{
	must(launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

/* Never ends by itself. Half of the children only use memory: the others mostly wait for their turn. */
static void live(volatile int *doing, int launches)
{
	void *kernel = begin();
	for (;;) {
		uint64_t blocks[BLOCKS] = {0};
		*doing = ALLOCATING;
		for (int i = 0; i < BLOCKS; i++)
			allocate(&blocks[i], (size_t)((1 + next() % 7) * MIB));
		*doing = LAUNCHING;
		for (int i = 0; i < 5 * launches; i++)
			start_kernel(kernel);
		*doing = FREEING;
		for (int i = 0; i < BLOCKS; i++)
			if (blocks[i])
				must(release(blocks[i]), "cuMemFree");
	}
}

static int kill_all(long count, uint64_t seed, bool stop)
{
	volatile int *doing = mmap(NULL, sizeof *doing * WIDTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t children[WIDTH] = {0};
	uint64_t due[WIDTH] = {0};
	long killed[KINDS] = {0}, themselves = 0;
	for (long done = 0; done < count;) {
		int first = 0;
		for (int i = 0; i < WIDTH; i++) {
			if (!children[i]) {
				state = (seed * WIDTH + (uint64_t)i) * 0x9e3779b97f4a7c15ull + (uint64_t)done + 1;
				/* A third while they start, the others later. */
				uint64_t within = next() % 3 ? 12000000 : 2000000;
				due[i] = now() + next() % within;
				doing[i] = STARTING;
				children[i] = fork();
				if (!children[i])
					live(&doing[i], (int)(next() % 2));
			}
			if (due[i] < due[first])
				first = i;
		}
		struct timespec until = {(time_t)(due[first] / 1000000000ull), (long)(due[first] % 1000000000ull)};
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		int status;
		if (stop) {
			kill(children[first], SIGSTOP);
			nanosleep(&(struct timespec){0, STOPPED_NS}, NULL);
		}
		kill(children[first], SIGKILL);
		waitpid(children[first], &status, 0);
		if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
			killed[doing[first]]++;
		else
			themselves++;
		children[first] = 0;
		done++;
	}
	for (int i = 0; i < WIDTH; i++)
		if (children[i]) {
			kill(children[i], SIGKILL);
			waitpid(children[i], NULL, 0);
		}
	printf("{\"ended themselves\": %ld", themselves);
	for (int i = 0; i < KINDS; i++)
		printf(", \"%s\": %ld", doings[i], killed[i]);
	printf("}\n");
	return 0;
}

static int watch(size_t bytes)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	uint64_t launching = 0, allocating = 0;
	long given = 0, refused = 0;
	void *kernel = begin();
	start_kernel(kernel);
	sync_all();
	printf("ready\n");
	fflush(stdout);
	while (!poll(&input, 1, 0)) {
		uint64_t block, start = now();
		int result = allocate(&block, bytes);
		if (!result)
			must(release(block), "cuMemFree");
		uint64_t between = now();
		start_kernel(kernel);
		must(sync_all(), "cuCtxSynchronize");
		uint64_t end = now();
		given += !result;
		refused += result != 0;
		if (between - start > allocating)
			allocating = between - start;
		if (end - between > launching)
			launching = end - between;
	}
	printf("{\"launch\": %f, \"allocation\": %f, \"given\": %ld, \"refused\": %ld}\n", (double)launching / 1e9,
	       (double)allocating / 1e9, given, refused);
	return 0;
}

int main(int count, char **words)
{
	if (count < 2)
		return 2;
	bind_driver();
	bool stop = !strcmp(words[1], "stop");
	if ((stop || !strcmp(words[1], "kill")) && count == 4)
		return kill_all(atol(words[2]), strtoull(words[3], NULL, 10), stop);
	if (!strcmp(words[1], "watch") && count == 3)
		return watch((size_t)strtoull(words[2], NULL, 10));
	begin();
	if (!strcmp(words[1], "whole") && count == 3) {
		uint64_t block;
		printf("%d\n", allocate(&block, (size_t)strtoull(words[2], NULL, 10)));
	} else {
		size_t available, total;
		must(info(&available, &total), "cuMemGetInfo");
		printf("%zu\n", available);
	}
	return 0;
}
