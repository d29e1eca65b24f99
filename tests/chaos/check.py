"""Violations of what gpuplane promises, found in the state of a cluster. Pure.

Counted again from requests, assignments, kubelets and pages; nothing of gpuplane's ledgers is used.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

WHOLE = 100  # percent of a GPU


class HeldPart(msgspec.Struct, frozen=True):
    """A part of one GPU, by a pod's assignment or by its page on the node."""

    gpu: str
    core: int
    memory_mib: int


class ChaosPod(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's pod. `node` is empty while it waits; `parts` are its assignment's, `page` its limits on the node."""

    name: str
    namespace: str
    uid: str = ""
    phase: str = "Pending"
    node: str = ""
    core: int = 0
    memory_mib: int = 0
    whole: int = 0
    parts: tuple[HeldPart, ...] = ()
    page: HeldPart | None = None
    leaving: bool = False

    @property
    def holds(self) -> bool:
        return bool(self.node) and self.phase not in ("Succeeded", "Failed")


class ChaosState(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster at one moment.

    `devices` are (node, resource, device id) for each device of each container, as kubelets list them. `gpus` is GPU ->
    MiB of each node that offers shares, `whole` the number of GPUs of each node that offers them whole. `quotas` are
    GPUs by namespace.
    """

    pods: tuple[ChaosPod, ...] = ()
    devices: tuple[tuple[str, str, str], ...] = ()
    gpus: Mapping[str, Mapping[str, int]] = {}
    whole: Mapping[str, int] = {}
    quotas: Mapping[str, float] = {}


def violations(state: ChaosState) -> list[str]:
    """Return what is wrong at any moment, also in the midst of faults."""
    return [*_twice(state), *_beyond(state), *_over_quota(state), *_wrong_pages(state)]


def waiting_in_vain(state: ChaosState) -> list[str]:
    """Return the pods that wait although they fit; for a cluster that has been calm for a while."""
    return [f"{pod.name} waits and fits" for pod in state.pods if pod.phase == "Pending" and _fits(pod, state)]


def _twice(state: ChaosState) -> Iterator[str]:
    for (node, resource, device), count in Counter(state.devices).items():
        if count > 1:
            yield f"{node}: {resource} {device} is held {count} times"
    for node, count in state.whole.items():
        held = sum(pod.whole for pod in state.pods if pod.holds and pod.node == node)
        if held > count:
            yield f"{node}: {held} of {count} whole GPUs are held"


def _beyond(state: ChaosState) -> Iterator[str]:
    for node, gpus in state.gpus.items():
        for gpu, (core, memory) in _held(state, node).items():
            if core > WHOLE or memory > gpus.get(gpu, 0):
                yield f"{node}/{gpu} is held to {core}% and {memory} of {gpus.get(gpu, 0)} MiB"


def _held(state: ChaosState, node: str) -> dict[str, tuple[int, int]]:
    sums: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for part in _parts(pod for pod in state.pods if pod.holds and pod.node == node):
        core, memory = sums[part.gpu]
        sums[part.gpu] = core + part.core, memory + part.memory_mib
    return sums


def _parts(pods: Iterable[ChaosPod]) -> Iterator[HeldPart]:
    for pod in pods:
        yield from pod.parts


def used(state: ChaosState, namespace: str) -> float:
    """Return how many GPUs the pods of a namespace hold."""
    pods = [pod for pod in state.pods if pod.holds and pod.namespace == namespace]
    return sum(pod.whole + pod.core / WHOLE for pod in pods)


def _over_quota(state: ChaosState) -> Iterator[str]:
    for namespace, limit in state.quotas.items():
        if (found := used(state, namespace)) > limit + 1e-9:
            yield f"namespace {namespace} holds {found:g} GPUs, its quota is {limit:g}"


def _wrong_pages(state: ChaosState) -> Iterator[str]:
    for pod in state.pods:
        if pod.page is not None and pod.holds and (pod.page,) != pod.parts:
            yield f"{pod.name} is limited to {pod.page}, and was assigned {pod.parts}"


def _fits(pod: ChaosPod, state: ChaosState) -> bool:
    limit = state.quotas.get(pod.namespace)
    if limit is not None and used(state, pod.namespace) + pod.whole + pod.core / WHOLE > limit + 1e-9:
        return False
    if pod.whole:
        held = Counter(dict.fromkeys(state.whole, 0))
        for other in state.pods:
            if other.holds:
                held[other.node] += other.whole
        return any(count - held[node] >= pod.whole for node, count in state.whole.items())
    for node, gpus in state.gpus.items():
        sums = _held(state, node)
        for gpu, memory in gpus.items():
            core_held, memory_held = sums.get(gpu, (0, 0))
            if core_held + pod.core <= WHOLE and memory_held + pod.memory_mib <= memory:
                return True
    return False
