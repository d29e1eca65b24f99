"""Finds which pod holds which part of which GPU, as far as annotations and nodes report it; pure.

A pod that the extender placed carries its assignment. Of others only the node is known, but on a node with one GPU
there is no doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from gpuplane.api.gpunode import GPU
from gpuplane.api.requests import core_asked
from gpuplane.sharing import of_pod, request_of
from kubekit.api.core import Pod
from kubekit.errors import InvalidInput

WHOLE = 100  # percent of a GPU


class HeldPart(msgspec.Struct, frozen=True, rename="camel"):
    """The part of one GPU that a pod holds: percent of its time, MiB of its memory (0: none requested)."""

    index: int
    core: int
    memory_mib: int


class PodHolder(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that holds GPUs of a node; `parts` is empty where neither annotation nor node names the GPUs."""

    pod: str  # namespace/name
    gpus: float
    parts: tuple[HeldPart, ...] = ()


def holder(pod: Pod, gpus: Sequence[GPU]) -> PodHolder:
    """Return the parts of its node's GPUs that a bound pod holds."""
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    return PodHolder(name, round(core_asked(pod) / WHOLE, 2), _parts(pod, gpus))


def _parts(pod: Pod, gpus: Sequence[GPU]) -> tuple[HeldPart, ...]:
    # A tenant may have written what the annotation says: then nothing is known.
    with suppress(InvalidInput):
        assignment = of_pod(pod)
        if assignment is not None:
            return tuple(HeldPart(at, core, memory) for (_, at), (core, memory) in sorted(assignment.held().items()))
        core = core_asked(pod)
        if len(gpus) == 1 and core <= WHOLE:
            memory = sum(ask.memory_mib for ask in request_of(pod).asks if ask.lasts)
            return (HeldPart(gpus[0].index, core, gpus[0].memory_mib if core == WHOLE else memory),)
    return ()


def free_core(gpus: Sequence[GPU], sick: Mapping[str, str], holders: Sequence[PodHolder]) -> list[int] | None:
    """Return the free percent of each GPU, 0 for unusable ones; None if it is unknown which pod holds which GPU."""
    if any(not holder.parts for holder in holders):
        return None
    held: dict[int, int] = {}
    for part in (part for holder in holders for part in holder.parts):
        held[part.index] = held.get(part.index, 0) + part.core
    if any(core > WHOLE for core in held.values()):
        return None  # replicas: pods that each take one for a whole GPU
    return [0 if gpu.uuid in sick else WHOLE - held.get(gpu.index, 0) for gpu in gpus]


def fits_on(gpus: Sequence[GPU], sick: Mapping[str, str], free: float, holders: Sequence[PodHolder], core: int) -> int:
    """Return how many pods that ask `core` percent could start on a node of which `free` GPUs are not held."""
    cores = free_core(gpus, sick, holders)
    if cores is None or len(cores) < free:
        return round(WHOLE * free) // core
    if core < WHOLE:
        return sum(left // core for left in cores)
    return min(int(free), cores.count(WHOLE)) // (core // WHOLE)
