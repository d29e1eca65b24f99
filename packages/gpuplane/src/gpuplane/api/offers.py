"""The GPUs that a node offers, in the units that its kubelet counts: whole GPUs, replicas, MIG devices, shares. Pure.

A unit is worth a part of a GPU. `core` is that part in percent: 100 for a whole GPU, 10 for one of ten replicas, a
seventh or a quarter of a GPU for each compute slice of a MIG device. So sums over nodes are sums of GPUs, whatever the
nodes call them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPU
from kubekit.api.core import Container, Pod
from kubekit.api.pod_requests import phases
from kubekit.api.quantity import Quantity, whole

WHOLE: Final = 100.0  # percent of one GPU
_CORE_OF: Final = {names.GPU_RESOURCE: WHOLE, names.ALPHA_GPU: WHOLE, names.VCUDA_CORE: 1.0}
_MIG: Final = re.compile(r"nvidia\.com/mig-(?:(\d+)c\.)?(\d+)g\.(\d+)gb")
# Compute slices of a GPU: seven, except of the models that have four.
_SLICES: Final = 7
_FOUR_SLICES: Final = ("A30", "RTX PRO 6000")


class UnitKind(StrEnum):
    WHOLE = "GPU"
    REPLICA = "replica"  # one of several of a GPU or of a MIG device; without limits, unless MPS shares the GPU
    MIG = "MIG device"
    SHARE = "share"


class GpuUnits(msgspec.Struct, frozen=True, rename="camel"):
    """The `count` units of `resource` that a node offers; each is `core` percent of a GPU.

    `memory_mib` is what MPS lets each process of a replica allocate; 0 for other units, and for time slices, which have
    no limits.
    """

    resource: str
    kind: UnitKind
    count: int
    core: float
    memory_mib: int = 0

    @property
    def label(self) -> str:
        """The unit as people call it: `GPU`, `replica`, `MPS replica`, `mig-1g.10gb`."""
        if self.resource.startswith(names.MIG_PREFIX):
            return self.resource.removeprefix(names.NVIDIA_PREFIX)
        return f"MPS {self.kind}" if self.memory_mib else self.kind.value

    def named(self, number: int) -> str:
        """Return so many of the units in words: `2 replicas`, `3 mig-1g.10gb`."""
        plural = "" if number == 1 or self.resource.startswith(names.MIG_PREFIX) else "s"
        return f"{number} {self.label}{plural}"


def offered_units(
    allocatable: Mapping[str, Quantity],
    gpus: Sequence[GPU] = (),
    sick: Collection[str] = (),
    *,
    by_mps: bool = False,
) -> tuple[GpuUnits, ...]:
    """Return the units that a node offers; shares only where it offers its GPUs by no other name.

    Args:
        gpus: the node's GPUs; where they are unknown, each unit that is not a MIG device counts as a GPU.
        sick: UUIDs of the GPUs that are not usable; the kubelet does not count their units.
        by_mps: whether the node's replicas are clients of MPS, see `shared_by_mps`.
    """
    counts = {name: whole(amount) for name, amount in allocatable.items() if name.startswith(names.NVIDIA_PREFIX)}
    counts = {name: number for name, number in counts.items() if number > 0}
    usable = [gpu for gpu in gpus if gpu.uuid not in sick]
    split = [gpu for gpu in usable if gpu.mig == "enabled"]
    mig = {name: number for name, number in counts.items() if name.startswith(names.MIG_PREFIX)}
    rest = {name: number for name, number in counts.items() if name not in mig}
    known = bool(gpus)
    unsplit = [gpu.memory_mib for gpu in usable if gpu.mig != "enabled"]
    units = [*_named_mig(mig, split), *_others(rest, len(unsplit), 0 if mig else len(split), known=known)]
    if units:
        return tuple(_limited(unit, unsplit) for unit in units) if by_mps and unsplit else tuple(units)
    for name in (names.ALPHA_GPU, names.VCUDA_CORE):
        if number := whole(allocatable.get(name, 0)):
            kind = UnitKind.SHARE if name == names.VCUDA_CORE else UnitKind.WHOLE
            return (GpuUnits(name, kind, number, _CORE_OF[name]),)
    return ()


def shared_by_mps(labels: Mapping[str, str]) -> bool:
    """Return whether a node with these labels shares its GPUs by MPS."""
    return labels.get(names.MPS_LABEL) == "true"


def _limited(unit: GpuUnits, memory_mib: Sequence[int]) -> GpuUnits:
    """Return the unit with the limit of MPS: the same part of the memory as of the core, at least on the smallest GPU.

    MPS does not share MIG devices.
    """
    if unit.kind is not UnitKind.REPLICA or unit.resource.startswith(names.MIG_PREFIX):
        return unit
    return msgspec.structs.replace(unit, memory_mib=int(round(min(memory_mib) * unit.core / WHOLE, 3)))


def counted_by_scheduler(capacity: Mapping[str, Quantity], gpus: Sequence[GPU]) -> bool:
    """Return whether only kube-scheduler can count the node's devices: replicas and MIG devices are no whole GPUs.

    A node that offers shares too is not one of them: its replicas and shares are placed GPU by GPU.

    Args:
        capacity: with the devices of faulty GPUs, which `allocatable` lacks.
    """
    if not gpus or whole(capacity.get(names.VCUDA_CORE, 0)) > 0:
        return False
    return any(unit.kind in (UnitKind.REPLICA, UnitKind.MIG) for unit in offered_units(capacity, gpus))


def part_of_gpu(capacity: Mapping[str, Quantity], gpus: Sequence[GPU]) -> int:
    """Return the percent of a GPU that one `nvidia.com/gpu` of the node is worth: 10 for one of ten replicas.

    It is 100 where they are whole GPUs. Rounded down, so that the replicas of a GPU together are not more than a GPU.
    """
    if not counted_by_scheduler(capacity, gpus):
        return int(WHOLE)
    worth = next((unit.core for unit in offered_units(capacity, gpus) if unit.resource == names.GPU_RESOURCE), WHOLE)
    return max(1, int(worth))


def _named_mig(counts: Mapping[str, int], split: Sequence[GPU]) -> Iterable[GpuUnits]:
    """MIG devices under names of their own, and their replicas: those named so, or more than there are slices for.

    The number of replicas of a device is unknown, so replicas with a name of their own share what the others leave.
    """
    slices = {name: _slices(name) for name in counts}
    capacity = _slices_of(split[0].model) if split else _SLICES
    left = float(capacity * len(split))
    units = []
    for renamed in (False, True):
        group = {name: number for name, number in counts.items() if name.endswith(names.SHARED_SUFFIX) == renamed}
        total = sum(slices[name] * number for name, number in group.items())
        part = min(1.0, left / total) if split and total else 1.0
        kind = UnitKind.REPLICA if renamed or part < 1 else UnitKind.MIG
        units += [
            GpuUnits(name, kind, number, slices[name] * part * WHOLE / capacity) for name, number in group.items()
        ]
        left -= total * part
    return sorted(units, key=lambda unit: unit.resource)


def _slices(resource: str) -> int:
    found = _MIG.match(resource)
    return int(found[1] or found[2]) if found else 1


def _slices_of(model: str) -> int:
    return 4 if any(name in model for name in _FOUR_SLICES) else _SLICES


def _others(counts: Mapping[str, int], gpus: int, split: int, *, known: bool) -> Iterable[GpuUnits]:
    """Whole GPUs and replicas. A resource with more units than GPUs are left consists of replicas of these."""
    left = gpus
    for name, number in sorted(counts.items(), key=lambda one: (one[0].endswith(names.SHARED_SUFFIX), one[1], one[0])):
        if not known:
            yield GpuUnits(name, UnitKind.WHOLE, number, WHOLE)
        elif not gpus and split:  # strategy single: MIG devices under the name of whole GPUs
            yield GpuUnits(name, UnitKind.MIG, number, min(WHOLE, WHOLE * split / number))
        elif number <= left and not name.endswith(names.SHARED_SUFFIX):
            left -= number
            yield GpuUnits(name, UnitKind.WHOLE, number, WHOLE)
        else:
            yield GpuUnits(name, UnitKind.REPLICA, number, min(WHOLE, WHOLE * left / number))
            left = 0


def core_offered(units: Iterable[GpuUnits]) -> int:
    """Return the percent of GPUs that the units are together."""
    return round(sum(unit.count * unit.core for unit in units))


def core_asked(pod: Pod, units: Iterable[GpuUnits] = ()) -> int:
    """Return the percent of GPUs that a pod requests, counted in the units of its node.

    Without a node, `nvidia.com/gpu: 1` counts as a GPU, and resources that only a node knows count as nothing.
    """
    core_of = {**_CORE_OF, **{unit.resource: unit.core for unit in units}}

    def core(container: Container) -> float:
        limits = container.resources.limits
        return sum(core_of[name] * whole(limits[name]) for name in limits if name in core_of)

    return round(_most(pod, core))


def core_held(pod: Pod, units: Iterable[GpuUnits] = ()) -> int:
    """Percent of GPUs that a pod holds: none before it is bound, none once it has ended."""
    return core_asked(pod, units) if pod.spec.node_name and not pod.status.ended else 0


def units_asked(pod: Pod) -> dict[str, int]:
    """Return the number of devices that a pod requests, by resource: whole GPUs, replicas and MIG devices."""
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    wanted = {name for container in containers for name in container.resources.limits if _is_device(name)}
    asked = {
        name: round(_most(pod, lambda container, name=name: float(_limit(container, name))))  # type: ignore[misc]
        for name in sorted(wanted)
    }
    return {name: number for name, number in asked.items() if number > 0}


def _is_device(resource: str) -> bool:
    return resource.startswith(names.NVIDIA_PREFIX) or resource == names.ALPHA_GPU


def _limit(container: Container, resource: str) -> int:
    return whole(container.resources.limits.get(resource, 0))


def _most(pod: Pod, amount: Callable[[Container], float]) -> float:
    """The most that the pod's containers request at any time."""
    if not pod.spec.init_containers:
        return sum(map(amount, pod.spec.containers))
    init = [(container, container.sidecar) for container in pod.spec.init_containers]
    return max(sum(map(amount, phase)) for phase in phases(pod.spec.containers, init))


def mig_memory_mib(resource: str) -> int:
    """Return the memory in the name of a MIG device, in MiB; 0 for a name without it."""
    found = _MIG.match(resource)
    return int(found[3]) * 1024 if found else 0


def in_gpus(core: float) -> str:
    """Percent of GPUs as a number of GPUs: `2`, `1.6`."""
    return f"{core / 100:.2f}".rstrip("0").rstrip(".")
