/* Memory and the processes that hold it. */
#include "nvml.h"

#include <string.h>

struct amounts {
	unsigned long long total, reserved, used;
};

static struct amounts amounts(nvmlDevice_t device, const struct simgpu_gpu *gpu)
{
	simgpu_reap(&nvml_view);
	if (device->mig >= 0) {
		const struct simgpu_mig_device *mig = &gpu->mig_devices[device->mig];
		return (struct amounts){simgpu_mig_bytes(gpu, mig), 0,
					simgpu_used(nvml_view.state, device->gpu, mig->gpu_instance)};
	}
	/* A process that is held to a limit of its cgroup sees that as the GPU. */
	uint64_t cgroups[SIMGPU_CGROUPS] = {0};
	if (simgpu_any_limit(nvml_view.state))
		simgpu_find_cgroups(cgroups);
	const struct simgpu_limit *limit = simgpu_limit_of(nvml_view.state, cgroups, device->gpu);
	if (limit && limit->hard[device->gpu] < gpu->memory_bytes - gpu->reserved_bytes)
		return (struct amounts){limit->hard[device->gpu], 0, simgpu_limit_used(nvml_view.state, limit, device->gpu)};
	return (struct amounts){gpu->memory_bytes, gpu->reserved_bytes,
				simgpu_used(nvml_view.state, device->gpu, SIMGPU_NO_INSTANCE)};
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *info)
{
	GPU_OR_MIG(device);
	NEED(info);
	if (info->version != (sizeof *info | 2u << 24))
		return NVML_ARGUMENT_VERSION_MISMATCH;
	if (gpu->unified_memory)
		return NVML_NOT_SUPPORTED;
	struct amounts all = amounts(device, gpu);
	info->total = all.total;
	info->reserved = all.reserved;
	info->used = all.used;
	info->free = all.total - all.reserved - all.used;
	return NVML_SUCCESS;
}

/* The first version counts what is reserved as used. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *info)
{
	GPU_OR_MIG(device);
	NEED(info);
	if (gpu->unified_memory)
		return NVML_NOT_SUPPORTED;
	struct amounts all = amounts(device, gpu);
	*info = (nvmlMemory_t){all.total, all.total - all.reserved - all.used, all.reserved + all.used};
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlMemory_t *info)
{
	GPU(device);
	NEED(info);
	/* BAR1 covers all memory, rounded up to a power of two; the driver maps two pages of it. */
	unsigned long long total = 256ull << 20;
	while (total < gpu->memory_bytes)
		total *= 2;
	*info = (nvmlMemory_t){total, total - (2ull << 20), 2ull << 20};
	return NVML_SUCCESS;
}

enum processes { COMPUTE, MPS_CLIENTS, DRAWING };

/* Fills `list` (NULL to count only) with the processes on a GPU or MIG device; returns how many there are. */
static unsigned list_processes(nvmlDevice_t device, const struct simgpu_gpu *gpu, nvmlProcessInfo_t *list, unsigned size,
			       enum processes which)
{
	unsigned count = 0;
	simgpu_reap(&nvml_view);
	for (int i = 0; which != DRAWING && i < SIMGPU_SLOTS; i++) {
		const struct simgpu_slot *slot = &nvml_view.state->slots[i];
		uint64_t pid = __atomic_load_n(&slot->pid, __ATOMIC_SEQ_CST);
		uint32_t instance = slot->gpu_instance[device->gpu];
		if (!pid || !slot->contexts[device->gpu] || (which == MPS_CLIENTS && !slot->mps))
			continue;
		if (device->mig >= 0 && gpu->mig_devices[device->mig].gpu_instance != instance)
			continue;
		if (list && count < size)
			list[count] = (nvmlProcessInfo_t){
				simgpu_host_pid(pid), slot->memory[device->gpu], instance,
				instance == SIMGPU_NO_INSTANCE ? SIMGPU_NO_INSTANCE : 0,
			};
		count++;
	}
	if (gpu->load_pid && device->mig < 0 && which == (gpu->load_draws ? DRAWING : COMPUTE)) {
		if (list && count < size)
			list[count] = (nvmlProcessInfo_t){gpu->load_pid, gpu->load_memory_bytes, SIMGPU_NO_INSTANCE,
							  SIMGPU_NO_INSTANCE};
		count++;
	}
	return count;
}

