"""Compute the replicas that one metric asks for, as the autoscaler of kube-controller-manager does. Pure.

Values are in thousandths (`100m` is 100) and times in seconds since the epoch. Pods without a sample and pods that are
not ready count in the direction that changes least: unused on the way up, at their target on the way down.

Source: the documentation "Horizontal Pod Autoscaling", and the behaviour of Kubernetes 1.36.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from kubekit.api.durations import parse_time
from kubekit.api.pod_requests import read_amounts
from kubekit.api.quantity import Quantity, parse_quantity
from tinykube.controllers.pods import condition, is_ready, phase

Object = Mapping[str, Any]
MOST: Final = 2**31 - 1
_MOST_VALUE: Final = 2**63 - 1
_CPU_INITIALIZATION_S: Final = 300.0  # --horizontal-pod-autoscaler-cpu-initialization-period
_INITIAL_READINESS_S: Final = 30.0  # --horizontal-pod-autoscaler-initial-readiness-delay


class MetricError(Exception):
    """A metric that gives no number of replicas; the message is that of conditions and events."""


class PodSample(msgspec.Struct, frozen=True):
    """The value of a metric of one pod in thousandths, its time, and the seconds before it that it describes."""

    value: int
    time: float = 0.0
    window: float = 60.0


class Tolerances(msgspec.Struct, frozen=True):
    """The distances below and above 1 within which a ratio of use to target changes nothing."""

    down: float = 0.1
    up: float = 0.1

    def hold(self, ratio: float) -> bool:
        return 1.0 - self.down <= ratio <= 1.0 + self.up


class Proposal(msgspec.Struct, frozen=True):
    """The replicas of one metric; `average` is its current value in thousandths, `utilization` in percent."""

    replicas: int
    average: int
    utilization: int | None = None


class PodGroups(msgspec.Struct, frozen=True):
    """Names of pods: `ready` have a sample that counts; `ignored` are ending or have failed."""

    ready: frozenset[str]
    unready: frozenset[str]
    missing: frozenset[str]
    ignored: frozenset[str]


def thousandths(value: Quantity) -> int:
    """Return a quantity in thousandths, rounded up, as Kubernetes rounds."""
    return math.ceil(parse_quantity(value) * 1000)


def group_pods(pods: Iterable[Object], samples: Mapping[str, PodSample], resource: str, now: float) -> PodGroups:
    """Sort pods by whether their samples count. Only samples of CPU depend on a pod's readiness."""
    groups: dict[str, set[str]] = {"ready": set(), "unready": set(), "missing": set(), "ignored": set()}
    for pod in pods:
        groups[_group(pod, samples, resource, now)].add(pod["metadata"]["name"])
    return PodGroups(**{name: frozenset(names) for name, names in groups.items()})


def _group(pod: Object, samples: Mapping[str, PodSample], resource: str, now: float) -> str:
    meta = pod["metadata"]
    if meta.get("deletionTimestamp") is not None or phase(pod) == "Failed":
        return "ignored"
    if phase(pod) == "Pending":
        return "unready"
    sample = samples.get(meta["name"])
    if sample is None:
        return "missing"
    if resource == "cpu" and _is_starting(pod, sample, now):
        return "unready"
    return "ready"


def _is_starting(pod: Object, sample: PodSample, now: float) -> bool:
    """Return whether a sample of CPU may be that of a start: of a pod not ready yet, or from before it was."""
    found, started = condition(pod, "Ready"), (pod.get("status") or {}).get("startTime")
    if found is None or not started:
        return True
    began, since = parse_time(started).timestamp(), found.get("lastTransitionTime")
    turned = parse_time(since).timestamp() if since else 0.0
    unready = found.get("status") == "False"
    if began + _CPU_INITIALIZATION_S > now:
        return unready or sample.time < turned + sample.window
    return unready and began + _INITIAL_READINESS_S > turned


def requests_of(pods: Iterable[Object], resource: str, container: str) -> dict[str, int]:
    """Return what each pod, or one container of it, requests of a resource in thousandths. Raises MetricError."""
    return {pod["metadata"]["name"]: _request(pod, resource, container) for pod in pods}


def _request(pod: Object, resource: str, container: str) -> int:
    spec, name = pod["spec"], pod["metadata"]["name"]
    if not container and (spec.get("resources") or {}).get("requests"):
        amounts = read_amounts(spec, "requests", lambda _, quantity: thousandths(quantity)).requests()
        if resource not in amounts:
            raise MetricError(f"missing pod-level request for {resource} in Pod {name}")
        return amounts[resource]
    sidecars = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]
    chosen = [one for one in (*spec["containers"], *sidecars) if container in ("", one["name"])]
    if not chosen:
        raise MetricError(f"container {container} not found in Pod {name}")
    total = 0
    for one in chosen:
        requests = (one.get("resources") or {}).get("requests") or {}
        if resource not in requests:
            raise MetricError(f"missing request for {resource} in container {one['name']} of Pod {name}")
        total += thousandths(requests[resource])
    return total


