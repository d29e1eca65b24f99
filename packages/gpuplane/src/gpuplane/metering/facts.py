"""Readings of a node that the meter compares: plain frozen data.

Times are nanoseconds of the monotonic clock, so a clock of the node that is set changes nothing.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class HoldKind(StrEnum):
    """Form in which a container holds a GPU. NVIDIA's MPS and time-slicing both offer replicas.

    Containers that hold the same GPU by claims hold equal parts of it.
    """

    WHOLE = "whole"
    REPLICA = "replica"
    MIG = "mig"
    SHARE = "share"
    CLAIM = "claim"


class PodContainer(msgspec.Struct, frozen=True, order=True):
    """A container that holds a GPU, and how."""

    namespace: str
    pod: str
    container: str
    kind: HoldKind = HoldKind.WHOLE


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A container's hold on one GPU.

    Args:
        part: of the physical GPU, 0 to 1.
        used_ns: what the container itself used the GPU, a counter; None where nothing measures it.
        memory_bytes: what the container itself holds of the memory; None where nothing measures it.
        life: another number is another counter that began at 0.
    """

    who: PodContainer
    uuid: str
    part: float
    used_ns: int | None = None
    memory_bytes: int | None = None
    life: int = 0


class GPUReading(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as NVML reports it.

    Args:
        active: part of the time, 0 to 1, in which it worked; None where NVML does not report it, as in MIG mode.
        energy_millijoules: a counter from the driver's load; None before Volta.
    """

    uuid: str
    active: float | None = None
    power_watts: float | None = None
    energy_millijoules: int | None = None
    memory_bytes: int | None = None


class NodeReading(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs of a node at one moment, with their holders. A GPU that is lost is left out."""

    at_ns: int
    gpus: tuple[GPUReading, ...] = ()
    holds: tuple[Hold, ...] = ()
