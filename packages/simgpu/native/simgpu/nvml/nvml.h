/*
 * The types of NVML that we answer with, written down from what nvidia-ml-py expects, and what the parts of this library
 * share. A handle of a GPU or MIG device is the address of a `struct handle`.
 */
#ifndef SIMGPU_NVML_H
#define SIMGPU_NVML_H

#include "../state.h"

#define EXPORT __attribute__((visibility("default")))

typedef enum {
	NVML_SUCCESS = 0,
	NVML_UNINITIALIZED = 1,
	NVML_INVALID_ARGUMENT = 2,
	NVML_NOT_SUPPORTED = 3,
	NVML_NO_PERMISSION = 4,
	NVML_NOT_FOUND = 6,
	NVML_INSUFFICIENT_SIZE = 7,
	NVML_DRIVER_NOT_LOADED = 9,
	NVML_TIMEOUT = 10,
	NVML_GPU_IS_LOST = 15,
	NVML_OPERATING_SYSTEM = 17,
	NVML_LIB_RM_VERSION_MISMATCH = 18,
	NVML_IN_USE = 19,
	NVML_MEMORY = 20,
	NVML_INSUFFICIENT_RESOURCES = 23,
	NVML_ARGUMENT_VERSION_MISMATCH = 25,
} nvmlReturn_t;

#define EVENT_SINGLE_BIT 0x1ull
#define EVENT_DOUBLE_BIT 0x2ull
#define EVENT_XID 0x8ull
#define EVENT_GPU_UNAVAILABLE 0x4000ull
#define EVENT_RECOVERY_ACTION 0x8000ull

struct handle {
	uint32_t gpu; /* position in the state */
	int32_t mig;  /* position in its table of MIG devices, or -1 */
};
typedef struct handle *nvmlDevice_t;

/* A GPU instance; a compute instance is the same place, since each GPU instance has at most one here. */
typedef struct handle *nvmlGpuInstance_t;

typedef struct {
	char legacy[16];
	unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
	char bus_id[32];
} nvmlPciInfo_t;

typedef struct {
	unsigned version, domain, bus, device, pci_device_id, pci_subsystem_id, base_class, sub_class;
	char bus_id[32];
} nvmlPciInfoExt_t;

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
	unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
	unsigned pid;
	unsigned long long used;
} nvmlProcessInfo_v1_t;

typedef struct {
	unsigned pid;
	unsigned long long used;
	unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_t;

typedef struct {
	unsigned pid;
	unsigned long long time;
	unsigned sm, memory, encoder, decoder;
} nvmlProcessUtilizationSample_t;

typedef struct {
	nvmlDevice_t device;
	unsigned long long type, data;
	unsigned gpu_instance, compute_instance;
} nvmlEventData_t;

typedef union {
	double d;
	unsigned u;
	unsigned long ul;
	unsigned long long ull;
	long long ll;
} nvmlValue_t;

enum { VALUE_UNSIGNED = 1, VALUE_UNSIGNED_LONG_LONG = 3 };

typedef struct {
	unsigned field, scope;
	long long timestamp, latency;
	unsigned type;
	nvmlReturn_t result;
	nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct {
	unsigned start, size;
} nvmlPlacement_t;

typedef struct {
	unsigned id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
	unsigned long long memory_mib;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
	unsigned version, id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
	unsigned long long memory_mib;
	char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
	unsigned id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
} nvmlComputeInstanceProfileInfo_t;

typedef struct {
	unsigned version, id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
	char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;

typedef struct {
	nvmlDevice_t device;
	unsigned id, profile;
	nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
	nvmlDevice_t device;
	nvmlGpuInstance_t gpu_instance;
	unsigned id, profile;
	nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
	unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
	unsigned long long memory_mib;
} nvmlDeviceAttributes_t;

extern struct simgpu nvml_view;

/* The handle of a GPU or of one of its MIG devices. */
nvmlDevice_t nvml_handle(uint32_t gpu, int32_t mig);
/* Finds what a handle stands for. `mig` says whether a MIG device may be asked this too. */
nvmlReturn_t nvml_device(nvmlDevice_t device, bool mig, struct simgpu_gpu **gpu);
nvmlReturn_t nvml_text(char *buffer, unsigned size, const char *text);
nvmlReturn_t nvml_visible(uint32_t gpu);
double nvml_power_mw(const struct simgpu_gpu *gpu);

/* Opens a function that asks a GPU: `gpu` is what the handle stands for. */
#define GPU(device)                                                                                                    \
	struct simgpu_gpu *gpu;                                                                                         \
	nvmlReturn_t found = nvml_device(device, false, &gpu);                                                          \
	if (found != NVML_SUCCESS)                                                                                      \
	return found
/* The same where a MIG device may be asked too. */
#define GPU_OR_MIG(device)                                                                                             \
	struct simgpu_gpu *gpu;                                                                                         \
	nvmlReturn_t found = nvml_device(device, true, &gpu);                                                           \
	if (found != NVML_SUCCESS)                                                                                      \
	return found
#define NEED(pointer)                                                                                                  \
	if (!(pointer))                                                                                                 \
	return NVML_INVALID_ARGUMENT

#endif
