/* Initialization, the system's own facts, and handles. */
#include "nvml.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct simgpu nvml_view = {.fd = -1, .slot = -1};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static unsigned references;
static struct handle handles[SIMGPU_GPUS][1 + SIMGPU_MIG_DEVICES];

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
	static const nvmlReturn_t results[] = {
		[SIMGPU_OK] = NVML_SUCCESS,           [SIMGPU_ABSENT] = NVML_DRIVER_NOT_LOADED,
		[SIMGPU_DENIED] = NVML_NO_PERMISSION, [SIMGPU_MISMATCH] = NVML_LIB_RM_VERSION_MISMATCH,
		[SIMGPU_FULL] = NVML_MEMORY,
	};
	(void)flags; /* NO_GPUS and NO_ATTACH change nothing where nothing is attached */
	nvmlReturn_t result = NVML_SUCCESS;
	pthread_mutex_lock(&guard);
	if (references == 0) {
		result = results[simgpu_open(&nvml_view)];
		for (uint32_t gpu = 0; gpu < SIMGPU_GPUS; gpu++)
			for (int32_t mig = -1; mig < SIMGPU_MIG_DEVICES; mig++)
				handles[gpu][mig + 1] = (struct handle){gpu, mig};
	}
	if (result == NVML_SUCCESS)
		references++;
	pthread_mutex_unlock(&guard);
	return result;
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t result = NVML_SUCCESS;
	pthread_mutex_lock(&guard);
	if (references == 0)
		result = NVML_UNINITIALIZED;
	else if (--references == 0)
		simgpu_close(&nvml_view);
	pthread_mutex_unlock(&guard);
	return result;
}

nvmlDevice_t nvml_handle(uint32_t gpu, int32_t mig)
{
	return &handles[gpu][mig + 1];
}

nvmlReturn_t nvml_visible(uint32_t gpu)
{
	for (uint32_t i = 0; i < nvml_view.visible_count; i++)
		if (nvml_view.visible[i] == gpu)
			return NVML_SUCCESS;
	return NVML_NOT_FOUND;
}

nvmlReturn_t nvml_device(nvmlDevice_t device, bool mig, struct simgpu_gpu **gpu)
{
	const struct handle *first = &handles[0][0], *end = first + SIMGPU_GPUS * (1 + SIMGPU_MIG_DEVICES);
	if (!nvml_view.state)
		return NVML_UNINITIALIZED;
	/* Comparing as numbers: what callers pass need not be a handle at all. */
	uintptr_t at = (uintptr_t)device;
	if (at < (uintptr_t)first || at >= (uintptr_t)end || (at - (uintptr_t)first) % sizeof *first ||
	    nvml_visible(device->gpu) != NVML_SUCCESS)
		return NVML_INVALID_ARGUMENT;
	*gpu = &nvml_view.state->gpus[device->gpu];
	if ((*gpu)->lost)
		return NVML_GPU_IS_LOST;
	if (device->mig >= 0) {
		if (!mig)
			return NVML_NOT_SUPPORTED;
		if (!(*gpu)->mig_enabled || !(*gpu)->mig_devices[device->mig].used)
			return NVML_INVALID_ARGUMENT;
	}
	return NVML_SUCCESS;
}

nvmlReturn_t nvml_text(char *buffer, unsigned size, const char *text)
{
	NEED(buffer);
	if (strlen(text) >= size)
		return NVML_INSUFFICIENT_SIZE;
	strcpy(buffer, text);
	return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
	case NVML_SUCCESS: return "Success";
	case NVML_UNINITIALIZED: return "Uninitialized";
	case NVML_INVALID_ARGUMENT: return "Invalid Argument";
	case NVML_NOT_SUPPORTED: return "Not Supported";
	case NVML_NO_PERMISSION: return "Insufficient Permissions";
	case NVML_NOT_FOUND: return "Not Found";
	case NVML_INSUFFICIENT_SIZE: return "Insufficient Size";
	case NVML_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case NVML_TIMEOUT: return "Timeout";
	case NVML_GPU_IS_LOST: return "GPU is lost";
	case NVML_OPERATING_SYSTEM: return "Operating System";
	case NVML_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
	case NVML_IN_USE: return "In use by another client";
	case NVML_MEMORY: return "Insufficient Memory";
	case NVML_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
	case NVML_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
	}
	return "Unknown Error";
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned size)
{
	if (!nvml_view.state)
		return NVML_UNINITIALIZED;
	return nvml_text(version, size, nvml_view.state->driver_version);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
	if (!nvml_view.state)
		return NVML_UNINITIALIZED;
	return nvml_text(version, size, nvml_view.state->nvml_version);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	NEED(version);
	if (!nvml_view.state)
		return NVML_UNINITIALIZED;
	*version = (int)nvml_view.state->cuda_version;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	return nvmlSystemGetCudaDriverVersion(version);
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size)
{
	char path[64];
	NEED(name && size);
	snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return NVML_NOT_FOUND;
	/* Arguments end with NUL: the first is the name. */
	size_t length = fread(name, 1, size - 1, file);
	name[length] = 0;
	fclose(file);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned *count)
{
	NEED(count);
	*count = 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned *count)
{
	NEED(count);
	*count = 0;
	return NVML_SUCCESS;
}
