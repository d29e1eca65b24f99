/* Which GPUs there are and what they are. */
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
	NEED(count);
	if (!nvml_view.state)
		return NVML_UNINITIALIZED;
	*count = nvml_view.visible_count;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
	return nvmlDeviceGetCount_v2(count);
}

static nvmlReturn_t give(uint32_t number, int32_t mig, nvmlDevice_t *device)
{
	*device = nvml_handle(number, mig);
	return nvml_view.state->gpus[number].lost ? NVML_GPU_IS_LOST : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	NEED(device);
	if (!nvml_view.state)
		return NVML_UNINITIALIZED;
	if (index >= nvml_view.visible_count)
		return NVML_INVALID_ARGUMENT;
	return give(nvml_view.visible[index], -1, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	NEED(uuid && device);
	if (!nvml_view.state)
		return NVML_UNINITIALIZED;
	for (uint32_t i = 0; i < nvml_view.visible_count; i++) {
		const struct simgpu_gpu *gpu = &nvml_view.state->gpus[nvml_view.visible[i]];
		if (!strcmp(gpu->uuid, uuid))
			return give(nvml_view.visible[i], -1, device);
		for (int mig = 0; gpu->mig_enabled && mig < SIMGPU_MIG_DEVICES; mig++)
			if (gpu->mig_devices[mig].used && !strcmp(gpu->mig_devices[mig].uuid, uuid))
				return give(nvml_view.visible[i], mig, device);
	}
	return NVML_NOT_FOUND;
}

struct uuid_argument {
	unsigned version, type;
	char text[41];
};

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const struct uuid_argument *uuid, nvmlDevice_t *device)
{
	NEED(uuid && device);
	if (uuid->type != 1) /* only as text */
		return NVML_INVALID_ARGUMENT;
	return nvmlDeviceGetHandleByUUID(uuid->text, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	NEED(serial && device);
	if (!nvml_view.state)
		return NVML_UNINITIALIZED;
	for (uint32_t i = 0; i < nvml_view.visible_count; i++)
		if (!strcmp(nvml_view.state->gpus[nvml_view.visible[i]].serial, serial))
			return give(nvml_view.visible[i], -1, device);
	return NVML_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	unsigned domain, bus, slot;
	NEED(id && device);
	if (!nvml_view.state)
		return NVML_UNINITIALIZED;
	if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
		domain = 0;
		if (sscanf(id, "%x:%x", &bus, &slot) != 2)
			return NVML_INVALID_ARGUMENT;
	}
	for (uint32_t i = 0; i < nvml_view.visible_count; i++) {
		const struct simgpu_gpu *gpu = &nvml_view.state->gpus[nvml_view.visible[i]];
		if (gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == slot)
			return give(nvml_view.visible[i], -1, device);
	}
	return NVML_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
	GPU_OR_MIG(device);
	NEED(index);
	(void)gpu;
	if (device->mig >= 0) {
		*index = (unsigned)device->mig;
		return NVML_SUCCESS;
	}
	for (*index = 0; nvml_view.visible[*index] != device->gpu; ++*index)
		;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned size)
{
	GPU_OR_MIG(device);
	if (device->mig < 0)
		return nvml_text(name, size, gpu->name);
	char text[160];
	snprintf(text, sizeof text, "%s MIG %s", gpu->name, gpu->mig_profiles[gpu->mig_devices[device->mig].profile].name);
	return nvml_text(name, size, text);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned size)
{
	GPU_OR_MIG(device);
	return nvml_text(uuid, size, device->mig < 0 ? gpu->uuid : gpu->mig_devices[device->mig].uuid);
}

#define TEXT(function, field)                                                                                          \
	EXPORT nvmlReturn_t function(nvmlDevice_t device, char *text, unsigned size)                                    \
	{                                                                                                               \
		GPU(device);                                                                                            \
		return gpu->field[0] ? nvml_text(text, size, gpu->field) : NVML_NOT_SUPPORTED;                          \
	}
