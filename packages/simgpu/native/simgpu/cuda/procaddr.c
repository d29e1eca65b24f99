/*
 * cuGetProcAddress: the function of a name in the form it had in a CUDA version, and for the wanted kind of default
 * stream. A name without its version would be the wrong function, so both are looked up.
 */
#include "cuda.h"

#include <string.h>

struct entry {
	const char *name; /* without _v2, _ptsz */
	int version;      /* the first CUDA version in which the name meant this form */
	void *plain, *per_thread;
};

#define PROC(name, version, function) void function(void);
#define PROC_STREAM(name, version, function, per_thread)                                                               \
	void function(void);                                                                                            \
	void per_thread(void);
#include "procs.def"
#undef PROC
#undef PROC_STREAM
EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

#define PROC(name, version, function) {#name, version, (void *)function, (void *)function},
#define PROC_STREAM(name, version, function, per_thread) {#name, version, (void *)function, (void *)per_thread},
static const struct entry entries[] = {
#include "procs.def"
	PROC(cuGetProcAddress, 11030, cuGetProcAddress)
	PROC(cuGetProcAddress, 12000, cuGetProcAddress_v2)
};

enum { FLAG_LEGACY = 1, FLAG_PER_THREAD = 2 };
enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

static CUresult look_up(const char *name, void **function, int version, uint64_t flags, int *status)
{
	const struct entry *best = NULL;
	bool known = false;
	NEED(name && *name && function && flags <= FLAG_PER_THREAD);
	for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
		if (strcmp(entries[i].name, name))
			continue;
		known = true;
		if (entries[i].version <= version && (!best || entries[i].version > best->version))
			best = &entries[i];
	}
	*function = !best ? NULL : flags == FLAG_PER_THREAD ? best->per_thread : best->plain;
	if (status)
		*status = best ? FOUND : known ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
	return best ? CUDA_SUCCESS : CUDA_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
	return look_up(name, function, version, flags, NULL);
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	return look_up(name, function, version, flags, status);
}