static nvmlReturn_t processes(nvmlDevice_t device, const struct simgpu_gpu *gpu, unsigned *count, nvmlProcessInfo_t *list,
			      enum processes which)
{
	unsigned size = *count;
	*count = list_processes(device, gpu, list, size, which);
	if (*count == 0)
		return NVML_SUCCESS;
	return !list || size < *count ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t processes_v1(nvmlDevice_t device, const struct simgpu_gpu *gpu, unsigned *count, nvmlProcessInfo_v1_t *list,
				 enum processes which)
{
	nvmlProcessInfo_t all[SIMGPU_SLOTS + 1];
	unsigned size = *count;
	*count = list_processes(device, gpu, all, SIMGPU_SLOTS + 1, which);
	for (unsigned i = 0; list && i < *count && i < size; i++)
		list[i] = (nvmlProcessInfo_v1_t){all[i].pid, all[i].used};
	if (*count == 0)
		return NVML_SUCCESS;
	return !list || size < *count ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list)
{
	GPU_OR_MIG(device);
	NEED(count);
	return processes(device, gpu, count, list, COMPUTE);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list)
{
	return nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *list)
{
	GPU_OR_MIG(device);
	NEED(count);
	return processes_v1(device, gpu, count, list, COMPUTE);
}

/* Nothing draws here but a declared load. */
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list)
{
	GPU_OR_MIG(device);
	NEED(count);
	return processes(device, gpu, count, list, DRAWING);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list)
{
	return nvmlDeviceGetGraphicsRunningProcesses_v3(device, count, list);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *list)
{
	GPU_OR_MIG(device);
	NEED(count);
	return processes_v1(device, gpu, count, list, DRAWING);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list)
{
	GPU_OR_MIG(device);
	NEED(count);
	return processes(device, gpu, count, list, MPS_CLIENTS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list)
{
	return nvmlDeviceGetMPSComputeRunningProcesses_v3(device, count, list);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *list)
{
	GPU_OR_MIG(device);
	NEED(count);
	return processes_v1(device, gpu, count, list, MPS_CLIENTS);
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *list,
						    unsigned *count, unsigned long long since)
{
	GPU(device);
	NEED(count);
	(void)gpu;
	(void)since; /* there is one sample a process, of the last second, and it is always newer */
	unsigned found_count = 0, size = *count;
	simgpu_reap(&nvml_view);
	for (int i = 0; i < SIMGPU_SLOTS; i++) {
		const struct simgpu_slot *slot = &nvml_view.state->slots[i];
		if (!slot->pid || !slot->contexts[device->gpu])
			continue;
		if (list && found_count < size)
			list[found_count] = (nvmlProcessUtilizationSample_t){
				.pid = simgpu_host_pid(slot->pid),
				.time = simgpu_now() / 1000,
				.sm = (unsigned)(100 * simgpu_slot_busy(slot, device->gpu, 1000000000ull) + 0.5),
			};
		found_count++;
	}
	if (gpu->load_pid) {
		if (list && found_count < size)
			list[found_count] = (nvmlProcessUtilizationSample_t){
				.pid = gpu->load_pid, .time = simgpu_now() / 1000, .sm = gpu->load_gpu_percent,
				.memory = gpu->load_memory_percent, .encoder = gpu->load_encoder_percent,
				.decoder = gpu->load_decoder_percent,
			};
		found_count++;
	}
	*count = found_count;
	if (found_count == 0)
		return NVML_NOT_FOUND;
	return !list || size < found_count ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
