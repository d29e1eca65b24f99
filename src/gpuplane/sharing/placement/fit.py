"""Whether a node can take a pod, and with which of its GPUs: the same for every policy, which only orders the choices.

The containers that last come first, whole GPUs before shares and large shares before small ones; where the preferred
GPU of one leaves no room for the next, the next best is tried, so that a pod that fits is found to fit. Then each init
container takes what the pod has anyway before it takes more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from gpuplane.sharing.assignment import Assignment, Part
from gpuplane.sharing.node import Gpu, NodeState
from gpuplane.sharing.placement.policy import Lack, Placement, Policy, Refusal
from gpuplane.sharing.request import Ask, Request, matches

_TRIES: Final = 2_000  # of a pod's containers on a node; only pods of many containers on a full node come near it

Spots = dict[str, tuple[int, ...]]
"""Container -> positions of its GPUs."""


def place(node: NodeState, request: Request, policy: Policy, gpu_policy: Policy | None = None) -> Placement | Refusal:
    """The best that the node can do for the pod, by `policy`; `gpu_policy` chooses among its GPUs where it differs."""
    spots = find(node, request, gpu_policy or policy)
    if isinstance(spots, Refusal):
        return spots
    after = taken(node, request, spots)
    containers = {ask.container: tuple(_part(node, ask, at) for at in spots[ask.container]) for ask in request.asks}
    init = tuple(ask.container for ask in request.asks if not ask.lasts)
    return Placement(Assignment(containers, init, node.name), policy.score(node, after, request))


def find(node: NodeState, request: Request, policy: Policy) -> Spots | Refusal:
    """The GPUs of each container."""
    usable = usable_gpus(node, request)
    lasting = [ask for ask in request.asks if ask.lasts]
    if policy.name != "tightest":  # which keeps the containers' order, as gpu-admission does
        lasting.sort(key=lambda ask: -ask.core)
    spots: Spots = {}
    if not _search(node, lasting, 0, policy, usable, spots, [_TRIES]):
        return refusal(node, request, usable)
    for index, ask in enumerate(request.asks):
        if not ask.lasts:
            beside = {before.container: before for before in request.asks[:index] if before.sidecar}
            chosen = _for_init(node, request, ask, set(beside), policy, usable, spots)
            if chosen is None:
                return refusal(node, request, usable)
            spots[ask.container] = chosen
    return spots


def usable_gpus(node: NodeState, request: Request) -> tuple[int, ...]:
    """Positions of the GPUs that are healthy and that the pod's selectors admit."""
    if not (request.models or request.not_models or request.uuids or request.not_uuids):
        return tuple(at for at, gpu in enumerate(node.gpus) if not gpu.fault)
    return tuple(at for at, gpu in enumerate(node.gpus) if not gpu.fault and not _unwanted(gpu, request))


def _unwanted(gpu: Gpu, request: Request) -> str:
    if request.models and not any(matches(gpu.model, wanted) for wanted in request.models):
        return "model"
    if any(matches(gpu.model, wanted) for wanted in request.not_models):
        return "model"
    if (request.uuids and gpu.uuid not in request.uuids) or gpu.uuid in request.not_uuids:
        return "uuid"
    return ""


def _search(
    node: NodeState,
    asks: list[Ask],
    depth: int,
    policy: Policy,
    usable: tuple[int, ...],
    spots: Spots,
    tries: list[int],
) -> bool:
    """Fills `spots` for `asks` from `depth` on, in the policy's order of preference; False when nothing fits."""
    if depth == len(asks):
        return True
    ask = asks[depth]
    seen = set()
    for chosen in _choices(node, ask, policy, usable):
        # GPUs in the same state lead to the same end.
        state = tuple((node.core[at], node.memory[at], node.gpus[at].memory_mib) for at in chosen)
        if state in seen or tries[0] <= 0:
            continue
        seen.add(state)
        tries[0] -= 1
        spots[ask.container] = chosen
        if depth + 1 == len(asks) or _search(_less(node, ask, chosen), asks, depth + 1, policy, usable, spots, tries):
            return True
    spots.pop(ask.container, None)
    return False


