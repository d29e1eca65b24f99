/* What NVML says of a GPU's memory inside the container. The ledger is read only; no slot is taken for looking. */
#include "nvml.h"

#include <dlfcn.h>

struct memory {
	unsigned long long total, free, used;
};

struct memory_v2 {
	unsigned version;
	unsigned long long total, reserved, free, used;
};

#define FUNCTIONS(X)                                                                                                   \
	X(nvmlInit, (void))                                                                                             \
	X(nvmlInit_v2, (void))                                                                                          \
	X(nvmlInitWithFlags, (unsigned))                                                                                \
	X(nvmlDeviceGetMemoryInfo, (nvmlDevice_t, struct memory *))                                                     \
	X(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t, struct memory_v2 *))                                               \
	X(nvmlDeviceGetUUID, (nvmlDevice_t, char *, unsigned))

#define POINTER(name, parameters) static nvmlReturn_t (*real_##name) parameters;
FUNCTIONS(POINTER)

static void *library;

void *nvml_real(const char *name)
{
	return library ? dlsym(library, name) : NULL;
}

__attribute__((constructor)) static void find_real(void)
{
	library = dlopen(REAL_NVML, RTLD_NOW | RTLD_NOLOAD);
	if (!library)
		library = dlopen(REAL_NVML, RTLD_NOW);
	if (!library) {
		say(SAY_REAL, "the real NVML is not there: %s", dlerror());
		return;
	}
#define FIND(name, parameters) *(void **)&real_##name = dlsym(library, #name);
	FUNCTIONS(FIND)
}

#define INIT(name, parameters, arguments)                                                                              \
	EXPORT nvmlReturn_t name parameters                                                                             \
	{                                                                                                               \
		if (!real_##name)                                                                                       \
			return NVML_FUNCTION_NOT_FOUND;                                                                 \
		return page_attach() == REFUSED ? NVML_NO_PERMISSION : real_##name arguments;                           \
	}
INIT(nvmlInit, (void), ())
INIT(nvmlInit_v2, (void), ())
INIT(nvmlInitWithFlags, (unsigned flags), (flags))

/* The container's limit of a GPU, and what it holds; false if there is none. */
static bool share(nvmlDevice_t device, uint64_t *limit, uint64_t *held)
{
	char text[96];
	uint8_t uuid[16];
	if (page_attach() != ATTACHED || !real_nvmlDeviceGetUUID ||
	    real_nvmlDeviceGetUUID(device, text, sizeof text) != NVML_SUCCESS || !page_uuid(text, uuid))
		return false;
	int gpu = page_gpu(uuid);
	*limit = gpu < 0 ? 0 : slots_limit(gpu);
	if (!*limit)
		return false;
	slots_reap();
	*held = slots_sum(gpu);
	return true;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory *info)
{
	uint64_t limit, held;
	if (!real_nvmlDeviceGetMemoryInfo)
		return NVML_FUNCTION_NOT_FOUND;
	nvmlReturn_t result = real_nvmlDeviceGetMemoryInfo(device, info);
	if (result != NVML_SUCCESS || !share(device, &limit, &held))
		return result;
	uint64_t total = least(info->total, limit), used = least(held, total);
	*info = (struct memory){total, least(info->free, total - used), used};
	return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *info)
{
	uint64_t limit, held;
	if (!real_nvmlDeviceGetMemoryInfo_v2)
		return NVML_FUNCTION_NOT_FOUND;
	nvmlReturn_t result = real_nvmlDeviceGetMemoryInfo_v2(device, info);
	if (result != NVML_SUCCESS || !share(device, &limit, &held))
		return result;
	uint64_t total = least(info->total, limit), used = least(held, total);
	/* The driver's own memory is not the container's. */
	*info = (struct memory_v2){info->version, total, 0, least(info->free, total - used), used};
	return result;
}
