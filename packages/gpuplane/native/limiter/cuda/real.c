/* The real library: needed under another name, so that whatever is not ours falls through to it by itself. */
#include "cuda.h"

#include <dlfcn.h>
#include <string.h>

void *real_functions[REAL_COUNT];

static const char *const names[REAL_COUNT] = {
#define HOOK(base, version, symbol) [INDEX_##symbol] = #symbol,
#define HOOK_STREAM(base, version, symbol, per_thread) [INDEX_##symbol] = #symbol, [INDEX_##per_thread] = #per_thread,
#define USE(symbol, ...) [INDEX_##symbol] = #symbol,
#include "hooks.def"
#include "uses.def"
#undef HOOK
#undef HOOK_STREAM
#undef USE
};

/* Before any call: the loader has the real library already, since this one needs it. */
__attribute__((constructor)) static void find_real(void)
{
	void *library = dlopen(REAL_CUDA, RTLD_NOW | RTLD_NOLOAD);
	if (!library)
		library = dlopen(REAL_CUDA, RTLD_NOW);
	if (!library) {
		say(SAY_REAL, "the real driver's library is not there: %s", dlerror());
		return;
	}
	for (int i = 0; i < REAL_COUNT; i++)
		real_functions[i] = dlsym(library, names[i]);
}

bool real_has(const char *symbol)
{
	for (int i = 0; i < REAL_COUNT; i++)
		if (!strcmp(names[i], symbol))
			return real_functions[i] != NULL;
	return false;
}
