/* PCIe, NVLink, NUMA: how GPUs hang together. */
#include "nvml.h"

#include <string.h>

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
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, true, gpu->pcie_replays)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, true, gpu->pcie_generation)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, true, gpu->pcie_generation)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, true, gpu->pcie_generation)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, true, gpu->pcie_width)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, true, gpu->pcie_width)

EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *kilobytes)
{
	GPU(device);
	NEED(kilobytes);
	if (counter > 1)
		return NVML_INVALID_ARGUMENT;
	/* Of the time that copies took in the last half second, at the speed of the link. */
	double busy = simgpu_memory_busy(gpu, 500000000ull);
	uint64_t bytes = counter ? gpu->pcie_rx_bytes : gpu->pcie_tx_bytes;
	*kilobytes = bytes ? (unsigned)(busy * gpu->pcie_mbps * 1000) : 0;
	return NVML_SUCCESS;
}

static bool in_range(const struct simgpu_gpu *gpu, unsigned link)
{
	return link < gpu->nvlinks;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
	GPU(device);
	NEED(active);
	if (!gpu->nvlinks)
		return NVML_NOT_SUPPORTED;
	if (!in_range(gpu, link))
		return NVML_INVALID_ARGUMENT;
	*active = 1;
	return NVML_SUCCESS;
}

/* Replays, recoveries, CRC errors of flits and of data, ECC errors: no fault of a link can be injected. */
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, unsigned counter,
						    unsigned long long *value)
{
	GPU(device);
	NEED(value);
	if (!gpu->nvlinks)
		return NVML_NOT_SUPPORTED;
	if (!in_range(gpu, link) || counter > 4)
		return NVML_INVALID_ARGUMENT;
	*value = 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
	GPU(device);
	NEED(version);
	if (!in_range(gpu, link))
		return gpu->nvlinks ? NVML_INVALID_ARGUMENT : NVML_NOT_SUPPORTED;
	*version = gpu->nvlink_version;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, unsigned capability, unsigned *has)
{
	GPU(device);
	NEED(has);
	if (!in_range(gpu, link))
		return gpu->nvlinks ? NVML_INVALID_ARGUMENT : NVML_NOT_SUPPORTED;
	*has = capability == 0 || capability == 2 || capability == 5; /* peer-to-peer, its atomics, valid */
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, unsigned *type)
{
	GPU(device);
	NEED(type);
	if (!in_range(gpu, link))
		return gpu->nvlinks ? NVML_INVALID_ARGUMENT : NVML_NOT_SUPPORTED;
	*type = gpu->nvlink_switch ? 2 : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info);

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *info)
{
	GPU(device);
	NEED(info);
	if (!in_range(gpu, link))
		return gpu->nvlinks ? NVML_INVALID_ARGUMENT : NVML_NOT_SUPPORTED;
	memset(info, 0, sizeof *info);
	if (gpu->nvlink_switch) {
		/* Links are spread over the switches of the board, which sit on a PCI bus of their own. */
		info->bus = 0xf0 + link % 4;
		return NVML_SUCCESS;
	}
	/* Straight links are numbered peer after peer. */
	for (uint32_t peer = 0; peer < nvml_view.state->gpu_count; peer++) {
		if (link < gpu->lanes[peer])
			return nvmlDeviceGetPciInfo_v3(nvml_handle(peer, -1), info);
		link -= gpu->lanes[peer];
	}
	return NVML_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *info)
{
	return nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, info);
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, unsigned *level)
{
	GPU(device);
	NEED(level);
	struct simgpu_gpu *second;
	nvmlReturn_t result = nvml_device(other, false, &second);
	if (result == NVML_SUCCESS)
		*level = device == other ? 0 : gpu->level[other->gpu];
	return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level, unsigned *count,
						     nvmlDevice_t *list)
{
	GPU(device);
	NEED(count);
	unsigned size = *count;
	*count = 0;
	for (uint32_t i = 0; i < nvml_view.visible_count; i++) {
		uint32_t other = nvml_view.visible[i];
		if (other == device->gpu || gpu->level[other] != level)
			continue;
		if (list && *count < size)
			list[*count] = nvml_handle(other, -1);
		++*count;
	}
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, unsigned capability, unsigned *status)
{
	GPU(device);
	NEED(status);
	struct simgpu_gpu *second;
	nvmlReturn_t result = nvml_device(other, false, &second);
	if (result != NVML_SUCCESS)
		return result;
	bool nvlink = gpu->nvlink_switch || gpu->lanes[other->gpu];
	*status = nvlink ? 0 : capability == 2 ? 5 : gpu->level[other->gpu] < 50 ? 0 : 3;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *set)
{
	GPU(device);
	NEED(set && words);
	for (unsigned i = 0; i < words; i++)
		set[i] = i < 16 ? (unsigned long)gpu->cpus[i] : 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned words, unsigned long *set,
							unsigned scope)
{
	return scope > 1 ? NVML_INVALID_ARGUMENT : nvmlDeviceGetCpuAffinity(device, words, set);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *set, unsigned scope)
{
	GPU(device);
	NEED(set && words);
	if (scope > 1)
		return NVML_INVALID_ARGUMENT;
	if (gpu->numa < 0)
		return NVML_NOT_SUPPORTED;
	memset(set, 0, words * sizeof *set);
	if ((unsigned)gpu->numa < words * 64)
		set[gpu->numa / 64] = 1ul << gpu->numa % 64;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvmlDevice_t *list)
{
	NEED(count);
	if (!nvml_view.state)
		return NVML_UNINITIALIZED;
	unsigned size = *count;
	*count = 0;
	for (uint32_t i = 0; i < nvml_view.visible_count && cpu < 1024; i++) {
		if (!(nvml_view.state->gpus[nvml_view.visible[i]].cpus[cpu / 64] >> cpu % 64 & 1))
			continue;
		if (list && *count < size)
			list[*count] = nvml_handle(nvml_view.visible[i], -1);
		++*count;
	}
	return NVML_SUCCESS;
}
