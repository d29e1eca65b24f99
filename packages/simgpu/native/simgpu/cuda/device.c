/* Initialization, which GPUs a process sees, and what they are. */
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct simgpu cuda_view = {.fd = -1, .slot = -1};
pthread_mutex_t cuda_guard = PTHREAD_MUTEX_INITIALIZER;
uint32_t cuda_device_count;
struct device cuda_devices[SIMGPU_GPUS];

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static bool initialized;
static volatile bool forked;

/* A child must not use its parent's contexts, nor keep its memory charged after the parent's death. */
static void in_child(void)
{
	forked = true;
	cuda_view.slot = -1;
	cuda_mps_close();
	simgpu_close(&cuda_view);
}

CUresult cuda_ready(void)
{
	return initialized && !forked ? CUDA_SUCCESS : CUDA_NOT_INITIALIZED;
}

static void add_device(uint32_t number)
{
	const struct simgpu_gpu *gpu = &cuda_view.state->gpus[number];
	int32_t mig = -1;
	for (int32_t i = 0; gpu->mig_enabled && mig < 0 && i < SIMGPU_MIG_DEVICES; i++)
		if (gpu->mig_devices[i].used && !gpu->mig_devices[i].compute_instance)
			mig = i;
	if (gpu->mig_enabled && mig < 0)
		return; /* MIG on and nothing in it: no device */
	cuda_devices[cuda_device_count++] = (struct device){.gpu = number, .mig = mig};
}

/* One entry of CUDA_VISIBLE_DEVICES: an index, a UUID or the start of one. False ends the list. */
static bool add_named(const char *name)
{
	char *rest;
	unsigned long index = strtoul(name, &rest, 10);
	uint32_t number = SIMGPU_GPUS;
	int32_t mig = -1;
	if (rest != name && !*rest) {
		if (index < cuda_view.visible_count)
			number = cuda_view.visible[index];
	} else if (strlen(name) >= 4) {
		for (uint32_t i = 0; i < cuda_view.visible_count; i++) {
			const struct simgpu_gpu *gpu = &cuda_view.state->gpus[cuda_view.visible[i]];
			if (!strncmp(gpu->uuid, name, strlen(name)))
				number = cuda_view.visible[i];
			for (int32_t k = 0; gpu->mig_enabled && k < SIMGPU_MIG_DEVICES; k++)
				if (gpu->mig_devices[k].used && !strcmp(gpu->mig_devices[k].uuid, name)) {
					number = cuda_view.visible[i];
					mig = k;
				}
		}
	}
	if (number == SIMGPU_GPUS)
		return false;
	for (uint32_t i = 0; i < cuda_device_count; i++)
		if (cuda_devices[i].gpu == number) {
			cuda_device_count = 0; /* naming a GPU twice hides all */
			return false;
		}
	if (mig >= 0)
		cuda_devices[cuda_device_count++] = (struct device){.gpu = number, .mig = mig};
	else
		add_device(number);
	return true;
}

static void find_devices(void)
{
	const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
	cuda_device_count = 0;
	if (!wanted) {
		for (uint32_t i = 0; i < cuda_view.visible_count; i++)
			add_device(cuda_view.visible[i]);
		return;
	}
	char list[2048], *rest = NULL;
	snprintf(list, sizeof list, "%s", wanted);
	for (char *name = strtok_r(list, ",", &rest); name && cuda_device_count < SIMGPU_GPUS; name = strtok_r(NULL, ",", &rest))
		if (!add_named(name))
			break;
}

EXPORT CUresult cuInit(unsigned flags)
{
	static bool handlers;
	CUresult result = CUDA_SUCCESS;
	NEED(flags == 0);
	pthread_mutex_lock(&starting);
	if (forked) {
		result = CUDA_NOT_INITIALIZED;
	} else if (!initialized) {
		switch (simgpu_open(&cuda_view)) {
		case SIMGPU_OK: break;
		case SIMGPU_ABSENT: result = CUDA_NO_DEVICE; break;
		case SIMGPU_DENIED: result = CUDA_OPERATING_SYSTEM; break;
		default: result = CUDA_SYSTEM_DRIVER_MISMATCH;
		}
		if (result == CUDA_SUCCESS)
			find_devices();
		if (result == CUDA_SUCCESS && !cuda_device_count)
			result = CUDA_NO_DEVICE;
		if (result == CUDA_SUCCESS && simgpu_claim_slot(&cuda_view) != SIMGPU_OK)
			result = CUDA_OUT_OF_MEMORY;
		if (result == CUDA_SUCCESS)
			result = cuda_mps_connect();
		if (result != CUDA_SUCCESS)
			simgpu_close(&cuda_view);
		else if (!handlers)
			handlers = !pthread_atfork(NULL, NULL, in_child);
		initialized = result == CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&starting);
	return result;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
	NEED(version);
	/* It may be asked before cuInit: then a look at the state, without staying. */
	if (initialized && !forked) {
		*version = (int)cuda_view.state->cuda_version;
		return CUDA_SUCCESS;
	}
	struct simgpu view;
	if (simgpu_open(&view) != SIMGPU_OK)
		return CUDA_NO_DEVICE;
	*version = (int)view.state->cuda_version;
	simgpu_close(&view);
	return CUDA_SUCCESS;
}

