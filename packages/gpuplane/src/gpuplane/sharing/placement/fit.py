"""Decides whether a node can take a pod, and with which GPUs: the same for every policy, which only orders the choices.

The containers that last come first, whole GPUs before shares and large shares before small ones; where the preferred
GPU of one leaves no room for the next, the next best is tried, so that a pod that fits is found to fit. Then each init
container takes what the pod has anyway before it takes more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from gpuplane.sharing.assignment import Assignment, Part
from gpuplane.sharing.node import NodeState
from gpuplane.sharing.node import usable as usable_of
from gpuplane.sharing.placement.lacking import cannot_host, refusal, unwanted
from gpuplane.sharing.placement.policy import Placement, Policy, Refusal
from gpuplane.sharing.placement.room import memory_of
from gpuplane.sharing.request import Ask, Request

_TRIES: Final = 2_000  # of a pod's containers on a node; only pods of many containers on a full node come near it

Spots = dict[str, tuple[int, ...]]
"""Container -> positions of its GPUs."""


def place(node: NodeState, request: Request, policy: Policy, gpu_policy: Policy | None = None) -> Placement | Refusal:
    """Return the pod's best placement on the node by `policy`; `gpu_policy` (if given) chooses among its GPUs.

    It names no GPU where kube-scheduler counts what the pod requests.
    """
    if (by_count := place_by_count(node, request)) is not None:
        return by_count
    found = rate(node, request, policy, gpu_policy)
    if found is None:
        return refusal(node, request)
    spots, value = found
    containers = {ask.container: tuple(_part(node, ask, at) for at in spots[ask.container]) for ask in request.asks}
    init = tuple(ask.container for ask in request.asks if not ask.lasts)
    return Placement(Assignment(containers, init, node.name), policy.score(value), value)


def place_by_count(node: NodeState, request: Request) -> Placement | Refusal | None:
    """Decide where kube-scheduler counts what the pod requests, and the kubelet chooses; None elsewhere.

    Selectors admit such a node only if they admit each of its GPUs.
    """
    if not (node.by_count and request.by_count):
        return None
    if request.selects and any(unwanted(gpu, request) for gpu in node.gpus):
        return Refusal("the kubelet chooses among its GPUs, and the pod does not select each of them")
    # One GPU is asked: a replica does, and whole GPUs stay for other pods.
    return Placement(Assignment({}, node=node.name), 100 if request.core == 100 else 0)


def find(node: NodeState, request: Request, policy: Policy) -> Spots | Refusal:
    """Return the GPUs of each container, or a refusal without the details that `place` adds."""
    spots = _spots(node, request, policy)
    return refusal(node, request, details=False) if spots is None else spots


def rate(
    node: NodeState, request: Request, policy: Policy, gpu_policy: Policy | None = None
) -> tuple[Spots, float] | None:
    """Return the GPUs of each container, and the value by `policy`; None where the pod does not fit."""
    ask = request.asks[0] if len(request.asks) == 1 else None
    if ask is not None and _full(node, ask):
        return None
    if ask is not None and not ask.gpus and (gpu_policy is None or gpu_policy is policy):
        if cannot_host(node, request):
            return None
        fitting = _fitting(node, ask, usable_gpus(node, request))
        if not fitting:
            return None
        best = policy.quick(node, ask, request, fitting)
        if best is not None:
            return {ask.container: (best[0],)}, best[1]
    spots = _spots(node, request, gpu_policy or policy)
    return None if spots is None else (spots, policy.value(node, taken(node, request, spots), request))


def fits_gpu(gpu: NodeState, request: Request) -> bool:
    """Return whether a pod that is one share fits the GPUs of a node, whatever its CPU and memory."""
    return bool(_fitting(gpu, request.asks[0], usable_gpus(gpu, request)))


def _full(node: NodeState, ask: Ask) -> bool:
    """Return whether one look tells that a container finds nothing: so it is with most nodes of a full cluster."""
    if ask.gpus:
        return ask.gpus > node.core.count(node.scale)
    return ask.core > max(node.core, default=0)


def usable_gpus(node: NodeState, request: Request) -> tuple[int, ...]:
    """Return the positions of the usable GPUs that the pod's selectors admit."""
    usable = node.usable if node.usable is not None else usable_of(node.gpus)
    if not request.selects:
        return usable
    return tuple(at for at in usable if not unwanted(node.gpus[at], request))


