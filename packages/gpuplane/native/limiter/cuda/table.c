/* The table of cuGetProcAddress, generated from hooks.def. Here functions are addresses only, so types do not matter. */
#include "table.h"

#define HOOK(base, version, symbol) void symbol(void);
#define HOOK_STREAM(base, version, symbol, per_thread)                                                                 \
	void symbol(void);                                                                                              \
	void per_thread(void);
#include "hooks.def"
#undef HOOK
#undef HOOK_STREAM

#define HOOK(base, version, symbol) {#base, version, #symbol, (void *)symbol, (void *)symbol},
#define HOOK_STREAM(base, version, symbol, per_thread) {#base, version, #symbol, (void *)symbol, (void *)per_thread},
const struct hook hooks[] = {
#include "hooks.def"
};
const size_t hook_count = sizeof hooks / sizeof *hooks;
