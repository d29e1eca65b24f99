"""Facts about GPUs as plain frozen data, and the interface of their source.

Everything above this package sees GPUs through `GPUSource` only: NVML on a node, or
what the caller of an operand passes. Units are in the names; a value that a GPU does not offer is None,
never 0.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Protocol

import msgspec

from gpuplane.api.gpunode import Link


class MigMode(StrEnum):
    UNSUPPORTED = ""
    DISABLED = "disabled"
    ENABLED = "enabled"


class MigDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG device: a compute instance in a GPU instance. `profile` is "1g.10gb", without resource names' `mig-`.

    `slices` are its compute slices, `gpu_slices` those of the GPU instance, whose engines it shares. `memory_mib` is
    the profile's memory, `memory_bytes` what can be used of it.
    """

    index: int
    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    memory_bytes: int
    slices: int
    memory_mib: int = 0
    gpu_slices: int = 0
    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


class GPUFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of NVML about one GPU, for code that needs more than a GPUNode lists; see `to_api`.

    `index` is NVML's order, `minor` the N of `/dev/nvidiaN`. `pci` is the bus id as sysfs spells it ("0000:1b:00.0"),
    `pci_device` and `pci_subsystem` are `0xDDDDVVVV`. `numa` is -1 where the machine has no NUMA. `links` has one entry
    for every other GPU of the node, in index order. `fabric` is "<cluster UUID>.<clique>" of a multi-node NVLink
    fabric that the GPU has joined.
    """

    index: int
    minor: int
    uuid: str
    model: str
    memory_bytes: int
    pci: str
    compute: tuple[int, int]
    pci_device: int = 0
    pci_subsystem: int = 0
    serial: str = ""
    numa: int = -1
    cpus: str = ""  # CPU affinity as a list, "0-23,48-71"
    mig: MigMode = MigMode.UNSUPPORTED
    mig_devices: tuple[MigDevice, ...] = ()
    links: tuple[Link, ...] = ()
    ecc: bool = False
    fabric: str = ""

    @property
    def family(self) -> str:
        return family(self.compute)


class GPUTopology(msgspec.Struct, frozen=True, kw_only=True):
    """The matrix of `nvidia-smi topo -m`: "X" on the diagonal, else NV<lanes>, PIX, PXB, PHB, NODE or SYS.

    Rows and columns are in the order of `uuids`; `numa` and `cpus` have one entry per row.
    """

    uuids: tuple[str, ...]
    matrix: tuple[tuple[str, ...], ...]
    numa: tuple[int, ...]
    cpus: tuple[str, ...]


class MigProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance profile. `capacity` is how many fit an empty GPU, `free` how many more fit now."""

    id: int
    name: str
    slices: int
    memory_mib: int
    capacity: int
    free: int
    placements: tuple[tuple[int, int], ...] = ()  # (first memory slice, memory slices)


class Mig(msgspec.Struct, frozen=True, kw_only=True):
    mode: MigMode
    pending: MigMode
    profiles: tuple[MigProfile, ...] = ()
    devices: tuple[MigDevice, ...] = ()


class MigSample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of one GPU instance; its compute instances share this memory."""

    gpu_instance: int
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of one GPU. Percentages are 0-100, counters count from the driver's load."""

    uuid: str
    gpu_percent: int | None = None
    memory_percent: int | None = None  # time the memory was read or written
    encoder_percent: int | None = None
    decoder_percent: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_celsius: int | None = None
    memory_temperature_celsius: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_millijoules: int | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    engine_active: float | None = None  # parts of the time since the last reading, 0-1; Hopper and newer
    tensor_active: float | None = None
    dram_active: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    fp64_active: float | None = None
    fp32_active: float | None = None
    fp16_active: float | None = None
    pcie_replays: int | None = None
    pcie_tx_bytes_per_second: int | None = None
    pcie_rx_bytes_per_second: int | None = None
    nvlink_bytes: int | None = None  # both directions, all links, since the driver's load
    remapped_rows_correctable: int | None = None
    remapped_rows_uncorrectable: int | None = None
    row_remap_failure: bool | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_corrected_volatile: int | None = None
    ecc_uncorrected_aggregate: int | None = None  # over the GPU's life
    ecc_corrected_aggregate: int | None = None
    last_xid: int | None = None  # of those this source has seen; 0 when none
    vgpu_license: int | None = None
    instances: tuple[MigSample, ...] = ()  # of a GPU in MIG mode, in the order of its devices
    lost: bool = False  # NVML answers that the GPU is lost; all else is None then


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU. `memory_bytes` is None where the driver may not say, `gpu_percent` (of about the last second)
    where it does not. `pid` is the host's. `draws`: it is on the GPU by Vulkan or OpenGL, perhaps in addition to CUDA.
    `video_percent` is of the busier one of encoder and decoder.
    """

    pid: int
    memory_bytes: int | None
    gpu_percent: int | None = None
    video_percent: int | None = None
    draws: bool = False
    name: str = ""
    gpu_instance: int | None = None
    compute_instance: int | None = None


class HealthEventKind(StrEnum):
    XID = "xid"
    ECC_DOUBLE = "ecc-double-bit"
    ECC_SINGLE = "ecc-single-bit"
    LOST = "lost"
    RECOVERED = "recovered"  # the driver says that nothing needs to be done to this GPU any more


class HealthEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something happened to a GPU. `xid` is 0 for what is no XID.

    `critical` means that the GPU is not to be trusted any more; XIDs that a faulty application causes are not.
    `reason` is one line for people.
    """

    uuid: str
    kind: HealthEventKind
    xid: int = 0
    critical: bool = False
    reason: str = ""


class GPUSource(Protocol):
    """The source of GPU facts.

    Every method but `events` answers at once from the driver; NVML errors come out as `kubekit.errors` (Retryable for
    a driver that is going away or coming, Terminal for the rest). A GPU that is lost stays in `inventory` for as long
    as this source lives, so that the indices of GPUs do not change.
    """

    def driver_version(self) -> str: ...

    def cuda_version(self) -> tuple[int, int]: ...

    def inventory(self) -> tuple[GPUFacts, ...]: ...

    def topology(self) -> GPUTopology: ...

    def mig(self, uuid: str) -> Mig: ...

    def samples(self) -> tuple[Sample, ...]: ...

    def processes(self, uuid: str) -> tuple[Process, ...]: ...

    def health(self) -> dict[str, str]:
        """UUID -> why it is not usable, asked now; a healthy GPU is not listed."""
        ...

    def events(self) -> AsyncIterator[HealthEvent]:
        """Health events from now on, until the iterator is closed (`aclose`) or the task cancelled."""
        ...

    def close(self) -> None: ...


# NVIDIA, "CUDA C++ Programming Guide", compute capabilities; names as GPU feature discovery spells them.
_FAMILIES = {
    1: "tesla",
    2: "fermi",
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    7: "volta",
    8: "ampere",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
    13: "rubin",
}
_LATER = {7: (5, "turing"), 8: (9, "ada-lovelace")}
"""Major -> the minor from which on it is another family."""


def family(compute: tuple[int, int]) -> str:
    """The architecture of a compute capability, "hopper" for (9, 0); "undefined" when it is unknown."""
    major, minor = compute
    since, later = _LATER.get(major, (0, ""))
    return later if later and minor >= since else _FAMILIES.get(major, "undefined")
