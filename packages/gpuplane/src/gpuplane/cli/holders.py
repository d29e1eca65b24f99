"""Finds which pod holds which part of which GPU, as far as annotations and nodes report it; pure.

A pod that the extender placed carries its assignment. Of others only the node is known, but on a node with one GPU
there is no doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from gpuplane.api.gpunode import GPU
from gpuplane.api.offers import GpuUnits, UnitKind, core_asked, mig_memory_mib, units_asked
from gpuplane.sharing import of_pod, request_of
from kubekit.api.core import Pod
from kubekit.errors import InvalidInput

WHOLE = 100  # percent of a GPU


class HeldPart(msgspec.Struct, frozen=True, rename="camel"):
    """The part of one GPU that a pod holds: percent of its time, MiB of its memory (0: none requested). `unit` is what
    the pod holds where that is neither a share nor a whole GPU: `2 replicas`.
    """

    index: int
    core: int
    memory_mib: int
    unit: str = ""


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
    return PodHolder(name, round(core / WHOLE, 2), _parts(pod, gpus, units, core), units_asked(pod))


def _parts(pod: Pod, gpus: Sequence[GPU], units: Sequence[GpuUnits], core: int) -> tuple[HeldPart, ...]:
    # A tenant may have written what the annotation says: then nothing is known.
    with suppress(InvalidInput):
        assignment = of_pod(pod)
        asked = units_asked(pod)
        parted = any(unit.resource in asked and unit.kind is not UnitKind.WHOLE for unit in units)
        # Of a replica, the annotation would say that the pod holds the whole GPU.
        if assignment is not None and not parted:
            return tuple(HeldPart(at, core, memory) for (_, at), (core, memory) in sorted(assignment.held().items()))
        if len(gpus) == 1 and core <= WHOLE:
            if parted:
                memory = sum(mig_memory_mib(resource) * number for resource, number in asked.items())
                return (HeldPart(gpus[0].index, core, memory, in_units(asked, units)),)
            memory = sum(ask.memory_mib for ask in request_of(pod).asks if ask.lasts)
            return (HeldPart(gpus[0].index, core, gpus[0].memory_mib if core == WHOLE else memory),)
    return ()


def in_units(asked: Mapping[str, int], units: Sequence[GpuUnits]) -> str:
    """Return the number of each unit in words: `2 replicas`, `1 GPU, 3 mig-1g.10gb`."""
    labels = {unit.resource: unit for unit in units}
    return ", ".join(
        f"{number} {labels[name].label if name in labels else name}{_plural(number, labels.get(name))}"
        for name, number in asked.items()
    )


def _plural(number: int, unit: GpuUnits | None) -> str:
    return "s" if number != 1 and unit is not None and unit.label == unit.kind.value else ""


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


def fits_on(gpus: Sequence[GPU], sick: Mapping[str, str], free: float, holders: Sequence[PodHolder], core: int) -> int:
    """Return how many pods that ask `core` percent could start on a node of which `free` GPUs are not held."""
    cores = free_core(gpus, sick, holders)
    if cores is None or len(cores) < free:
        return round(WHOLE * free) // core
    if core < WHOLE:
        return sum(left // core for left in cores)
    return min(int(free), cores.count(WHOLE)) // (core // WHOLE)


def free_units(unit: GpuUnits, holders: Sequence[PodHolder]) -> int:
    """Return how many of the units no pod holds."""
    return max(0, unit.count - sum(holder.units.get(unit.resource, 0) for holder in holders))