def taken(node: NodeState, request: Request, spots: Spots) -> NodeState:
    """Return the node with the pod on it: of each GPU the most that its containers hold at any time."""
    least_core, least_memory = node.core, node.memory
    for phase in request.phases() if len(request.asks) > 1 else (request.asks,):
        core, memory = list(node.core), list(node.memory)
        for ask in phase:
            for at in spots[ask.container]:
                core[at] -= ask.each
                memory[at] = max(0, memory[at] - memory_of(node, ask, at))
        least_core = tuple(map(min, least_core, core)) if least_core is not node.core else tuple(core)
        least_memory = tuple(map(min, least_memory, memory)) if least_memory is not node.memory else tuple(memory)
    cpu, host = node.cpu_milli, node.host_memory_mib
    return NodeState(
        node.name,
        node.gpus,
        least_core,
        least_memory,
        node.scale,
        None if cpu is None else max(0, cpu - request.cpu_milli),
        None if host is None else max(0, host - request.host_memory_mib),
        node.usable,
        node.by_count,
    )


def _spots(node: NodeState, request: Request, policy: Policy) -> Spots | None:
    if cannot_host(node, request):
        return None
    usable = usable_gpus(node, request)
    if len(request.asks) < 2:
        for ask in request.asks:
            chosen = next(_choices(node, ask, policy, usable), None)
            return None if chosen is None else {ask.container: chosen}
        return {}
    lasting = [ask for ask in request.asks if ask.lasts]
    if not policy.in_order:
        lasting.sort(key=lambda ask: -ask.core)
    spots: Spots = {}
    if not _search(node, lasting, 0, policy, usable, spots, [_TRIES]):
        return None
    for index, ask in enumerate(request.asks):
        if not ask.lasts:
            beside = {before.container for before in request.asks[:index] if before.sidecar}
            found = _for_init(node, request, ask, beside, policy, usable, spots)
            if found is None:
                return None
            spots[ask.container] = found
    return spots


def _search(
    node: NodeState,
    asks: list[Ask],
    depth: int,
    policy: Policy,
    usable: tuple[int, ...],
    spots: Spots,
    tries: list[int],
) -> bool:
    """Fill `spots` for `asks` from `depth` on, in the policy's order of preference; False when nothing fits."""
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
    fitting = _fitting(node, ask, usable)
    for at in policy.order(node, ask, fitting) if len(fitting) > 1 else fitting:
        yield (at,)


def _fitting(node: NodeState, ask: Ask, usable: tuple[int, ...]) -> list[int]:
    """Return the GPUs with room for a share."""
    size, core, memory = ask.core, node.core, node.memory
    return [at for at in usable if core[at] >= size and memory[at] >= memory_of(node, ask, at)]


def _part(node: NodeState, ask: Ask, at: int) -> Part:
    gpu = node.gpus[at]
    return Part(gpu.uuid, gpu.index, ask.each, memory_of(node, ask, at))


def _less(node: NodeState, ask: Ask, chosen: tuple[int, ...]) -> NodeState:
    """Return the node without the GPUs that the container takes."""
    core, memory = list(node.core), list(node.memory)
    for at in chosen:
        core[at] -= ask.each
        memory[at] = max(0, memory[at] - memory_of(node, ask, at))
    return msgspec.structs.replace(node, core=tuple(core), memory=tuple(memory))


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
    room = node
    later = [0] * len(node.gpus)
    for other in request.asks:
        if other.lasts and other.container in beside:
            room = _less(room, other, spots[other.container])
        elif other.lasts:
            for at in spots[other.container]:
                later[at] += other.each
    if ask.core >= node.scale:
        free = [at for at in usable if room.core[at] == room.scale]
        own = [at for at in free if later[at]]
        if len(own) >= ask.gpus:
            return policy.choose(room, ask, own)
        own.sort(key=lambda at: -later[at])
        chosen = [*own, *[at for at in free if not later[at]]][: ask.gpus]
        return tuple(sorted(chosen)) if len(chosen) == ask.gpus else None
    choices = list(_choices(room, ask, policy, usable))
    return min(choices, key=lambda chosen: max(0, ask.core - later[chosen[0]]), default=None)
