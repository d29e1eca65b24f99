/* ECC, row remapping, field values: what the health of a GPU is read from. */
#include "nvml.h"

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	GPU(device);
	NEED(current && pending);
	if (!gpu->ecc_supported)
		return NVML_NOT_SUPPORTED;
	*current = *pending = gpu->ecc_enabled;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned *mode)
{
	GPU(device);
	NEED(mode);
	if (!gpu->ecc_supported)
		return NVML_NOT_SUPPORTED;
	*mode = 1;
	return NVML_SUCCESS;
}

static uint64_t *ecc_counter(struct simgpu_gpu *gpu, unsigned error, unsigned counter)
{
	if (error == 0)
		return counter ? &gpu->ecc_corrected_aggregate : &gpu->ecc_corrected_volatile;
	return counter ? &gpu->ecc_uncorrected_aggregate : &gpu->ecc_uncorrected_volatile;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned error, unsigned counter,
						unsigned long long *count)
{
	GPU(device);
	NEED(count);
	if (error > 1 || counter > 1)
		return NVML_INVALID_ARGUMENT;
	if (!gpu->ecc_enabled)
		return NVML_NOT_SUPPORTED;
	*count = *ecc_counter(gpu, error, counter);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned error, unsigned counter,
						    unsigned location, unsigned long long *count)
{
	nvmlReturn_t result = nvmlDeviceGetTotalEccErrors(device, error, counter, count);
	if (result == NVML_SUCCESS && location > 7)
		return NVML_INVALID_ARGUMENT;
	if (result == NVML_SUCCESS && location != 2)
		*count = 0; /* all errors that can be injected are in device memory */
	return result;
}

EXPORT nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, unsigned counter)
{
	GPU(device);
	if (!gpu->ecc_enabled)
		return NVML_NOT_SUPPORTED;
	if (counter > 1)
		return NVML_INVALID_ARGUMENT;
	*ecc_counter(gpu, 0, counter) = *ecc_counter(gpu, 1, counter) = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list);

/* As `nvidia-smi -r` does by the kernel's module: the GPU computes right again, and has no volatile errors. */
EXPORT nvmlReturn_t simgpuDeviceReset(nvmlDevice_t device)
{
	unsigned count = 0;
	GPU(device);
	nvmlDeviceGetComputeRunningProcesses_v3(device, &count, 0);
	if (count)
		return NVML_IN_USE;
	gpu->wrong_results = gpu->remap_pending = gpu->last_xid = 0;
	gpu->ecc_corrected_volatile = gpu->ecc_uncorrected_volatile = 0;
	gpu->recovery_action = 0;
	simgpu_raise(&nvml_view, (uint32_t)(gpu - nvml_view.state->gpus), EVENT_RECOVERY_ACTION, 0);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *correctable, unsigned *uncorrectable,
					      unsigned *pending, unsigned *failure)
{
	GPU(device);
	NEED(correctable && uncorrectable && pending && failure);
	if (!gpu->remap_supported)
		return NVML_NOT_SUPPORTED;
	*correctable = gpu->remapped_correctable;
	*uncorrectable = gpu->remapped_uncorrectable;
	*pending = gpu->remap_pending;
	*failure = gpu->remap_failure;
	return NVML_SUCCESS;
}

enum {
	FIELD_ECC_CURRENT = 1,
	FIELD_ECC_PENDING = 2,
	FIELD_SBE_VOLATILE = 3,
	FIELD_DBE_VOLATILE = 4,
	FIELD_SBE_AGGREGATE = 5,
	FIELD_DBE_AGGREGATE = 6,
	FIELD_MEMORY_TEMP = 82,
	FIELD_ENERGY = 83,
	FIELD_NVLINK_COUNT = 91,
	FIELD_PCIE_REPLAY = 94,
	FIELD_NVLINK_TX = 138,
	FIELD_NVLINK_RX = 139,
	FIELD_NVLINK_RAW_TX = 140,
	FIELD_NVLINK_RAW_RX = 141,
	FIELD_REMAPPED_COR = 142,
	FIELD_REMAPPED_UNC = 143,
	FIELD_REMAPPED_PENDING = 144,
	FIELD_REMAPPED_FAILURE = 145,
	FIELD_POWER_AVERAGE = 185,
	FIELD_POWER_INSTANT = 186,
	FIELD_RECOVERY_ACTION = 230,
};

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules);

