"""The GPUs of a machine: the model of a GPU, and the links between several of them.

A profile is data: everything that NVML or the driver API says about a simulated GPU at rest follows from it and a seed,
in the C library and in `SimulatedGPUs` alike.
"""

from __future__ import annotations

import hashlib
import uuid

import msgspec

# nvmlGpuTopologyLevel_t
PIX, PXB, PHB, NODE, SYS = 10, 20, 30, 40, 50


class MigProfileSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `nvidia-smi mig -lgip`. `number` is NVML's NVML_GPU_INSTANCE_PROFILE_*; placements are first memory
    slices."""

    name: str
    id: int
    number: int
    slices: int
    memory_slices: int
    memory_mib: int
    capacity: int
    multiprocessors: int
    placements: tuple[int, ...]
    copy_engines: int = 1


class GPUModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of GPU. Clocks in MHz, power in watts, bandwidth in GB/s, `pcie_gbps` in GB/s of one direction.

    `memory_mib` is what NVML calls the total; `reserved_mib` the driver keeps, `context_mib` each context takes.
    """

    name: str
    memory_mib: int
    reserved_mib: int
    context_mib: int
    compute: tuple[int, int]
    architecture: int  # nvmlDeviceArchitecture_t
    brand: int  # nvmlBrandType_t
    pci_device: int
    pci_subsystem: int
    multiprocessors: int
    cores: int
    sm_clock: int
    memory_clock: int
    idle_clock: int
    bus_width: int
    l2_mib: float
    bandwidth: int
    power_limit: int
    power_min: int
    power_idle: int
    temperature_idle: int
    temperature_busy: int
    temperature_slowdown: int
    pcie_generation: int
    pcie_gbps: int
    threads_per_multiprocessor: int = 2048
    shared_per_multiprocessor_kib: int = 100
    shared_optin_kib: int = 99
    memory_temperature: int = 0  # at rest; 0 where there is no sensor
    ecc: bool = True
    row_remapping: bool = False
    energy_counter: bool = True
    nvlinks: int = 0
    nvlink_version: int = 0
    vbios: str = ""
    part: str = ""
    mig: tuple[MigProfileSpec, ...] = ()

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib << 20


class GpuPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The position of one GPU in a machine. `switch` and `bridge` name what it shares with neighbours on PCIe: GPUs
    under one switch are PIX, under one tree of switches PXB, under one host bridge PHB, on one NUMA node NODE, else
    SYS.
    """

    bus: int
    numa: int = -1
    switch: str = ""
    tree: str = ""
    bridge: str = ""
    domain: int = 0
    device: int = 0


class GpuProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of one machine. `cpus` gives the CPUs of each NUMA node as (first, last) ranges.

    `nvswitch` means every NVLink leads to switches that reach every GPU; otherwise `bonds` lists (gpu, gpu, links).
    """

    name: str
    model: GPUModel
    places: tuple[GpuPlace, ...]
    cpus: tuple[tuple[tuple[int, int], ...], ...] = ()
    nvswitch: bool = False
    bonds: tuple[tuple[int, int, int], ...] = ()

    @property
    def count(self) -> int:
        return len(self.places)


def level(profile: GpuProfile, one: int, other: int) -> int:
    """The common ancestor of two GPUs on PCIe, as nvmlGpuTopologyLevel_t."""
    a, b = profile.places[one], profile.places[other]
    if one == other:
        return 0
    if a.switch and a.switch == b.switch:
        return PIX
    if a.tree and a.tree == b.tree:
        return PXB
    if a.bridge and a.bridge == b.bridge:
        return PHB
    return NODE if a.numa == b.numa else SYS


def lanes(profile: GpuProfile, one: int, other: int) -> int:
    """NVLinks straight from one GPU to another; 0 with NVSwitch."""
    return sum(links for a, b, links in profile.bonds if {a, b} == {one, other})


def gpu_uuid(profile: GpuProfile, seed: str, index: int) -> str:
    """The UUID of a GPU: the same seed gives the same machine again."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'gpuplane/{profile.name}/{seed}/{index}')}"


def gpu_serial(profile: GpuProfile, seed: str, index: int) -> str:
    """Thirteen digits, as on the board."""
    digest = hashlib.sha256(f"{profile.name}/{seed}/{index}".encode()).digest()
    return f"165{int.from_bytes(digest[:5], 'big') % 10**10:010d}"


def cpu_words(profile: GpuProfile, index: int) -> list[int]:
    """The CPU affinity of a GPU as 16 words of 64 bits."""
    numa = profile.places[index].numa
    ranges = profile.cpus[max(numa, 0)] if profile.cpus else ()
    mask = sum(1 << cpu for first, last in ranges for cpu in range(first, last + 1))
    return [mask >> 64 * word & (1 << 64) - 1 for word in range(16)]
