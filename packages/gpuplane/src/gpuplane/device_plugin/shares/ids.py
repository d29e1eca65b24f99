"""Ids of shares as the kubelet counts them, each tagged with its GPU: 100 core ids and one for each 256 MiB. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from gpuplane import names
from gpuplane.device_plugin.kubelet_api import PluginDevice
from gpuplane.hardware import GPUFacts
from gpuplane.sharing import WHOLE
from gpuplane.sharing.findings import MEMORY_UNIT_MIB
from gpuplane.sharing.units import REPLICA
from kubekit.errors import Terminal


def units_of(gpu: GPUFacts, resource: str) -> int:
    """Return how many ids a GPU has of `tencent.com/vcuda-core` or `-memory`."""
    return WHOLE if resource == names.VCUDA_CORE else (gpu.memory_bytes >> 20) // MEMORY_UNIT_MIB


def devices(gpus: Sequence[GPUFacts], resource: str, health: Mapping[str, str]) -> tuple[PluginDevice, ...]:
    """All ids of the resource; those of a GPU that is not usable are unhealthy."""
    return tuple(
        PluginDevice(
            id=f"{gpu.uuid}{REPLICA}{number}",
            healthy=gpu.uuid not in health,
            numa=(gpu.numa,) if gpu.numa >= 0 else (),
        )
        for gpu in gpus
        for number in range(units_of(gpu, resource))
    )


def gpu_of(id_: str) -> str:
    """The UUID of the GPU that an id is of."""
    return id_.partition(REPLICA)[0]


def by_gpu(ids: Iterable[str]) -> dict[str, list[str]]:
    """UUID -> its ids, lowest number first; an id without a number is of a whole GPU.

    Raises Terminal for an id whose end is no number.
    """
    found: dict[str, list[str]] = {}
    for id_ in ids:
        found.setdefault(gpu_of(id_), []).append(id_)
    for mine in found.values():
        mine.sort(key=_number)
    return found


def _number(id_: str) -> int:
    end = id_.partition(REPLICA)[2]
    if end and not (end.isascii() and end.isdecimal() and len(end) < 10):
        raise Terminal(f"{id_!r} is no id of a share", cure="ids are those that this plugin listed")
    return int(end or 0)


def pick(wanted: Mapping[str, int], available: Iterable[str], must: Sequence[str]) -> tuple[str, ...]:
    """Ids of the wanted GPUs, those that must be included first.

    Args:
        wanted: UUID -> how many.

    Raises:
        Terminal: a GPU has too few, or what must be included is of another GPU.
    """
    fixed = by_gpu(must)
    if strangers := [uuid for uuid in fixed if len(fixed[uuid]) > wanted.get(uuid, 0)]:
        raise Terminal(f"an init container of the pod holds more of {strangers[0]} than this one is to have")
    free = by_gpu(available)
    chosen: list[str] = []
    for uuid, count in wanted.items():
        have = fixed.get(uuid, [])
        rest = [id_ for id_ in free.get(uuid, []) if id_ not in set(have)]
        if len(have) + len(rest) < count:
            left = len(have) + len(rest)
            raise Terminal(
                f"{count} of {uuid} are assigned, {left} are left", cure="delete the pod; it is placed again"
            )
        chosen += [*have, *rest[: count - len(have)]]
    return tuple(chosen)


def share_name(ids: Iterable[str]) -> str:
    """The name of the share that a container has by its core ids, known at Allocate and at its start."""
    return "ids-" + hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:32]


def core_of(ids: Sequence[str]) -> dict[str, int]:
    """UUID -> percent of its core, of a container's core ids.

    Raises Terminal for ids that are neither a part of one GPU nor whole GPUs.
    """
    core = {uuid: len(mine) for uuid, mine in by_gpu(ids).items()}
    if len(core) > 1 and any(percent != WHOLE for percent in core.values()):
        parts = ", ".join(f"{percent}% of {uuid}" for uuid, percent in core.items())
        raise Terminal(
            f"the kubelet gave {parts}, which is neither a part of one GPU nor whole ones",
            where="Allocate",
            cure="delete the pod; it is placed again",
        )
    return core
