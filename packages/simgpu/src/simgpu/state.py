"""Making the state file of a simulated node.

The file is the node's hardware and driver memory at once: it is made when the node is, and lives as long as the node.
"""

from __future__ import annotations

import os
import time
from ctypes import sizeof
from pathlib import Path

import msgspec

from kubekit.errors import InvalidInput
from simgpu import layout
from simgpu.profile import GpuProfile, cpu_words, gpu_serial, gpu_uuid, lanes, level

STATE_PATH = "var/lib/simgpu/state"
"""Where a machine's root has it."""

# Driver branch -> highest CUDA version it supports (NVIDIA, CUDA Toolkit release notes, table 3).
_CUDA_OF_DRIVER = {
    450: (11, 0),
    470: (11, 4),
    510: (11, 6),
    515: (11, 7),
    525: (12, 0),
    535: (12, 2),
    545: (12, 3),
    550: (12, 4),
    555: (12, 5),
    560: (12, 6),
    565: (12, 7),
    570: (12, 8),
    575: (12, 9),
    580: (13, 0),
    590: (13, 1),
    615: (13, 4),
}


def driver_branches() -> dict[int, tuple[int, int]]:
    """The branches of released drivers with the highest CUDA version of each."""
    return dict(_CUDA_OF_DRIVER)


def cuda_version(driver_version: str) -> tuple[int, int]:
    """The highest CUDA version that a driver supports.

    Raises:
        InvalidInput: it is no driver version, or older than all we know.
    """
    branch, _, rest = driver_version.partition(".")
    known = [first for first in _CUDA_OF_DRIVER if branch.isdecimal() and first <= int(branch)]
    if not known or not all(part.isdecimal() for part in rest.split(".")):
        raise InvalidInput(
            f"no driver version {driver_version!r}", where="driver version", cure="a number such as 570.133.20"
        )
    return _CUDA_OF_DRIVER[max(known)]


def create_state(path: Path, profile: GpuProfile, driver_version: str, seed: str) -> None:
    """Writes a fresh state file: GPUs of `profile`, idle, with a driver of this version just loaded.

    `seed` (the node's name) makes UUIDs and serial numbers. The file appears whole or not at all, with mode 0666,
    because every process that may use a GPU writes to it.
    """
    state = build_state(profile, driver_version, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    # Only the front is written; slots and events are a hole in the file until they are used.
    front = memoryview(state).cast("B")[: layout.StateLayout.events.offset]
    try:
        fresh.write_bytes(front)
        os.truncate(fresh, sizeof(layout.StateLayout))
        fresh.chmod(0o666)
        fresh.rename(path)
    finally:
        fresh.unlink(missing_ok=True)


def build_state(profile: GpuProfile, driver_version: str, seed: str) -> layout.StateLayout:
    """The state in memory."""
    major, minor = cuda_version(driver_version)
    state = layout.StateLayout(
        magic=layout.MAGIC,
        layout=layout.LAYOUT,
        gpu_count=profile.count,
        cuda_version=major * 1000 + minor * 10,
        size=sizeof(layout.StateLayout),
        driver_version=driver_version.encode(),
        nvml_version=f"{major}.{driver_version}".encode(),
    )
    now = time.monotonic_ns()
    for index in range(profile.count):
        _fill(state.gpus[index], profile, seed, index, now)
    return state


def _fill(gpu: layout.GpuLayout, profile: GpuProfile, seed: str, index: int, now: int) -> None:
    model, place = profile.model, profile.places[index]
    values = {
        "memory_bytes": model.memory_bytes,
        "reserved_bytes": model.reserved_mib << 20,
        "context_bytes": model.context_mib << 20,
        "minor": index,
        "pci_domain": place.domain,
        "pci_bus": place.bus,
        "pci_device": place.device,
        "pci_device_id": model.pci_device,
        "pci_subsystem_id": model.pci_subsystem,
        "numa": place.numa,
        "compute_major": model.compute[0],
        "compute_minor": model.compute[1],
        "architecture": model.architecture,
        "brand": model.brand,
        "multiprocessors": model.multiprocessors,
        "cores": model.cores,
        "threads_per_multiprocessor": model.threads_per_multiprocessor,
        "shared_per_multiprocessor": model.shared_per_multiprocessor_kib << 10,
        "shared_per_block_optin": model.shared_optin_kib << 10,
        "sm_clock_mhz": model.sm_clock,
        "memory_clock_mhz": model.memory_clock,
        "idle_clock_mhz": model.idle_clock,
        "bus_width": model.bus_width,
        "l2_bytes": int(model.l2_mib * (1 << 20)),
        "bandwidth_mbps": model.bandwidth * 1000,
        "pcie_mbps": model.pcie_gbps * 1000,
        "power_limit_mw": model.power_limit * 1000,
        "power_min_mw": model.power_min * 1000,
        "power_idle_mw": model.power_idle * 1000,
        "temperature_idle": model.temperature_idle,
        "temperature_busy": model.temperature_busy,
        "temperature_slowdown": model.temperature_slowdown,
        "temperature_shutdown": model.temperature_slowdown + 3,
        "memory_temperature": model.memory_temperature,
        "pcie_generation": model.pcie_generation,
        "pcie_width": 16,
        "ecc_supported": model.ecc,
        "ecc_enabled": model.ecc,
        "remap_supported": model.row_remapping,
        "energy_supported": model.energy_counter,
        "mig_supported": bool(model.mig),
        "mig_profile_count": len(model.mig),
        "nvlinks": model.nvlinks if profile.nvswitch else sum(lanes(profile, index, o) for o in range(profile.count)),
        "nvlink_version": model.nvlink_version,
        "nvlink_switch": profile.nvswitch,
        "module_id": index + 1,
        "persistence": 1,
        "loaded_ns": now,
        "uuid": gpu_uuid(profile, seed, index).encode(),
        "name": model.name.encode(),
        "serial": gpu_serial(profile, seed, index).encode(),
        "vbios": model.vbios.encode(),
        "part": model.part.encode(),
    }
    for name, value in values.items():
        setattr(gpu, name, value)
    gpu.cpus[:] = cpu_words(profile, index)
    for other in range(profile.count):
        gpu.level[other] = level(profile, index, other)
        gpu.lanes[other] = lanes(profile, index, other)
    for row, spec in zip(gpu.mig_profiles, model.mig, strict=False):
        data = msgspec.structs.asdict(spec)
        places = data.pop("placements")
        for name, value in data.items():
            setattr(row, name, value.encode() if isinstance(value, str) else value)
        row.placement_count = len(places)
        row.placements[: len(places)] = places
