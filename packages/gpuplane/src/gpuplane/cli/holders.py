"""Finds the pods that hold GPUs of a node, and what they leave free; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpuplane.api.gpunode import GPU
from gpuplane.api.offers import GpuUnits, core_asked, units_asked
from gpuplane.sharing import WHOLE
from gpuplane.sharing.held import HeldPart, held_parts, in_units
from kubekit.api.core import Pod

__all__ = [
    "WHOLE",
    "HeldPart",
    "PodHolder",
    "RememberedHolders",
    "fits_on",
    "free_core",
    "free_units",
    "holder",
    "in_units",
]


class PodHolder(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that holds GPUs of a node; `parts` is empty where neither annotation nor node names the GPUs.

    `units` has the number of devices by resource; it is empty for a share. `shown` is False for the pod of a namespace
    that was not asked for.
    """

    pod: str  # namespace/name
    gpus: float
    parts: tuple[HeldPart, ...] = ()
    units: dict[str, int] = {}
    shown: bool = True


def holder(pod: Pod, gpus: Sequence[GPU], units: Sequence[GpuUnits]) -> PodHolder:
    """Return the parts of its node's GPUs that a bound pod holds; the node offers `units`."""
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    core = core_asked(pod, units)
    return PodHolder(name, round(core / WHOLE, 2), held_parts(pod, gpus, units), units_asked(pod))


class RememberedHolders:
    """`holder`, for a cluster that is read again and again: a pod and a node that stay as they are cost nothing.

    Invariant: what it returns is what `holder` returns. Pods that two readings in a row do not have are forgotten.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[Pod, Sequence[GPU], Sequence[GpuUnits], PodHolder]] = {}
        self._now: dict[int, tuple[Pod, Sequence[GPU], Sequence[GpuUnits], PodHolder]] = {}

    def begin(self) -> None:
        """Begin another reading of the cluster."""
        self._before, self._now = self._now, {}

    def __call__(self, pod: Pod, gpus: Sequence[GPU], units: Sequence[GpuUnits]) -> PodHolder:
        # An entry has its pod, so that no other one gets its id meanwhile.
        found = self._before.get(id(pod))
        if found is None or found[0] is not pod or found[1] != gpus or found[2] != units:
            found = (pod, gpus, units, holder(pod, gpus, units))
        self._now[id(pod)] = found
        return found[3]


def free_core(gpus: Sequence[GPU], sick: Mapping[str, str], holders: Sequence[PodHolder]) -> list[int] | None:
    """Return the free percent of each GPU, 0 for unusable ones; None if it is unknown which pod holds which GPU."""
    if any(not holder.parts for holder in holders):
        return None
    held: dict[int, int] = {}
    for part in (part for holder in holders for part in holder.parts):
        held[part.index] = held.get(part.index, 0) + part.core
    if any(core > WHOLE for core in held.values()):
        return None  # more is held than there is: what a pod says of itself is not so
    return [0 if gpu.uuid in sick else WHOLE - held.get(gpu.index, 0) for gpu in gpus]


def fits_on(cores: Sequence[int] | None, free: float, core: int) -> int:
    """Return how many pods that ask `core` percent could start on a node.

    Args:
        cores: the free percent of each GPU, see `free_core`.
        free: the number of GPUs that no pod holds.
    """
    if cores is None or len(cores) < free:
        return round(WHOLE * free) // core
    if core < WHOLE:
        return sum(left // core for left in cores)
    return min(int(free), cores.count(WHOLE)) // (core // WHOLE)


def free_units(unit: GpuUnits, holders: Sequence[PodHolder]) -> int:
    """Return how many of the units no pod holds."""
    return max(0, unit.count - sum(holder.units.get(unit.resource, 0) for holder in holders))
