"""The pods that wait, read once: what they request of a node and of its GPUs, and which of them are alike.

Pods of one kind fit the same nodes, so a decision about one of them holds for all. A pod is `free` if its place depends
on no other pod; the others (affinity, spreading, host ports) are placed one by one. A preference counts as a
requirement until all pods of a kind give it up together (`preferences`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gpuplane import names
from gpuplane.autoscaler.preferences import (
    RESPECTED,
    SOFT_EFFECT,
    PreferenceRules,
    PreferenceStep,
    has_preferences,
    preference_steps,
    preferred_values,
    prefers_node,
)
from gpuplane.autoscaler.requirements import NodeConditions, merge_requirements, pod_condition
from gpuplane.autoscaler.volume_limits import AttachedVolume, alike
from gpuplane.autoscaler.volumes import VolumeFacts, VolumeTerms, claims_of, volume_terms
from gpuplane.sharing.request import Request, kind_of, request_of
from kubekit.api.core import Pod
from kubekit.errors import InvalidInput
from kubekit.scheduling import filters
from kubekit.scheduling.podinfo import NodeFacts, PodInfo, PodTerm, Requests, compile_pod


class PodReading(NamedTuple):
    """A pod as the scheduler sees it, its request for GPUs, why it can never run (empty if it can), and its volumes:
    where they are, and those that count on a node."""

    info: PodInfo
    request: Request
    trouble: str
    volumes: tuple[VolumeTerms, ...] = ()
    attached: tuple[AttachedVolume, ...] = ()


class AskStep(msgspec.Struct, frozen=True, eq=False):
    """The rules for pods of one kind while some of their preferences count. The fields are those of `PodAsk`."""

    number: int
    free: bool
    place: int
    room: int
    company: int
    wanted: PodInfo
    avoids: bool
    given_up: tuple[str, ...]


class PodAsk(msgspec.Struct, frozen=True, eq=False):
    """A pod that waits. `number` is equal for pods of one kind; `trouble` is why it can never run.

    `place` is equal for pods that labels and taints of nodes admit in the same way. `room` is equal for pods that
    also request the same: if a node lacks room for one, it lacks room for all. `company` is equal for pods of one
    `place` that depend on others in the same way, whatever they request; 0 for free pods.

    `wanted` is a pod of the kind with the preferences that still count, each of them as a requirement; with `avoids`
    PreferNoSchedule taints count as well. `given_up` are the other preferences, as words. `later` are the steps in
    which the next ones are given up. A node must satisfy one term of each of `volumes`, and attach `attached`.
    """

    info: PodInfo
    request: Request
    number: int
    free: bool
    trouble: str
    place: int
    room: int
    company: int
    wanted: PodInfo
    avoids: bool = False
    given_up: tuple[str, ...] = ()
    later: tuple[AskStep, ...] = ()
    volumes: tuple[VolumeTerms, ...] = ()
    attached: tuple[AttachedVolume, ...] = ()

    @property
    def key(self) -> str:
        return self.info.key

    def relaxed(self, count: int = 1) -> PodAsk:
        """Return the pod with `count` more preferences given up; it has as many."""
        if not count:
            return self
        read = PodReading(self.info, self.request, self.trouble, self.volumes, self.attached)
        return _ask(read, self.later[count - 1 :])


def _ask(pod: PodReading, steps: tuple[AskStep, ...]) -> PodAsk:
    step = steps[0]
    return PodAsk(
        pod.info,
        pod.request,
        step.number,
        step.free,
        pod.trouble,
        step.place,
        step.room,
        step.company,
        step.wanted,
        step.avoids,
        step.given_up,
        steps[1:],
        pod.volumes,
        pod.attached,
    )


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
    return PodReading(info, request, trouble)


def read_asks(
    pods: Iterable[Mapping[str, Any]], rules: PreferenceRules = RESPECTED, volumes: VolumeFacts | None = None
) -> list[PodAsk]:
    """Read pod objects, the largest first: by CPU, memory, age, name. Raises InvalidInput for an invalid quantity.

    Args:
        volumes: those of the cluster; without them the pods' volumes may be anywhere.
    """
    return asks_of([_with_volumes(pod, read_pod(pod), volumes) for pod in pods], rules=rules)


def _with_volumes(pod: Mapping[str, Any], read: PodReading, volumes: VolumeFacts | None) -> PodReading:
    claims = claims_of(pod["metadata"]["name"], pod["spec"]) if volumes is not None else ()
    if volumes is None or not claims:
        return read
    terms, trouble = volume_terms(read.info.namespace, claims, volumes)
    return read._replace(trouble=read.trouble or trouble, volumes=terms)


def asks_of(
    read: Sequence[PodReading], placed: Iterable[PodInfo] = (), rules: PreferenceRules = RESPECTED
) -> list[PodAsk]:
    """Return pods that were read as asks with all of their preferences, the largest first.

    Args:
        placed: the pods that run already: a pod that the anti-affinity of one of them selects is not free.
    """
    anti = {term for pod in read for term in pod.info.affinity.anti_required}
    anti |= {term for info in placed for term in info.affinity.anti_required}
    kinds = _Kinds(anti, rules)
    asks = [_ask(pod, kinds.steps(pod)) for pod in read]
    asks.sort(key=_order)
    return asks


def counted_in_gpus(asks: Iterable[PodAsk], rules: PreferenceRules = RESPECTED) -> list[PodAsk]:
    """Return the pods as an autoscaler sees them that knows whole GPUs only: each share or replica is a GPU."""
    read = [PodReading(_in_gpus(ask.info), Request(), ask.trouble, ask.volumes, ask.attached) for ask in asks]
    return asks_of(read, rules=rules)


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


class _Kinds:
    """Numbers pods by kind. `anti` are the terms by which some pod keeps others away."""

    def __init__(self, anti: Collection[PodTerm], rules: PreferenceRules) -> None:
        self._anti = anti
        self._rules = rules
        self._numbers: dict[bytes, int] = {}
        self._companies: dict[bytes, int] = {}
        self._places: dict[bytes, int] = {}
        self._rooms: dict[bytes, int] = {}
        self._relaxing: dict[bytes, tuple[AskStep, ...]] = {}

    def steps(self, pod: PodReading) -> tuple[AskStep, ...]:
        """Return the steps of a pod's kind, the one with all preferences first."""
        info = pod.info
        if pod.trouble or not (self._rules.soft_taints or has_preferences(info)):
            return (self._step(PreferenceStep(info), pod),)
        others = (info.affinity, info.spread, info.tolerations, info.ports, info.namespace, sorted(info.labels.items()))
        kind = msgspec.json.encode((others, info.requests, pod.request, pod.volumes, alike(pod.attached)))
        steps = self._relaxing.get(kind)
        if steps is None:
            found = [self._step(step, pod) for step in preference_steps(info, self._rules)]
            steps = self._relaxing[kind] = tuple(found)
        return steps

    def _step(self, step: PreferenceStep, pod: PodReading) -> AskStep:
        info = step.wanted
        affinity = info.affinity
        free = not (
            info.ports
            or affinity.pod_required
            or affinity.anti_required
            or affinity.pod_preferred
            or affinity.anti_preferred
            or info.spread
            or any(term.selects(info.namespace, info.labels, {}) for term in self._anti)
        )
        where = (affinity.node_selector, affinity.node_required, affinity.node_preferred[:1])
        place = _number(self._places, (where, info.tolerations, step.avoids, pod.volumes))
        company = 0
        if not free:
            others = (affinity.pod_required, affinity.anti_required, affinity.pod_preferred, affinity.anti_preferred)
            depends = (place, others, info.spread, info.ports, info.namespace, sorted(info.labels.items()))
            company = _number(self._companies, depends) + 1
        wanted = (place, info.requests, pod.request, info.ports, alike(pod.attached))
        room = _number(self._rooms, wanted)
        number = _number(self._numbers, (room, company, pod.trouble))
        return AskStep(number, free, place, room, company, info, step.avoids, step.given_up)


def _number(known: dict[bytes, int], what: object) -> int:
    """Return the number of a value, the next one if it is new."""
    return known.setdefault(msgspec.json.encode(what), len(known))


def admits_ask(ask: PodAsk, facts: NodeFacts) -> bool:
    """Return whether taints and labels of a node admit a pod with the preferences that still count."""
    pod = ask.wanted
    if filters.check_taints(pod, facts) is not None or filters.check_affinity(pod, facts) is not None:
        return False
    if ask.avoids and filters.untolerated(facts.taints, pod.tolerations, (SOFT_EFFECT,)) is not None:
        return False
    if not all(filters.any_term_matches(terms, facts.name, facts.labels) for terms in ask.volumes):
        return False
    return prefers_node(pod.affinity, facts.name, facts.labels)


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
    """Return label -> the values that pods select of it, or prefer."""
    found: dict[str, set[str]] = {}
    for ask in asks:
        if ask.trouble:
            continue
        for key, values in preferred_values(ask.wanted):
            found.setdefault(key, set()).update(values)
        for key, condition in pod_conditions(ask.info).items():
            if not condition.complement:
                found.setdefault(key, set()).update(condition.values)
    return {key: frozenset(values) for key, values in found.items()}
