"""GPUs as NVML reports them: inventory, topology, MIG, health, samples.

with closing(open_gpus(Path("/run/nvidia/driver"))) as gpus:
    for gpu in gpus.inventory(): ...
"""

from __future__ import annotations

from pathlib import Path

from gpuplane.api.gpunode import GPU
from gpuplane.hardware.facts import (
    GPUFacts,
    GPUSource,
    GPUTopology,
    HealthEvent,
    HealthEventKind,
    Mig,
    MigDevice,
    MigMode,
    MigProfile,
    MigSample,
    Process,
    Sample,
    family,
)
from gpuplane.hardware.library import find_library
from gpuplane.hardware.topology import matrix

__all__ = [
    "GPUFacts",
    "GPUSource",
    "GPUTopology",
    "HealthEvent",
    "HealthEventKind",
    "Mig",
    "MigDevice",
    "MigMode",
    "MigProfile",
    "MigSample",
    "Process",
    "Sample",
    "family",
    "find_library",
    "matrix",
    "open_gpus",
    "to_api",
]


def open_gpus(driver_root: Path = Path("/")) -> GPUSource:
    """The GPUs of this node through NVML.

    Args:
        driver_root: where the driver's libraries lie (`<driver_root>/usr/lib/...`).

    Raises:
        Retryable: no library there, or the driver is not loaded.
        Terminal: the library cannot be loaded, or does not fit the loaded driver.
    """
    # Late, so that light nodes and `--help` never load the binding.
    from gpuplane.hardware.nvml import NvmlGPUs

    return NvmlGPUs(driver_root)


def to_api(gpu: GPUFacts) -> GPU:
    """Return the GPU as a GPUNode lists it."""
    return GPU(
        index=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model,
        memory_mib=gpu.memory_bytes >> 20,
        pci=gpu.pci,
        numa=gpu.numa,
        compute=f"{gpu.compute[0]}.{gpu.compute[1]}",
        mig=gpu.mig.value,
        links=gpu.links,
    )
