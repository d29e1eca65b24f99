"""The metrics: DCGM's field names, and what each is made of.

Invariant: a field that a GPU does not offer has the value None and is left out for that GPU, as DCGM does; it is
never 0.

Source of names and types: NVIDIA DCGM exporter's default counters and DCGM's field identifiers.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from gpuplane.hardware import GPUFacts, Sample

MIB: Final = 1 << 20
KIB: Final = 1 << 10
VOLTA: Final = (7, 0)  # DCGM has profiling fields from this compute capability on

Value = float | int | None


class FieldType(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    LABEL = "label"  # no metric of its own: a label on all others


class ExporterField(msgspec.Struct, frozen=True):
    """A metric as it is written out."""

    name: str
    type: FieldType
    help: str


def bus_id(pci: str) -> str:
    """`0000:1b:00.0` as NVML and DCGM spell it: eight digits of the domain, capitals."""
    domain, _, rest = pci.partition(":")
    return f"{domain.zfill(8)}:{rest}".upper() if rest else pci


def _in(unit: int, value: int | None) -> int | None:
    return None if value is None else value // unit


def _profiled(gpu: GPUFacts, value: Value) -> Value:
    return value if gpu.compute >= VOLTA else None


def _engine_active(sample: Sample) -> float | None:
    """Measured by the GPU from Hopper on; before, NVML's utilization, the share of time in which a kernel ran."""
    if sample.engine_active is not None:
        return sample.engine_active
    return None if sample.gpu_percent is None else sample.gpu_percent / 100


def _used_ratio(sample: Sample) -> float | None:
    """Of the memory that programs can have."""
    if sample.memory_used_bytes is None or not sample.memory_total_bytes:
        return None
    return sample.memory_used_bytes / (sample.memory_total_bytes - (sample.memory_reserved_bytes or 0))


_READ: Final[dict[str, Callable[[GPUFacts, Sample], Value]]] = {
    "DCGM_FI_DEV_SM_CLOCK": lambda _, s: s.sm_clock_mhz,
    "DCGM_FI_DEV_MEM_CLOCK": lambda _, s: s.memory_clock_mhz,
    "DCGM_FI_DEV_MEMORY_TEMP": lambda _, s: s.memory_temperature_celsius,
    "DCGM_FI_DEV_GPU_TEMP": lambda _, s: s.temperature_celsius,
    "DCGM_FI_DEV_POWER_USAGE": lambda _, s: s.power_watts,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": lambda _, s: s.energy_millijoules,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": lambda _, s: s.pcie_replays,
    "DCGM_FI_DEV_GPU_UTIL": lambda _, s: s.gpu_percent,
    "DCGM_FI_DEV_MEM_COPY_UTIL": lambda _, s: s.memory_percent,
    "DCGM_FI_DEV_ENC_UTIL": lambda _, s: s.encoder_percent,
    "DCGM_FI_DEV_DEC_UTIL": lambda _, s: s.decoder_percent,
    "DCGM_FI_DEV_XID_ERRORS": lambda _, s: s.last_xid,
    "DCGM_FI_DEV_FB_FREE": lambda _, s: _in(MIB, s.memory_free_bytes),
    "DCGM_FI_DEV_FB_USED": lambda _, s: _in(MIB, s.memory_used_bytes),
    "DCGM_FI_DEV_FB_RESERVED": lambda _, s: _in(MIB, s.memory_reserved_bytes),
    "DCGM_FI_DEV_FB_TOTAL": lambda _, s: _in(MIB, s.memory_total_bytes),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": lambda _, s: _in(KIB, s.nvlink_bytes),
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": lambda _, s: s.vgpu_license,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": lambda _, s: s.remapped_rows_uncorrectable,
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": lambda _, s: s.remapped_rows_correctable,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": lambda _, s: None if s.row_remap_failure is None else int(s.row_remap_failure),
    "DCGM_FI_DEV_FB_USED_PERCENT": lambda _, s: _used_ratio(s),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": lambda _, s: s.ecc_corrected_volatile,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": lambda _, s: s.ecc_uncorrected_volatile,
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": lambda _, s: s.ecc_corrected_aggregate,
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": lambda _, s: s.ecc_uncorrected_aggregate,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": lambda g, s: _profiled(g, _engine_active(s)),
    "DCGM_FI_PROF_SM_ACTIVE": lambda g, s: _profiled(g, s.sm_active),
    "DCGM_FI_PROF_SM_OCCUPANCY": lambda g, s: _profiled(g, s.sm_occupancy),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": lambda g, s: _profiled(g, s.tensor_active),
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": lambda g, s: _profiled(g, s.fp64_active),
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": lambda g, s: _profiled(g, s.fp32_active),
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": lambda g, s: _profiled(g, s.fp16_active),
    "DCGM_FI_PROF_DRAM_ACTIVE": lambda g, s: _profiled(g, s.dram_active),
    "DCGM_FI_PROF_PCIE_TX_BYTES": lambda g, s: _profiled(g, s.pcie_tx_bytes_per_second),
    "DCGM_FI_PROF_PCIE_RX_BYTES": lambda g, s: _profiled(g, s.pcie_rx_bytes_per_second),
}
_LABELS: Final[dict[str, Callable[[GPUFacts, str], str]]] = {
    "DCGM_FI_DRIVER_VERSION": lambda _, driver: driver,
    "DCGM_FI_DEV_NAME": lambda gpu, _: gpu.model,
    "DCGM_FI_DEV_SERIAL": lambda gpu, _: gpu.serial,
    "DCGM_FI_DEV_UUID": lambda gpu, _: gpu.uuid,
    "DCGM_FI_DEV_NVML_INDEX": lambda gpu, _: str(gpu.index),
    "DCGM_FI_DEV_MINOR_NUMBER": lambda gpu, _: str(gpu.minor),
    "DCGM_FI_DEV_PCI_BUSID": lambda gpu, _: bus_id(gpu.pci),
}
OFFERED_METRICS: Final = tuple(_READ)
OFFERED_LABELS: Final = tuple(_LABELS)

