"""Finds which part of which GPU a bound pod holds, as far as its annotation or its node says it. Pure.

`gpuplane status gpus` and `gpuplane explain` both print what is found here, so that they agree. A pod that the extender
placed carries its assignment. Of others only the node is known, but on a node with one GPU there is no doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from gpuplane.api.gpunode import GPU
from gpuplane.api.offers import GpuUnits, UnitKind, core_asked, mig_memory_mib, offered_units, units_asked
from gpuplane.sharing.assignment import of_pod
from gpuplane.sharing.request import WHOLE, request_of
from kubekit.api.core import Pod
from kubekit.api.quantity import Quantity, whole
from kubekit.errors import InvalidInput


class HeldPart(msgspec.Struct, frozen=True, rename="camel"):
    """The part of one GPU that a pod holds: percent of its time, MiB of its memory (0: none requested). `unit` is what
    the pod holds where that is neither a share nor a whole GPU: `2 replicas`.
    """

    index: int
    core: int
    memory_mib: int
    unit: str = ""

    @property
    def of_gpu(self) -> str:
        """Return the part in words, after `holds`: `it`, `50% of it`, `2 replicas of it`."""
        if self.unit:
            return f"{self.unit} of it"
        return "it" if self.core >= WHOLE else f"{self.core}% of it"


def held_parts(pod: Pod, gpus: Sequence[GPU], units: Sequence[GpuUnits]) -> tuple[HeldPart, ...]:
    """Return the parts of its node's GPUs that a bound pod holds; empty where its node alone knows which they are.

    Args:
        gpus: all GPUs of the node.
        units: what the node offers.
    """
    core = core_asked(pod, units)
    # A tenant may have written what the annotation says: then nothing is known.
    with suppress(InvalidInput):
        assignment = of_pod(pod)
        parted = in_parts(pod, units)
        # Of a replica, the annotation would say that the pod holds the whole GPU.
        if assignment is not None and not parted:
            return tuple(HeldPart(at, core, memory) for (_, at), (core, memory) in sorted(assignment.held().items()))
        if len(gpus) == 1 and core <= WHOLE:
            if parted:
                asked = units_asked(pod)
                limits = {unit.resource: unit.memory_mib for unit in units}
                memory = sum((limits.get(name) or mig_memory_mib(name)) * number for name, number in asked.items())
                return (HeldPart(gpus[0].index, core, memory, in_units(asked, units)),)
            memory = sum(ask.memory_mib for ask in request_of(pod).asks if ask.lasts)
            return (HeldPart(gpus[0].index, core, gpus[0].memory_mib if core == WHOLE else memory),)
    return ()


def units_when_healthy(
    allocatable: Mapping[str, Quantity],
    capacity: Mapping[str, Quantity],
    gpus: Sequence[GPU],
    *,
    by_mps: bool = False,
) -> tuple[GpuUnits, ...]:
    """Return the units that a node would offer if all its GPUs were usable.

    NB: what a pod holds must not follow from `allocatable`, which falls with a GPU, a moment after the GPUNode says so.
    """
    # The kubelet counts resources of a plugin that has gone in `capacity` for minutes.
    offered = {name: amount for name, amount in capacity.items() if whole(allocatable.get(name, 0)) > 0}
    return offered_units(offered or capacity, gpus, by_mps=by_mps)


def in_parts(pod: Pod, units: Sequence[GpuUnits]) -> bool:
    """Return whether the pod's devices are replicas or MIG devices of its node, which offers `units`."""
    asked = units_asked(pod)
    return any(unit.resource in asked and unit.kind is not UnitKind.WHOLE for unit in units)


def in_units(asked: Mapping[str, int], units: Sequence[GpuUnits]) -> str:
    """Return the number of each unit in words: `2 replicas`, `1 GPU, 3 mig-1g.10gb`."""
    named = {unit.resource: unit for unit in units}
    return ", ".join(
        named[name].named(number) if name in named else f"{number} {name}" for name, number in asked.items()
    )
