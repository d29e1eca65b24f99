/*
 * cuGetProcAddress. A name means different functions in different CUDA versions and for the two kinds of default stream,
 * so the real one is asked first, and its answer is exchanged for ours only if it is just the form that ours has: what
 * the real one gives for the name, version and kind of a row of our table. A form that is newer than the table
 * stays, and the first one is reported.
 */
#include "cuda.h"
#include "table.h"

#include <string.h>

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

enum { FLAG_LEGACY = 1, FLAG_PER_THREAD = 2 };
#define PER_THREAD_VERSION 7000 /* the first with forms for the thread's own default stream */

/* The function of the real library for each row. */
static void *real_plain[HOOK_ROWS], *real_per_thread[HOOK_ROWS];

static void *ask(const char *name, int version, uint64_t flags)
{
	void *function = NULL;
	CUresult result = HAS(cuGetProcAddress_v2) ? REAL(cuGetProcAddress_v2)(name, &function, version, flags, NULL)
						   : REAL(cuGetProcAddress)(name, &function, version, flags);
	return result == CUDA_SUCCESS ? function : NULL;
}

static void learn(void)
{
	for (size_t i = 0; i < HOOK_ROWS; i++) {
		const char *name = hooks[i].name;
		/* An older driver answers with an older form, a newer one may with a newer: another row, or none of ours. */
		if (!real_has(hooks[i].symbol))
			continue;
		int version = hooks[i].version, late = version < PER_THREAD_VERSION ? PER_THREAD_VERSION : version;
		real_plain[i] = ask(name, version, FLAG_LEGACY);
		/* By then the name may mean a newer form, which is another row. */
		if (ask(name, late, FLAG_LEGACY) == real_plain[i])
			real_per_thread[i] = ask(name, late, FLAG_PER_THREAD);
	}
}

static void substitute(const char *name, void **function)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	bool ours = false;
	pthread_once(&once, learn);
	for (size_t i = 0; i < HOOK_ROWS; i++) {
		if (strcmp(hooks[i].name, name))
			continue;
		ours = true;
		/* Both forms are one and the same where the stream does not matter. */
		if (real_plain[i] && *function == real_plain[i]) {
			*function = hooks[i].plain;
			return;
		}
		if (real_per_thread[i] && *function == real_per_thread[i]) {
			*function = hooks[i].per_thread;
			return;
		}
	}
	if (ours)
		say(SAY_FORM, "%s is used in a form that is newer than gpuplane: it is not limited", name);
}

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
	NEED_REAL(cuGetProcAddress);
	if (!name || !function)
		return CUDA_INVALID_VALUE;
	CUresult result = REAL(cuGetProcAddress)(name, function, version, flags);
	if (result == CUDA_SUCCESS && *function)
		substitute(name, function);
	return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	NEED_REAL(cuGetProcAddress_v2);
	if (!name || !function)
		return CUDA_INVALID_VALUE;
	CUresult result = REAL(cuGetProcAddress_v2)(name, function, version, flags, status);
	if (result == CUDA_SUCCESS && *function)
		substitute(name, function);
	return result;
}