_G, _C, _L = FieldType.GAUGE, FieldType.COUNTER, FieldType.LABEL
DEFAULT_FIELDS: Final = (
    ExporterField("DCGM_FI_DEV_SM_CLOCK", _G, "Clock of the streaming multiprocessors, MHz."),
    ExporterField("DCGM_FI_DEV_MEM_CLOCK", _G, "Clock of the memory, MHz."),
    ExporterField("DCGM_FI_DEV_MEMORY_TEMP", _G, "Temperature of the memory, degrees Celsius."),
    ExporterField("DCGM_FI_DEV_GPU_TEMP", _G, "Temperature of the GPU, degrees Celsius."),
    ExporterField("DCGM_FI_DEV_POWER_USAGE", _G, "Power draw, watts."),
    ExporterField("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", _C, "Energy used since the driver was loaded, millijoules."),
    ExporterField("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", _C, "PCIe packets that had to be sent again."),
    ExporterField("DCGM_FI_DEV_GPU_UTIL", _G, "Time in which a kernel ran, percent."),
    ExporterField("DCGM_FI_DEV_MEM_COPY_UTIL", _G, "Time in which the memory was read or written, percent."),
    ExporterField("DCGM_FI_DEV_ENC_UTIL", _G, "Utilization of the video encoder, percent."),
    ExporterField("DCGM_FI_DEV_DEC_UTIL", _G, "Utilization of the video decoder, percent."),
    ExporterField("DCGM_FI_DEV_XID_ERRORS", _G, "The last XID error seen; 0 without one."),
    ExporterField("DCGM_FI_DEV_FB_FREE", _G, "Free GPU memory, MiB."),
    ExporterField("DCGM_FI_DEV_FB_USED", _G, "GPU memory in use, MiB."),
    ExporterField("DCGM_FI_DEV_FB_RESERVED", _G, "GPU memory that the driver keeps for itself, MiB."),
    ExporterField("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", _C, "Data over all NVLinks in both directions, KiB."),
    ExporterField("DCGM_FI_DEV_VGPU_LICENSE_STATUS", _G, "Whether a vGPU licence is held."),
    ExporterField("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", _C, "Memory rows remapped after uncorrectable errors."),
    ExporterField("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", _C, "Memory rows remapped after correctable errors."),
    ExporterField("DCGM_FI_DEV_ROW_REMAP_FAILURE", _G, "Whether remapping of a memory row failed."),
    ExporterField("DCGM_FI_DRIVER_VERSION", _L, "Version of the driver."),
    ExporterField(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE", _G, "Time in which the compute or graphics engine was active, ratio."
    ),
    ExporterField("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", _G, "Cycles in which the tensor cores were active, ratio."),
    ExporterField("DCGM_FI_PROF_DRAM_ACTIVE", _G, "Cycles in which memory was read or written, ratio."),
    ExporterField("DCGM_FI_PROF_PCIE_TX_BYTES", _G, "Data sent over PCIe, bytes per second."),
    ExporterField("DCGM_FI_PROF_PCIE_RX_BYTES", _G, "Data received over PCIe, bytes per second."),
)


def read(field: ExporterField, gpu: GPUFacts, sample: Sample) -> Value:
    """The value of a metric on one GPU; None when the GPU does not offer it."""
    return _READ[field.name](gpu, sample)


def read_label(field: ExporterField, gpu: GPUFacts, driver_version: str) -> str:
    return _LABELS[field.name](gpu, driver_version)
