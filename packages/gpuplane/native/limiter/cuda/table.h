#ifndef GPUPLANE_TABLE_H
#define GPUPLANE_TABLE_H

#include <stddef.h>

/* One row for each form of each name that is ours. */
struct hook {
	const char *name; /* without _v2, _ptsz */
	int version;      /* the first CUDA version in which the name means this form */
	const char *symbol;
	void *plain, *per_thread;
};
extern const struct hook hooks[];
extern const size_t hook_count;

#endif