TEXT(nvmlDeviceGetSerial, serial)
TEXT(nvmlDeviceGetVbiosVersion, vbios)
TEXT(nvmlDeviceGetBoardPartNumber, part)

/* One number of a GPU; `condition` says whether this model offers it. */
#define NUMBER(function, type, condition, value)                                                                       \
	EXPORT nvmlReturn_t function(nvmlDevice_t device, type *result)                                                 \
	{                                                                                                               \
		GPU(device);                                                                                            \
		NEED(result);                                                                                           \
		if (!(condition))                                                                                       \
			return NVML_NOT_SUPPORTED;                                                                      \
		*result = (type)(value);                                                                                \
		return NVML_SUCCESS;                                                                                    \
	}
NUMBER(nvmlDeviceGetMinorNumber, unsigned, true, gpu->minor)
NUMBER(nvmlDeviceGetBrand, unsigned, true, gpu->brand)
NUMBER(nvmlDeviceGetArchitecture, unsigned, true, gpu->architecture)
NUMBER(nvmlDeviceGetBoardId, unsigned, true, gpu->pci_domain << 16 | gpu->pci_bus << 8 | gpu->pci_device)
NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned, true, 0)
NUMBER(nvmlDeviceGetModuleId, unsigned, gpu->nvlink_switch, gpu->module_id)
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned, true, gpu->bus_width)
NUMBER(nvmlDeviceGetNumGpuCores, unsigned, true, gpu->cores)
NUMBER(nvmlDeviceGetVirtualizationMode, unsigned, true, 0)
NUMBER(nvmlDeviceGetDisplayMode, unsigned, true, 0)
NUMBER(nvmlDeviceGetDisplayActive, unsigned, true, 0)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, true, gpu->persistence)
NUMBER(nvmlDeviceGetComputeMode, unsigned, true, gpu->compute_mode)
NUMBER(nvmlDeviceGetNumFans, unsigned, true, 0)
NUMBER(nvmlDeviceGetNumaNodeId, int, false, gpu->numa) /* only GPUs whose memory is a NUMA node answer */

EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned mode)
{
	GPU(device);
	gpu->persistence = mode != 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode)
{
	GPU(device);
	if (mode > 3)
		return NVML_INVALID_ARGUMENT;
	gpu->compute_mode = mode;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	GPU_OR_MIG(device);
	NEED(major && minor);
	*major = (int)gpu->compute_major;
	*minor = (int)gpu->compute_minor;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
	GPU_OR_MIG(device);
	NEED(info);
	*info = (nvmlPciInfo_t){
		.domain = gpu->pci_domain, .bus = gpu->pci_bus, .device = gpu->pci_device,
		.pci_device_id = gpu->pci_device_id, .pci_subsystem_id = gpu->pci_subsystem_id,
	};
	snprintf(info->legacy, sizeof info->legacy, "%04X:%02X:%02X.0", gpu->pci_domain & 0xffff, gpu->pci_bus & 0xff,
		 gpu->pci_device & 0x1f);
	snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", gpu->pci_domain, gpu->pci_bus, gpu->pci_device);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *info)
{
	return nvmlDeviceGetPciInfo_v3(device, info);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *info)
{
	GPU_OR_MIG(device);
	NEED(info);
	if (info->version != (sizeof *info | 1u << 24))
		return NVML_ARGUMENT_VERSION_MISMATCH;
	unsigned version = info->version;
	*info = (nvmlPciInfoExt_t){
		.version = version, .domain = gpu->pci_domain, .bus = gpu->pci_bus, .device = gpu->pci_device,
		.pci_device_id = gpu->pci_device_id, .pci_subsystem_id = gpu->pci_subsystem_id,
		.base_class = 3, .sub_class = 2,
	};
	snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", gpu->pci_domain, gpu->pci_bus, gpu->pci_device);
	return NVML_SUCCESS;
}