def _choices(node: NodeState, ask: Ask, policy: Policy, usable: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if ask.core >= node.scale:
        free = [at for at in usable if node.core[at] == node.scale]
        if len(free) >= ask.gpus:
            yield policy.choose(node, ask, free)
        return
    fitting = [at for at in usable if node.core[at] >= ask.core and node.memory[at] >= memory_of(node, ask, at)]
    for at in policy.order(node, ask, fitting) if len(fitting) > 1 else fitting:
        yield (at,)


def memory_of(node: NodeState, ask: Ask, at: int) -> int:
    """MiB that the container holds of a GPU: what it asks, else the part that goes with its core; a whole one's all."""
    if ask.core >= node.scale:
        return node.gpus[at].memory_mib
    return ask.memory_mib or node.gpus[at].memory_mib * ask.core // node.scale


def _part(node: NodeState, ask: Ask, at: int) -> Part:
    gpu = node.gpus[at]
    return Part(gpu.uuid, gpu.index, ask.each, memory_of(node, ask, at))


def _less(node: NodeState, ask: Ask, chosen: tuple[int, ...]) -> NodeState:
    """The node without what the container takes."""
    core, memory = list(node.core), list(node.memory)
    for at in chosen:
        core[at] -= ask.each
        memory[at] = max(0, memory[at] - memory_of(node, ask, at))
    return msgspec.structs.replace(node, core=tuple(core), memory=tuple(memory))


def taken(node: NodeState, request: Request, spots: Spots) -> NodeState:
    """The node with the pod on it: of each GPU the most that its containers hold at any time."""
    most_core, most_memory = [0] * len(node.gpus), [0] * len(node.gpus)
    for phase in request.phases():
        core, memory = [0] * len(node.gpus), [0] * len(node.gpus)
        for ask in phase:
            for at in spots[ask.container]:
                core[at] += ask.each
                memory[at] += memory_of(node, ask, at)
        most_core = list(map(max, most_core, core))
        most_memory = list(map(max, most_memory, memory))
    return msgspec.structs.replace(
        node,
        core=tuple(free - held for free, held in zip(node.core, most_core, strict=True)),
        memory=tuple(max(0, free - held) for free, held in zip(node.memory, most_memory, strict=True)),
        cpu_milli=None if node.cpu_milli is None else max(0, node.cpu_milli - request.cpu_milli),
        host_memory_mib=None
        if node.host_memory_mib is None
        else max(0, node.host_memory_mib - request.host_memory_mib),
    )


def _for_init(
    node: NodeState,
    request: Request,
    ask: Ask,
    beside: set[str],
    policy: Policy,
    usable: tuple[int, ...],
    spots: Spots,
) -> tuple[int, ...] | None:
    """GPUs for an init container: those that cost the pod the least beyond what it has anyway; None when none do."""
    lasting = [other for other in request.asks if other.lasts and other.container in spots]
    room = node
    for other in lasting:
        if other.container in beside:
            room = _less(room, other, spots[other.container])
    later = [0] * len(node.gpus)
    for other in lasting:
        if other.container not in beside:
            for at in spots[other.container]:
                later[at] += other.each
    if ask.core >= node.scale:
        free = [at for at in usable if room.core[at] == room.scale]
        if len(free) < ask.gpus:
            return None
        own = [at for at in free if later[at]]
        if len(own) >= ask.gpus:
            return policy.choose(room, ask, own)
        own.sort(key=lambda at: -later[at])
        return tuple(sorted([*own, *[at for at in free if not later[at]]][: ask.gpus]))
    choices = list(_choices(room, ask, policy, usable))
    return min(choices, key=lambda chosen: max(0, ask.core - later[chosen[0]]), default=None)


def refusal(node: NodeState, request: Request, usable: tuple[int, ...]) -> Refusal:
    """Why the pod does not fit: a container that finds no GPU by itself, or that all find no room together."""
    for ask in sorted(request.asks, key=lambda ask: -ask.core):
        lacks = tuple(_lack(node, request, ask, at) for at in range(len(node.gpus)))
        good = sum(not lack.reason for lack in lacks)
        if good < max(1, ask.gpus):
            return Refusal(_words(ask, lacks, good), ask.container, lacks)
    lacks = tuple(_lack(node, request, request.asks[0], at) for at in range(len(node.gpus)))
    return Refusal(f"no room for its {len(request.asks)} containers together", "", lacks)


def _lack(node: NodeState, request: Request, ask: Ask, at: int) -> Lack:
    gpu = node.gpus[at]
    reason = "lost" if gpu.fault else _unwanted(gpu, request)
    if reason:
        return Lack(gpu.index, reason)
    core = ask.each - node.core[at]
    memory = memory_of(node, ask, at) - node.memory[at] if ask.core < node.scale else 0
    if core > 0:
        return Lack(gpu.index, "held" if ask.core >= node.scale else "core", core, max(0, memory))
    return Lack(gpu.index, "memory", 0, memory) if memory > 0 else Lack(gpu.index)


def _words(ask: Ask, lacks: tuple[Lack, ...], good: int) -> str:
    """The refusal in one line: what comes first in the way of most GPUs, from the outside in."""
    if not lacks:
        return "has no GPUs"
    left = [lack for lack in lacks if lack.reason != "lost"]
    if not left:
        return "all of its GPUs are lost"
    left = [lack for lack in left if lack.reason != "model"]
    if not left:
        return "has no GPU of a model that the pod names"
    if all(lack.reason == "uuid" for lack in left):
        return "has no GPU that the pod names"
    if ask.gpus:
        return f"{ask.gpus} whole {'GPU' if ask.gpus == 1 else 'GPUs'} asked, {good} wholly free"
    if ask.memory_mib:
        return f"no GPU has {ask.core}% core and {ask.memory_mib} MiB together"
    return f"no GPU has {ask.core}% core"
