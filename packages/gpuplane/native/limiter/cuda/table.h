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

enum hook_rows {
#define HOOK(base, version, symbol) ROW_##symbol,
#define HOOK_STREAM(base, version, symbol, per_thread) ROW_##symbol,
#include "hooks.def"
#undef HOOK
#undef HOOK_STREAM
	HOOK_ROWS,
};

#endif