static nvmlReturn_t field(nvmlDevice_t device, const struct simgpu_gpu *gpu, nvmlFieldValue_t *value)
{
	unsigned number = 0;
	unsigned long long large = 0;
	bool wide = false, offered = true;
	switch (value->field) {
	case FIELD_ECC_CURRENT:
	case FIELD_ECC_PENDING: offered = gpu->ecc_supported; number = gpu->ecc_enabled; break;
	case FIELD_SBE_VOLATILE: offered = gpu->ecc_enabled; wide = true; large = gpu->ecc_corrected_volatile; break;
	case FIELD_DBE_VOLATILE: offered = gpu->ecc_enabled; wide = true; large = gpu->ecc_uncorrected_volatile; break;
	case FIELD_SBE_AGGREGATE: offered = gpu->ecc_enabled; wide = true; large = gpu->ecc_corrected_aggregate; break;
	case FIELD_DBE_AGGREGATE: offered = gpu->ecc_enabled; wide = true; large = gpu->ecc_uncorrected_aggregate; break;
	case FIELD_MEMORY_TEMP:
		offered = gpu->memory_temperature;
		number = gpu->memory_temperature + (unsigned)(20 * simgpu_busy(gpu, 4000000000ull));
		break;
	case FIELD_ENERGY:
		wide = true;
		offered = nvmlDeviceGetTotalEnergyConsumption(device, &large) == NVML_SUCCESS;
		break;
	case FIELD_NVLINK_COUNT: number = gpu->nvlinks; break;
	case FIELD_PCIE_REPLAY: number = (unsigned)gpu->pcie_replays; break;
	case FIELD_NVLINK_TX:
	case FIELD_NVLINK_RX:
	case FIELD_NVLINK_RAW_TX:
	case FIELD_NVLINK_RAW_RX:
		offered = gpu->nvlinks != 0;
		wide = true;
		large = gpu->nvlink_bytes / 2048; /* KiB, half of it each way */
		if (offered && value->scope < gpu->nvlinks)
			large /= gpu->nvlinks;
		break;
	case FIELD_REMAPPED_COR: offered = gpu->remap_supported; number = gpu->remapped_correctable; break;
	case FIELD_REMAPPED_UNC: offered = gpu->remap_supported; number = gpu->remapped_uncorrectable; break;
	case FIELD_REMAPPED_PENDING: offered = gpu->remap_supported; number = gpu->remap_pending; break;
	case FIELD_REMAPPED_FAILURE: offered = gpu->remap_supported; number = gpu->remap_failure; break;
	case FIELD_POWER_AVERAGE:
	case FIELD_POWER_INSTANT: number = (unsigned)nvml_power_mw(gpu); break;
	case FIELD_RECOVERY_ACTION: number = gpu->recovery_action; break;
	default: offered = false;
	}
	if (!offered)
		return NVML_NOT_SUPPORTED;
	value->type = wide ? VALUE_UNSIGNED_LONG_LONG : VALUE_UNSIGNED;
	if (wide)
		value->value.ull = large;
	else
		value->value.u = number;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	GPU(device);
	NEED(values && count > 0);
	for (int i = 0; i < count; i++) {
		values[i].timestamp = (long long)(simgpu_now() / 1000);
		values[i].latency = 0;
		values[i].result = field(device, gpu, &values[i]);
	}
	return NVML_SUCCESS;
}
