"""NVML's profiling counters (GPM, Hopper and newer): what a GPU did between two readings.

A reader keeps the last sample; a reading takes a new one and compares. So the first reading has no values, and who
reads more often gets values over shorter times.
"""

from __future__ import annotations

from typing import Any

import pynvml

from gpuplane.hardware.binding import ask, need

# Field of Sample -> its metric.
_METRICS = {
    "engine_active": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    "tensor_active": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "dram_active": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    "sm_active": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "sm_occupancy": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "fp64_active": pynvml.NVML_GPM_METRIC_FP64_UTIL,
    "fp32_active": pynvml.NVML_GPM_METRIC_FP32_UTIL,
    "fp16_active": pynvml.NVML_GPM_METRIC_FP16_UTIL,
}


class GpmReader:
    """The counters of one GPU. Use `open_reader`, which knows whether a GPU has them."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._now, self._before = need(pynvml.nvmlGpmSampleAlloc), need(pynvml.nvmlGpmSampleAlloc)
        self._taken = False  # whether `_now` holds a sample

    def read(self) -> dict[str, float | None]:
        """Parts of the time since the last reading, 0 to 1, by their fields of Sample; empty where there are none."""
        comparable, self._taken = self._taken, False
        self._now, self._before = self._before, self._now
        if ask(pynvml.nvmlGpmSampleGet, self._handle, self._now) is None:  # MIG was switched on
            return {}
        self._taken = True
        if not comparable:
            return {}
        wanted = pynvml.c_nvmlGpmMetricsGet_t()
        wanted.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        wanted.numMetrics = len(_METRICS)
        wanted.sample1, wanted.sample2 = self._before, self._now
        for place, metric in enumerate(_METRICS.values()):
            wanted.metrics[place].metricId = metric
        if ask(pynvml.nvmlGpmMetricsGet, wanted) is None:
            return {}
        return {name: _ratio(wanted.metrics[place]) for place, name in enumerate(_METRICS)}

    def close(self) -> None:
        need(pynvml.nvmlGpmSampleFree, self._now)
        need(pynvml.nvmlGpmSampleFree, self._before)


def open_reader(handle: Any) -> GpmReader | None:
    """A reader, None for a GPU without these counters. Raises GpuLost."""
    support = ask(pynvml.nvmlGpmQueryDeviceSupport, handle)
    return GpmReader(handle) if support is not None and support.isSupportedDevice else None


def _ratio(metric: Any) -> float | None:
    return metric.value / 100 if metric.nvmlReturn == pynvml.NVML_SUCCESS else None
