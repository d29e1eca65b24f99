"""The pods that wait, read once: what they request of a node and of its GPUs, and which of them are alike.

Pods of one kind fit the same nodes, so a decision about one of them holds for all. A pod is `free` if its place depends
on no other pod; the others (affinity, hard spreading, host ports) are placed one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.autoscaler.requirements import NodeConditions, merge_requirements, pod_condition
from gpuplane.sharing.request import Request, kind_of, request_of
from kubekit.api.core import Pod
from kubekit.errors import InvalidInput
from kubekit.scheduling.podinfo import PodInfo, Requests, compile_pod

IGNORED: Final = frozenset(("ephemeral-storage",))
"""Resources that no decision here is about; the disk of a node to come is unknown."""


class PodAsk(msgspec.Struct, frozen=True, eq=False):
    """A pod that waits. `number` is equal for pods of one kind; `trouble` is why it can never run.

    `place` is equal for pods that labels and taints of nodes admit in the same way. `company` is equal for pods that
    also depend on others in the same way, whatever they request; 0 for free pods.
    """

    info: PodInfo
    request: Request
    number: int
    free: bool
    trouble: str = ""
    place: int = 0
    company: int = 0

    @property
    def key(self) -> str:
        return self.info.key


PodReading = tuple[PodInfo, Request, str]
"""A pod as the scheduler sees it, its request for GPUs, and why it can never run (empty if it can)."""


def read_pod(pod: Mapping[str, Any]) -> PodReading:
    """Read a pod object. Raises InvalidInput for an invalid quantity."""
    info, request, trouble = compile_pod(pod), Request(), ""
    try:
        request = kind_of(request_of(msgspec.convert(pod, Pod)))
        pod_conditions(info)
    except InvalidInput as error:
        trouble = f"{error.what}; {error.cure}" if error.cure else error.what
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error), where=f"Pod/{info.key}", cure="correct the field") from error
    except (ValueError, IndexError) as error:
        trouble = f"its node affinity cannot be read: {error}"
    return info, request, trouble


def read_asks(pods: Iterable[Mapping[str, Any]]) -> list[PodAsk]:
    """Read pod objects, the largest first: by CPU, memory, age, name. Raises InvalidInput for an invalid quantity."""
    return asks_of([read_pod(pod) for pod in pods])


def asks_of(read: Sequence[PodReading], placed: Iterable[PodInfo] = ()) -> list[PodAsk]:
    """Return pods that were read as asks, the largest first.

    Args:
        placed: the pods that run already: a pod that the anti-affinity of one of them selects is not free.
    """
    return _numbered(read, placed)


def counted_in_gpus(asks: Iterable[PodAsk]) -> list[PodAsk]:
    """Return the pods as an autoscaler sees them that knows whole GPUs only: each share or replica is a GPU."""
    return _numbered([(_in_gpus(ask.info), Request(), ask.trouble) for ask in asks])


def _in_gpus(info: PodInfo) -> PodInfo:
    requests: Requests = {}
    for name, amount in info.requests.items():
        if name == names.VCUDA_CORE:
            requests[names.GPU_RESOURCE] = requests.get(names.GPU_RESOURCE, 0) + max(1, amount // 100)
        elif name == names.ALPHA_GPU or name.startswith(names.NVIDIA_PREFIX):
            requests[names.GPU_RESOURCE] = requests.get(names.GPU_RESOURCE, 0) + amount
        elif name != names.VCUDA_MEMORY:
            requests[name] = amount
    return msgspec.structs.replace(info, requests=requests)


def _numbered(read: Sequence[PodReading], placed: Iterable[PodInfo] = ()) -> list[PodAsk]:
    anti = {term for info, _, _ in read for term in info.affinity.anti_required}
    anti |= {term for info in placed for term in info.affinity.anti_required}
    numbers: dict[bytes, int] = {}
    companies: dict[bytes, int] = {}
    places: dict[bytes, int] = {}
    asks = []
    for info, request, trouble in read:
        free = not (
            info.ports
            or info.affinity.pod_required
            or info.affinity.anti_required
            or any(constraint.hard for constraint in info.spread)
            or any(term.selects(info.namespace, info.labels, {}) for term in anti)
        )
        where = msgspec.json.encode((info.affinity.node_selector, info.affinity.node_required, info.tolerations))
        place = places.setdefault(where, len(places))
        company = 0
        if not free:
            others = (info.affinity.pod_required, info.affinity.anti_required, info.spread, info.ports)
            depends = msgspec.json.encode((place, others, info.namespace, sorted(info.labels.items())))
            company = companies.setdefault(depends, len(companies) + 1)
        alike = msgspec.json.encode((place, info.requests, request, company, trouble))
        asks.append(PodAsk(info, request, numbers.setdefault(alike, len(numbers)), free, trouble, place, company))
    asks.sort(key=_order)
    return asks


def _order(ask: PodAsk) -> tuple[int, int, str, str]:
    requests = ask.info.requests
    return -requests.get("cpu", 0), -requests.get("memory", 0), ask.info.created, ask.key


def pod_conditions(info: PodInfo) -> NodeConditions:
    """Return the pod's node selector, with its required node affinity where that has one term."""
    affinity = info.affinity
    parts = list(affinity.node_selector)
    if affinity.node_required is not None and len(affinity.node_required) == 1:
        parts += affinity.node_required[0].expressions
    return merge_requirements((part.key, pod_condition(part.operator, part.values)) for part in parts)


def selected_values(asks: Iterable[PodAsk]) -> dict[str, frozenset[str]]:
    """Return label -> the values that pods select of it."""
    found: dict[str, set[str]] = {}
    for ask in asks:
        if ask.trouble:
            continue
        for key, condition in pod_conditions(ask.info).items():
            if not condition.complement:
                found.setdefault(key, set()).update(condition.values)
    return {key: frozenset(values) for key, values in found.items()}
