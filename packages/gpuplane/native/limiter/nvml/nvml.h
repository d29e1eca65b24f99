/* NVML's types as far as they are ours. */
#ifndef GPUPLANE_NVML_H
#define GPUPLANE_NVML_H

#include "../limiter.h"

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;
enum {
	NVML_SUCCESS = 0,
	NVML_UNINITIALIZED = 1,
	NVML_NO_PERMISSION = 4,
	NVML_NOT_FOUND = 6,
	NVML_INSUFFICIENT_SIZE = 7,
	NVML_FUNCTION_NOT_FOUND = 13,
	NVML_MEMORY = 20,
	NVML_ARGUMENT_VERSION_MISMATCH = 25,
};

/* A function of the real library; NULL: it has none. */
void *nvml_real(const char *name);

#endif
