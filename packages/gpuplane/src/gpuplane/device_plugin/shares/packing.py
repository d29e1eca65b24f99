"""Packs shares on a node's GPUs by the ids that the kubelet lists as held, where no extender assigned a GPU. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpuplane import names
from gpuplane.device_plugin.container_lookup import KubeletContainer
from gpuplane.device_plugin.shares.ids import by_gpu, pick
from gpuplane.hardware import GPUFacts, to_api
from gpuplane.sharing import WHOLE, NodeState
from gpuplane.sharing.findings import MEMORY_UNIT_MIB
from gpuplane.sharing.node import empty, with_health
from kubekit.errors import Terminal


def node_state(gpus: Sequence[GPUFacts], health: Mapping[str, str], holders: Iterable[KubeletContainer]) -> NodeState:
    """Return the free parts of the node's GPUs, without those that the kubelet lists as held, whole GPUs included."""
    listed = with_health(map(to_api, gpus), health)
    state = empty("", listed)
    core = {gpu.uuid: WHOLE for gpu in listed}
    memory = {gpu.uuid: gpu.memory_mib for gpu in listed}
    total = dict(memory)
    for one in holders:
        for resource, ids in one.ids.items():
            for uuid, mine in by_gpu(ids).items():
                if uuid not in core:
                    continue
                if resource == names.VCUDA_MEMORY:
                    memory[uuid] -= len(mine) * MEMORY_UNIT_MIB
                elif resource == names.VCUDA_CORE:
                    core[uuid] -= len(mine)
                    if names.VCUDA_MEMORY not in one.ids:
                        memory[uuid] -= total[uuid] * len(mine) // WHOLE
                else:
                    core[uuid] = memory[uuid] = 0
    return msgspec.structs.replace(
        state,
        core=tuple(max(0, core[gpu.uuid]) for gpu in listed),
        memory=tuple(max(0, memory[gpu.uuid]) for gpu in listed),
    )


def packed_by_ids(
    gpus: Sequence[GPUFacts], resource: str, available: Sequence[str], must: Sequence[str], size: int
) -> tuple[str, ...]:
    """Ids for a request of which nothing else is known: whole GPUs, or a part of the fullest GPU that has enough.

    Raises Terminal when no GPU has.
    """
    free = {uuid: len(ids) for uuid, ids in by_gpu({*available, *must}).items()}
    order = [gpu for gpu in gpus if gpu.uuid in free]
    held = by_gpu(must)
    if resource == names.VCUDA_CORE and size >= WHOLE:
        whole = [gpu.uuid for gpu in order if free[gpu.uuid] == WHOLE]
        whole.sort(key=lambda uuid: uuid not in held)
        wanted = dict.fromkeys(whole[: size // WHOLE], WHOLE)
        if sum(wanted.values()) != size:
            raise Terminal(f"{size} of {resource} are requested, {len(whole)} GPUs are wholly free")
        return pick(wanted, available, must)
    fitting = [gpu for gpu in order if free[gpu.uuid] >= size and set(held) <= {gpu.uuid}]
    if fitting:
        best = min(fitting, key=lambda gpu: (gpu.uuid not in held, free[gpu.uuid], gpu.index))
        return pick({best.uuid: size}, available, must)
    if resource == names.VCUDA_CORE:
        raise Terminal(f"no GPU has {size}% of its core left")
    return tuple(dict.fromkeys((*must, *available)))[:size]  # memory of whole GPUs, which counts for nothing