CUresult cuda_valid_device(CUdevice device)
{
	READY();
	return device >= 0 && (uint32_t)device < cuda_device_count ? CUDA_SUCCESS : CUDA_INVALID_DEVICE;
}

struct simgpu_gpu *cuda_gpu(CUdevice device)
{
	return &cuda_view.state->gpus[cuda_devices[device].gpu];
}

static const struct simgpu_mig_device *instance_of(CUdevice device)
{
	return cuda_devices[device].mig < 0 ? NULL : &cuda_gpu(device)->mig_devices[cuda_devices[device].mig];
}

uint32_t cuda_instance(CUdevice device)
{
	const struct simgpu_mig_device *mig = instance_of(device);
	return mig ? mig->gpu_instance : SIMGPU_NO_INSTANCE;
}

uint64_t cuda_capacity(CUdevice device)
{
	const struct simgpu_mig_device *mig = instance_of(device);
	const struct simgpu_gpu *gpu = cuda_gpu(device);
	return mig ? simgpu_mig_bytes(gpu, mig) : gpu->memory_bytes - gpu->reserved_bytes;
}

uint32_t cuda_multiprocessors(CUdevice device)
{
	const struct simgpu_mig_device *mig = instance_of(device);
	const struct simgpu_gpu *gpu = cuda_gpu(device);
	uint32_t all = mig ? gpu->mig_profiles[mig->profile].multiprocessors : gpu->multiprocessors;
	return cuda_view.portion ? (all * cuda_view.portion + 99) / 100 : all;
}

#define DEVICE(device)                                                                                                 \
	CUresult device##_result = cuda_valid_device(device);                                                           \
	if (device##_result != CUDA_SUCCESS)                                                                            \
	return device##_result

EXPORT CUresult cuDeviceGetCount(int *count)
{
	NEED(count);
	READY();
	*count = (int)cuda_device_count;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	NEED(device);
	DEVICE(ordinal);
	*device = ordinal;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
	NEED(name && size > 0);
	DEVICE(device);
	const struct simgpu_mig_device *mig = instance_of(device);
	const struct simgpu_gpu *gpu = cuda_gpu(device);
	if (mig)
		snprintf(name, (size_t)size, "%s MIG %s", gpu->name, gpu->mig_profiles[mig->profile].name);
	else
		snprintf(name, (size_t)size, "%s", gpu->name);
	return CUDA_SUCCESS;
}

static void parse_uuid(const char *text, uint8_t *bytes)
{
	int digits = 0;
	memset(bytes, 0, 16);
	/* Behind "GPU-" or "MIG-" there are 32 digits with dashes between them. */
	for (const char *at = text + 4; *at && digits < 32; at++) {
		int value = *at >= '0' && *at <= '9' ? *at - '0' : *at >= 'a' && *at <= 'f' ? *at - 'a' + 10 : -1;
		if (value < 0)
			continue;
		bytes[digits / 2] |= (uint8_t)(digits % 2 ? value : value << 4);
		digits++;
	}
}

EXPORT CUresult cuDeviceGetUuid(uint8_t *uuid, CUdevice device)
{
	NEED(uuid);
	DEVICE(device);
	parse_uuid(cuda_gpu(device)->uuid, uuid);
	return CUDA_SUCCESS;
}

/* The second version names the MIG device, where the first names its GPU. */
EXPORT CUresult cuDeviceGetUuid_v2(uint8_t *uuid, CUdevice device)
{
	NEED(uuid);
	DEVICE(device);
	const struct simgpu_mig_device *mig = instance_of(device);
	parse_uuid(mig ? mig->uuid : cuda_gpu(device)->uuid, uuid);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	NEED(bytes);
	DEVICE(device);
	*bytes = cuda_capacity(device);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
	NEED(major && minor);
	DEVICE(device);
	*major = (int)cuda_gpu(device)->compute_major;
	*minor = (int)cuda_gpu(device)->compute_minor;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device)
{
	NEED(id && size >= 13);
	DEVICE(device);
	const struct simgpu_gpu *gpu = cuda_gpu(device);
	snprintf(id, (size_t)size, "%04X:%02X:%02X.0", gpu->pci_domain, gpu->pci_bus, gpu->pci_device);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
	unsigned domain = 0, bus, slot;
	NEED(device && id);
	READY();
	if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
		domain = 0;
		if (sscanf(id, "%x:%x", &bus, &slot) != 2)
			return CUDA_INVALID_VALUE;
	}
	for (uint32_t i = 0; i < cuda_device_count; i++) {
		const struct simgpu_gpu *gpu = cuda_gpu((CUdevice)i);
		if (gpu->pci_domain != domain || gpu->pci_bus != bus || gpu->pci_device != slot)
			continue;
		*device = (CUdevice)i;
		return CUDA_SUCCESS;
	}
	return CUDA_INVALID_DEVICE;
}

