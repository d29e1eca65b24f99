"""Chooses a container's units of a resource: whole GPUs by topology, MIG devices packed, replicas spread. Pure.

Whole GPUs that work together are chosen to be near each other. MIG devices cannot work together, so they are taken
from the GPU that has the fewest left, so that another GPU can change its layout sooner. Replicas of one GPU are that
GPU once, so several of them come from as many GPUs as there are, those with the most left first. Where a resource has
both, replicas come before whole GPUs: a whole GPU stays for a pod that finds no replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from gpuplane.device_plugin.allocation.topology import TopologyChooser, closeness
from gpuplane.hardware import GPUFacts
from gpuplane.sharing.units import Unit
from kubekit.errors import InvalidInput


class UnitChooser:
    """Chooses among `units`, all those of one resource; `inventory` are the node's GPUs."""

    def __init__(self, units: Sequence[Unit], inventory: Sequence[GPUFacts]) -> None:
        self._units = {unit.id: unit for unit in units}
        self._place = {unit.id: number for number, unit in enumerate(units)}
        self._chooser: TopologyChooser | None = None
        if not any(unit.mig or unit.replicas > 1 for unit in units):
            mine = {unit.gpu for unit in units}
            gpus = [gpu for gpu in inventory if gpu.uuid in mine]
            self._chooser = TopologyChooser([gpu.uuid for gpu in gpus], closeness(gpus))

    def choose(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        """`size` ids of `available` with all of `must_include`. Raises InvalidInput when that is not possible."""
        if self._chooser is not None:
            return self._chooser.choose(available, must_include, size)
        check(available, must_include, size, self._units)
        chosen = list(must_include)
        left = sorted(set(available) - set(chosen), key=self._place.__getitem__)
        taken = Counter(self._units[one].device for one in chosen)
        free_devices = Counter(self._units[one].device for one in left)
        free_gpus = Counter(self._units[one].gpu for one in left)
        while len(chosen) < size:
            best = min(left, key=lambda one: self._rank(self._units[one], taken, free_devices, free_gpus))
            left.remove(best)
            chosen.append(best)
            unit = self._units[best]
            taken[unit.device] += 1
            free_devices[unit.device] -= 1
            free_gpus[unit.gpu] -= 1
        return tuple(sorted(chosen, key=self._place.__getitem__))

    def _rank(
        self, unit: Unit, taken: Counter[str], free_devices: Counter[str], free_gpus: Counter[str]
    ) -> tuple[int, ...]:
        if unit.replicas > 1:
            return taken[unit.device], 0, unit.replicas - free_devices[unit.device], self._place[unit.id]
        return taken[unit.device], 1, free_gpus[unit.gpu], self._place[unit.id]


def check(available: Sequence[str], must_include: Sequence[str], size: int, known: Container[str]) -> None:
    """Raises InvalidInput for a request that cannot be met. `known`: whatever knows every id of the resource."""
    where = "GetPreferredAllocation"
    if unknown := [one for one in available if one not in known]:
        raise InvalidInput(f"no such device on this node: {', '.join(unknown[:3])}", where=where)
    if not set(must_include) <= set(available):
        raise InvalidInput("ids that must be included are not available", where=where)
    if not len(must_include) <= size <= len(available):
        raise InvalidInput(
            f"{size} of {len(available)} available, {len(must_include)} of them fixed, is not possible", where=where
        )
