/*
 * cuGetProcAddress: the function of a name in the form it had in a CUDA version, and for the wanted kind of default
 * stream. A name without its version would be the wrong function, so both are looked up.
 *
 * The answers are those of NVIDIA's drivers 535 and 550, which a test compares: the second form succeeds also where
 * there is no such function, and reports that in its status; versions are unsigned; before 7.0 no function had a form for the
 * thread's own default stream. Where they crash, for want of a name or a place for the answer, this one returns an error.
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
#define PER_THREAD_VERSION 7000u
enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

/* The function and what became of the question: one of the three words above. */
static void *look_up(const char *name, unsigned version, uint64_t flags, int *status)
{
	const struct entry *best = NULL;
	bool known = false, per_thread = flags & FLAG_PER_THREAD;
	for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
		const struct entry *entry = &entries[i];
		if (strcmp(entry->name, name))
			continue;
		known = true;
		unsigned from = (unsigned)entry->version;
		if (per_thread && entry->per_thread != entry->plain && from < PER_THREAD_VERSION)
			from = PER_THREAD_VERSION;
		if (from <= version && (!best || entry->version > best->version))
			best = entry;
	}
	*status = best ? FOUND : known ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
	return !best ? NULL : per_thread ? best->per_thread : best->plain;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
	int status;
	NEED(name && function && flags <= (FLAG_LEGACY | FLAG_PER_THREAD));
	void *found = look_up(name, (unsigned)version, flags, &status);
	if (!found)
		return CUDA_NOT_FOUND;
	*function = found;
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	int ignored;
	NEED(name && function && flags <= (FLAG_LEGACY | FLAG_PER_THREAD));
	*function = look_up(name, (unsigned)version, flags, status ? status : &ignored);
	return CUDA_SUCCESS;
}