def replicas_by_utilization(
    pods: Sequence[Object],
    samples: Mapping[str, PodSample],
    target: int,
    current: int,
    *,
    resource: str,
    container: str,
    tolerances: Tolerances,
    now: float,
) -> Proposal:
    """Return the replicas for a target in percent of what pods request. Raises MetricError."""
    groups, counted = _counted(pods, samples, resource, now)
    requests = requests_of(pods, resource, container)

    def ratio(values: Mapping[str, int]) -> tuple[float, int, int]:
        known = [name for name in values if name in requests]
        asked, used = sum(requests[name] for name in known), sum(values[name] for name in known)
        if not asked:
            raise MetricError("no metrics returned matched known pods")
        percent = used * 100 // asked
        return percent / target, percent, used // len(known)

    def at_target(name: str) -> int:
        return requests[name] * max(100, target) // 100

    first, percent, average = ratio(counted)
    replicas = _adjusted(groups, counted, first, current, lambda values: ratio(values)[0], at_target, tolerances)
    return Proposal(replicas, average, percent)


def replicas_by_average(
    pods: Sequence[Object],
    samples: Mapping[str, PodSample],
    target: int,
    current: int,
    *,
    resource: str,
    tolerances: Tolerances,
    now: float,
) -> Proposal:
    """Return the replicas for a target value for each pod, in thousandths. Raises MetricError."""
    groups, counted = _counted(pods, samples, resource, now)

    def average(values: Mapping[str, int]) -> int:
        return sum(values.values()) // len(values)

    def ratio(values: Mapping[str, int]) -> float:
        return average(values) / target

    replicas = _adjusted(groups, counted, ratio(counted), current, ratio, lambda _: target, tolerances)
    return Proposal(replicas, average(counted))


def _counted(
    pods: Sequence[Object], samples: Mapping[str, PodSample], resource: str, now: float
) -> tuple[PodGroups, dict[str, int]]:
    if not pods:
        raise MetricError("no pods returned by selector while calculating replica count")
    groups = group_pods(pods, samples, resource, now)
    out = groups.ignored | groups.unready
    counted = {name: sample.value for name, sample in samples.items() if name not in out}
    if not counted:
        raise MetricError("did not receive metrics for targeted pods (pods might be unready)")
    return groups, counted


def _adjusted(
    groups: PodGroups,
    counted: Mapping[str, int],
    ratio: float,
    current: int,
    ratio_of: Callable[[Mapping[str, int]], float],
    at_target: Callable[[str], int],
    tolerances: Tolerances,
) -> int:
    """Return the replicas by a ratio, once more with the pods that have no sample that counts."""
    rising = bool(groups.unready) and ratio > 1.0
    if not rising and not groups.missing:
        return current if tolerances.hold(ratio) else _up(ratio * len(groups.ready))
    values = dict(counted)
    if ratio < 1.0:
        values |= {name: at_target(name) for name in groups.missing}
    elif ratio > 1.0:
        values |= dict.fromkeys(groups.missing, 0)
    if rising:
        values |= dict.fromkeys(groups.unready, 0)
    again = ratio_of(values)
    if tolerances.hold(again) or (ratio < 1.0 < again) or (again < 1.0 < ratio):
        return current
    replicas = _up(again * len(values))
    turned = (again < 1.0 and replicas > current) or (again > 1.0 and replicas < current)
    return current if turned else replicas


def replicas_by_value(
    pods: Sequence[Object], value: int, target: int, current: int, tolerances: Tolerances
) -> Proposal:
    """Return the replicas for a target value of all pods together. Raises MetricError.

    From zero replicas only the ratio counts, since there are no pods to multiply it with.
    """
    ratio = value / target
    if not current:
        return Proposal(_up(ratio), value)
    if tolerances.hold(ratio):
        return Proposal(current, value)
    if not pods:
        text = "no pods returned by selector while calculating replica count"
        raise MetricError(f"unable to calculate ready pods: {text}")
    ready = sum(phase(pod) == "Running" and is_ready(pod) for pod in pods)
    return Proposal(_up(ratio * ready), value)


def replicas_by_share(value: int, target: int, standing: int, tolerances: Tolerances) -> Proposal:
    """Return the replicas for a target value for each of the `standing` replicas that share one value."""
    if not standing:
        return Proposal(_up(value / target) if value else 0, 0)
    ratio = value / (target * standing)
    replicas = standing if tolerances.hold(ratio) else _up(value / target)
    return Proposal(replicas, math.ceil(value / standing))


def total(values: Iterable[int]) -> int:
    """Return the sum of values, at most the largest that the API knows."""
    return min(sum(values), _MOST_VALUE)


def _up(replicas: float) -> int:
    return min(math.ceil(replicas), MOST)
