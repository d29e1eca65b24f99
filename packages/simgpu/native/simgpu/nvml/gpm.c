/* GPM, NVML's profiling counters of Hopper and newer: two samples, and what happened between them. */
#include "nvml.h"

#include <stdlib.h>

enum {
	METRIC_GRAPHICS = 1,
	METRIC_SM = 2,
	METRIC_OCCUPANCY = 3,
	METRIC_TENSOR = 5,
	METRIC_DRAM = 10,
	METRIC_PCIE_TX = 20,
	METRIC_PCIE_RX = 21,
};

typedef struct sample {
	bool taken;
	uint64_t time, busy, memory_busy, pcie_tx, pcie_rx;
} *nvmlGpmSample_t;

struct metric {
	unsigned id;
	nvmlReturn_t result;
	double value;
	const char *short_name, *long_name, *unit;
};

struct metrics_get {
	unsigned version, count;
	nvmlGpmSample_t first, second;
	struct metric metrics[];
};

struct support {
	unsigned version, supported;
};

static bool supported(const struct simgpu_gpu *gpu)
{
	return gpu->compute_major >= 9 && !gpu->mig_enabled;
}

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, struct support *answer)
{
	GPU(device);
	NEED(answer);
	answer->supported = supported(gpu);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
	NEED(sample);
	*sample = calloc(1, sizeof **sample);
	return *sample ? NVML_SUCCESS : NVML_MEMORY;
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
	NEED(sample);
	free(sample);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
	GPU(device);
	NEED(sample);
	if (!supported(gpu))
		return NVML_NOT_SUPPORTED;
	*sample = (struct sample){true, simgpu_now(), simgpu_total_busy_ns(gpu), gpu->memory_busy_ns, gpu->pcie_tx_bytes,
				  gpu->pcie_rx_bytes};
	return NVML_SUCCESS;
}

static double between(uint64_t first, uint64_t second, double scale)
{
	return second > first ? (double)(second - first) * scale : 0;
}

EXPORT nvmlReturn_t nvmlGpmMetricsGet(struct metrics_get *wanted)
{
	NEED(wanted && wanted->first && wanted->second && wanted->first->taken && wanted->second->taken);
	if (wanted->version != 1)
		return NVML_ARGUMENT_VERSION_MISMATCH;
	const struct sample *a = wanted->first, *b = wanted->second;
	double elapsed = between(a->time, b->time, 1);
	NEED(elapsed > 0);
	for (unsigned i = 0; i < wanted->count; i++) {
		struct metric *metric = &wanted->metrics[i];
		double percent = 100 / elapsed, mib_per_second = 1e9 / elapsed / (1 << 20);
		metric->result = NVML_SUCCESS;
		switch (metric->id) {
		case METRIC_GRAPHICS: case METRIC_SM: metric->value = between(a->busy, b->busy, percent); break;
		case METRIC_OCCUPANCY: metric->value = between(a->busy, b->busy, percent) / 2; break;
		case METRIC_TENSOR: metric->value = 0; break; /* no kernel that can run here uses them */
		case METRIC_DRAM: metric->value = between(a->memory_busy, b->memory_busy, percent); break;
		case METRIC_PCIE_TX: metric->value = between(a->pcie_tx, b->pcie_tx, mib_per_second); break;
		case METRIC_PCIE_RX: metric->value = between(a->pcie_rx, b->pcie_rx, mib_per_second); break;
		default: metric->result = NVML_NOT_SUPPORTED;
		}
		if (metric->id < METRIC_PCIE_TX && metric->value > 100)
			metric->value = 100;
	}
	return NVML_SUCCESS;
}
