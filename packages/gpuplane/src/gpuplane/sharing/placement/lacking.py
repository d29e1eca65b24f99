"""The reasons why a node cannot take a pod, in one line and GPU by GPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from gpuplane.sharing.findings import NO_SHARES
from gpuplane.sharing.node import LedgerGPU, NodeState
from gpuplane.sharing.placement.policy import Lack, Refusal
from gpuplane.sharing.placement.room import memory_of
from gpuplane.sharing.request import Ask, Request, matches

ALL_LOST: Final = "all of its GPUs are lost"


def refusal(node: NodeState, request: Request, *, details: bool = True) -> Refusal:
    """Return the refusal: the largest container that fits no GPU by itself, else that they do not fit together."""
    if lacking := cannot_host(node, request):
        return Refusal(lacking)
    for ask in sorted(request.asks, key=lambda ask: -ask.core) if len(request.asks) > 1 else request.asks:
        lacks = [lack(node, request, ask, at) for at in range(len(node.gpus))]
        good = lacks.count("")
        if good < max(1, ask.gpus):
            return Refusal(_words(ask, lacks, good), ask.container, _lacks(node, request, ask) if details else ())
    together = f"no room for its {len(request.asks)} containers together"
    return Refusal(together, "", _lacks(node, request, request.asks[0]) if details and request.asks else ())


def cannot_host(node: NodeState, request: Request) -> str:
    """Return which of CPU and memory is short, if the node reports them; empty when neither is."""
    if node.cpu_milli is not None and request.cpu_milli > node.cpu_milli:
        return f"CPU short by {request.cpu_milli - node.cpu_milli}m"
    if node.host_memory_mib is not None and request.host_memory_mib > node.host_memory_mib:
        return f"memory short by {request.host_memory_mib - node.host_memory_mib} MiB"
    return ""


def unwanted(gpu: LedgerGPU, request: Request) -> str:
    """Return the selector of the pod that excludes the GPU; empty when none does."""
    if (request.models or request.not_models) and not _admits(request.models, request.not_models, gpu.model):
        return "model"
    if (request.uuids and gpu.uuid not in request.uuids) or gpu.uuid in request.not_uuids:
        return "uuid"
    return ""


@lru_cache(maxsize=4096)
def _admits(models: tuple[str, ...], not_models: tuple[str, ...], model: str) -> bool:
    if models and not any(matches(model, wanted) for wanted in models):
        return False
    return not any(matches(model, wanted) for wanted in not_models)


def lack(node: NodeState, request: Request, ask: Ask, at: int) -> str:
    """Return the first reason against a GPU for a container, a key of REASONS; empty when there is no reason."""
    gpu = node.gpus[at]
    if gpu.fault:
        return "lost"
    if gpu.divided:
        return "divided"
    if request.selects and (reason := unwanted(gpu, request)):
        return reason
    if ask.each > node.core[at]:
        return "held" if ask.gpus else "core"
    return "memory" if not ask.gpus and memory_of(node, ask, at) > node.memory[at] else ""


def _lacks(node: NodeState, request: Request, ask: Ask) -> tuple[Lack, ...]:
    found = []
    for at, gpu in enumerate(node.gpus):
        reason = lack(node, request, ask, at)
        if reason not in ("held", "core", "memory"):
            found.append(Lack(gpu.index, reason))
            continue
        memory = 0 if ask.gpus else max(0, memory_of(node, ask, at) - node.memory[at])
        found.append(Lack(gpu.index, reason, max(0, ask.each - node.core[at]), memory))
    return tuple(found)


def _words(ask: Ask, lacks: list[str], good: int) -> str:
    """The refusal in one line, from the outside in: what the node has none of at all comes first."""
    if not lacks:
        return "has no GPUs"
    left = [reason for reason in lacks if reason != "lost"]
    if not left:
        return ALL_LOST
    if not ask.gpus and all(reason == "divided" for reason in left):
        return NO_SHARES
    left = [reason for reason in left if reason != "model"]
    if not left:
        return "has no GPU of a model that the pod names"
    if all(reason == "uuid" for reason in left):
        return "has no GPU that the pod names"
    if ask.gpus:
        return f"{ask.gpus} whole {'GPU' if ask.gpus == 1 else 'GPUs'} asked, {good} wholly free"
    if ask.memory_mib:
        return f"no GPU has {ask.core}% core and {ask.memory_mib} MiB together"
    return f"no GPU has {ask.core}% core"