static bool peers(CUdevice device, CUdevice other)
{
	const struct simgpu_gpu *gpu = cuda_gpu(device);
	uint32_t number = cuda_devices[other].gpu;
	if (device == other || instance_of(device) || instance_of(other))
		return false;
	return gpu->nvlink_switch || gpu->lanes[number] || gpu->level[number] < 50;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice other)
{
	NEED(can);
	DEVICE(device);
	DEVICE(other);
	*can = peers(device, other);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice device, CUdevice other)
{
	NEED(value && attribute >= 1 && attribute <= 4);
	DEVICE(device);
	DEVICE(other);
	bool nvlink = cuda_gpu(device)->nvlink_switch || cuda_gpu(device)->lanes[cuda_devices[other].gpu];
	/* 1 performance rank, 2 access, 3 native atomics, 4 arrays */
	*value = attribute == 1 ? !nvlink : attribute == 3 ? nvlink : peers(device, other);
	return CUDA_SUCCESS;
}

struct attribute {
	int number;
	int64_t value;
};

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	NEED(value && attribute >= 1 && attribute < 200);
	DEVICE(device);
	const struct simgpu_gpu *gpu = cuda_gpu(device);
	const struct attribute table[] = {
		{1, 1024}, {2, 1024}, {3, 1024}, {4, 64},                        /* block */
		{5, 0x7fffffff}, {6, 65535}, {7, 65535},                         /* grid */
		{8, 49152}, {9, 65536}, {10, 32}, {11, 0x7fffffff}, {12, 65536}, /* shared, constant, warp, pitch, registers */
		{13, gpu->sm_clock_mhz * 1000}, {14, 512}, {15, 1}, {16, cuda_multiprocessors(device)},
		{19, 1}, {20, gpu->compute_mode}, {31, 1}, {32, gpu->ecc_enabled},
		{33, gpu->pci_bus}, {34, gpu->pci_device}, {36, gpu->memory_clock_mhz * 1000}, {37, gpu->bus_width},
		{38, gpu->l2_bytes}, {39, gpu->threads_per_multiprocessor}, {40, 3}, {41, 1}, {50, gpu->pci_domain},
		{51, 32}, {75, gpu->compute_major}, {76, gpu->compute_minor}, {78, 1}, {79, 1}, {80, 1},
		{81, gpu->shared_per_multiprocessor}, {82, 65536}, {83, 1}, {86, gpu->nvlink_switch},
		{87, gpu->compute_minor ? 32 : 2}, {89, gpu->compute_major >= 6}, {90, gpu->compute_major >= 6},
		{95, gpu->compute_major >= 6}, {97, gpu->shared_per_block_optin}, {99, 1},
		{106, gpu->threads_per_multiprocessor / 64}, {111, gpu->compute_major >= 8 ? 1024 : 0}, {115, 1},
		{132, 0}, {134, gpu->numa}, {139, gpu->pci_device_id}, {140, gpu->pci_subsystem_id},
	};
	*value = 0; /* what is not listed, the simulated GPU does not have */
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (table[i].number == attribute)
			*value = (int)table[i].value;
	return CUDA_SUCCESS;
}

struct properties {
	int threads, block[3], grid[3], shared, constant, warp, pitch, registers, clock, alignment;
};

EXPORT CUresult cuDeviceGetProperties(struct properties *properties, CUdevice device)
{
	NEED(properties);
	DEVICE(device);
	*properties = (struct properties){1024, {1024, 1024, 64}, {0x7fffffff, 65535, 65535}, 49152, 65536, 32, 0x7fffffff,
					  65536, (int)cuda_gpu(device)->sm_clock_mhz * 1000, 512};
	return CUDA_SUCCESS;
}
