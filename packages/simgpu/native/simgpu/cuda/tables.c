/*
 * cuGetExportTable: tables of functions without names that NVIDIA's CUDA runtime uses, found by a UUID. Their places and
 * parameters were written down from what CUDA runtime 10.2 calls; a place that it does not call answers "not supported".
 *
 * From CUDA 11.2 on the runtime asks the driver to prove that it is NVIDIA's (cudaErrorSoftwareValidityNotEstablished).
 * That this one cannot and does not try: its table is not here, and such a runtime refuses the simulated driver.
 */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

/* A value that a runtime stores with a context, under its own key. */
struct local {
	void *key, *value;
	void (*destroy)(struct context *context, void *key, void *value);
	struct local *next;
};

static CUresult unsupported(void)
{
	return CUDA_NOT_SUPPORTED;
}

static CUresult load_module(struct module **module, const void *image)
{
	NEED(module && image);
	CONTEXT(context);
	SAFE();
	return cuda_load(context, image, 0, NULL, NULL, module);
}

/* The same with a table of the runtime that is not documented: only without it. */
static CUresult load_module_with(struct module **module, const void *image, const void *first, const void *second, unsigned count)
{
	return first || second || count ? CUDA_NOT_SUPPORTED : load_module(module, image);
}

/* The handle of a device's primary context, which need not be active. */
static CUresult primary_context(struct context **context, CUdevice device)
{
	NEED(context);
	CUresult result = cuda_valid_device(device);
	if (result == CUDA_SUCCESS && !(*context = cuda_primary(device)))
		result = CUDA_OUT_OF_MEMORY;
	return result;
}

/* Which calls of the runtime a profiler wants to hear of, a word for each: none, since there is no profiler. */
static void wanted_calls(void **words, size_t *count)
{
	static uint32_t none[2048];
	*words = none;
	*count = sizeof none / sizeof *none;
}

static void wanted_domains(void **bytes, size_t *count)
{
	static uint8_t none[16];
	*bytes = none;
	*count = sizeof none;
}

static CUresult find_context(struct context **context)
{
	return *context ? cuda_usable(*context) : cuda_current(context);
}

static struct local **place_of(struct context *context, const void *key)
{
	struct local **at = &context->locals;
	while (*at && (*at)->key != key)
		at = &(*at)->next;
	return at;
}

static CUresult store_local(struct context *context, void *key, void *value, void (*destroy)(struct context *, void *, void *))
{
	CUresult result = find_context(&context);
	if (result != CUDA_SUCCESS)
		return result;
	struct local *fresh = malloc(sizeof *fresh);
	if (!fresh)
		return CUDA_OUT_OF_MEMORY;
	pthread_mutex_lock(&cuda_guard);
	struct local **at = place_of(context, key);
	bool free_place = !*at;
	if (free_place) {
		*fresh = (struct local){key, value, destroy, NULL};
		*at = fresh;
	}
	pthread_mutex_unlock(&cuda_guard);
	if (!free_place)
		free(fresh);
	return free_place ? CUDA_SUCCESS : CUDA_INVALID_HANDLE;
}

static CUresult remove_local(struct context *context, void *key)
{
	CUresult result = find_context(&context);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&cuda_guard);
	struct local **at = place_of(context, key), *found = *at;
	if (found)
		*at = found->next;
	pthread_mutex_unlock(&cuda_guard);
	free(found);
	return found ? CUDA_SUCCESS : CUDA_INVALID_HANDLE;
}

static CUresult read_local(void **value, struct context *context, void *key)
{
	NEED(value);
	CUresult result = find_context(&context);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&cuda_guard);
	const struct local *found = *place_of(context, key);
	if (found)
		*value = found->value;
	pthread_mutex_unlock(&cuda_guard);
	return found ? CUDA_SUCCESS : CUDA_INVALID_HANDLE;
}

void cuda_end_locals(struct context *context)
{
	for (;;) {
		pthread_mutex_lock(&cuda_guard);
		struct local *first = context->locals;
		if (first)
			context->locals = first->next;
		pthread_mutex_unlock(&cuda_guard);
		if (!first)
			return;
		if (first->destroy)
			first->destroy(context, first->key, first->value);
		free(first);
	}
}

#define CALL(function) ((const void *)(function))
#define BYTES(words) ((const void *)(sizeof(void *) * (words)))
#define NO CALL(unsupported)

#define NO_4 NO, NO, NO, NO
#define NO_24 NO_4, NO_4, NO_4, NO_4, NO_4, NO_4
#define PLACES 32

/* The first word of a table is its size in bytes, except in that of the values of contexts. Newer runtimes have further
   places and call them without a look at the size, so every table has many. */
static const void *const modules[PLACES] = {BYTES(PLACES),  CALL(load_module),      CALL(primary_context), NO, NO, NO,
					      CALL(load_module_with), NO,               NO_24};
static const void *const callbacks[PLACES] = {BYTES(PLACES), NO, CALL(wanted_calls), NO, NO, NO, CALL(wanted_domains), NO, NO_24};
static const void *const threads[PLACES] = {BYTES(PLACES), NO, NO, NO, NO_4, NO_24};
static const void *const locals[PLACES] = {CALL(store_local), CALL(remove_local), CALL(read_local), NO, NO_4, NO_24};

static const struct {
	uint8_t id[16];
	const void *const *table;
} tables[] = {
	{{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}, modules},
	{{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}, callbacks},
	{{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc}, threads},
	{{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93}, locals},
};

EXPORT CUresult cuGetExportTable(const void **table, const uint8_t *id)
{
	NEED(table && id);
	for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
		if (!memcmp(tables[i].id, id, sizeof tables[i].id)) {
			*table = (const void *)tables[i].table;
			return CUDA_SUCCESS;
		}
	return CUDA_NOT_FOUND;
}
