"""Sharing by NVIDIA's Multi-Process Service: the daemons that a node needs, their commands, and their directories.

Pure. The daemon's operand and the device plugin decide alike, and meet at files below the MPS root of the host: the
plugin offers replicas while `.ready` says that the daemons it wants are there.

Source: NVIDIA device plugin, cmd/mps-control-daemon and internal/plugin/mps.go: names, files, defaults.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gpuplane.api.pluginconfig import PluginConfig, SharingStrategy
from gpuplane.hardware import GPUFacts
from gpuplane.sharing.units import Unit, resources
from kubekit.errors import InvalidInput

CONTAINER_ROOT: Final = "/mps"  # in the containers that are clients
READY: Final = ".ready"
FAILED: Final = ".failed"  # why the daemons are not there
MODES: Final = ".compute-modes"  # what the GPUs' compute modes were before
SHM: Final = "shm"
VOLTA: Final = (7, 0)
CLIENTS, CLIENTS_BEFORE_VOLTA = 48, 16


class MPSShare(msgspec.Struct, frozen=True):
    """A GPU that `replicas` clients share. `index` is NVML's; `memory_mib` what each client may allocate."""

    uuid: str
    index: int
    replicas: int
    memory_mib: int


class Daemon(msgspec.Struct, frozen=True):
    """The control daemon of one resource."""

    resource: str
    gpus: tuple[MPSShare, ...]

    @property
    def percentage(self) -> int:
        """Return the percent of the multiprocessors for each client: that of the GPU with the most replicas."""
        return max(1, 100 // max(gpu.replicas for gpu in self.gpus))

    @property
    def commands(self) -> tuple[str, ...]:
        """Return the commands for the daemon's setup, before it accepts clients."""
        return (
            *(f"set_default_device_pinned_mem_limit {gpu.index} {gpu.memory_mib}M" for gpu in self.gpus),
            f"set_default_active_thread_percentage {self.percentage}",
        )


def daemons(inventory: Sequence[GPUFacts], config: PluginConfig) -> tuple[Daemon, ...]:
    """Return the daemons of a node, by resource; empty where MPS does not share GPUs.

    Raises InvalidInput for MIG devices, and for more replicas than a GPU has room for clients.
    """
    if config.sharing is not SharingStrategy.MPS:
        return ()
    gpus = {gpu.uuid: gpu for gpu in inventory}
    found = []
    for resource, units in sorted(resources(inventory, config).items()):
        if any(unit.replicas > 1 for unit in units):
            devices = {unit.device: unit for unit in units}.values()
            found.append(Daemon(resource, tuple(_share(unit, gpus) for unit in devices)))
    return tuple(found)


def _share(unit: Unit, gpus: Mapping[str, GPUFacts]) -> MPSShare:
    gpu = gpus[unit.gpu]
    if unit.mig:
        raise _refused("MIG devices cannot be shared by MPS", "share whole GPUs, or MIG devices by timeSlicing")
    most = CLIENTS if gpu.compute >= VOLTA else CLIENTS_BEFORE_VOLTA
    if unit.replicas > most:
        raise _refused(f"GPU {gpu.index} has room for {most} clients, not {unit.replicas}", f"{most} replicas or less")
    return MPSShare(gpu.uuid, gpu.index, unit.replicas, gpu.memory_bytes // unit.replicas >> 20)


def _refused(what: str, cure: str) -> InvalidInput:
    return InvalidInput(what, where="sharing.mps", cure=cure, findings=(f"sharing.mps: {what}",))


def ready_text(wanted: Sequence[Daemon]) -> str:
    """Return the content of `.ready` once these daemons run and are configured."""
    return hashlib.sha256(msgspec.json.encode(wanted)).hexdigest()


def pipe(root: str, resource: str) -> str:
    """Return the directory of a daemon's sockets below an MPS root."""
    return f"{root}/{resource}/pipe"


def log_dir(root: str, resource: str) -> str:
    return f"{root}/{resource}/log"
