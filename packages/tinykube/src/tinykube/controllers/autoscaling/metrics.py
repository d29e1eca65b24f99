"""Turn one metric of an autoscaler and its values into replicas, a status and the words about a failure. Pure.

Source: the API documentation of autoscaling/v2; the words are those of kube-controller-manager 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from kubekit.api.quantity import spell_quantity
from tinykube.controllers.autoscaling.replicas import (
    MetricError,
    PodSample,
    Proposal,
    Tolerances,
    replicas_by_average,
    replicas_by_share,
    replicas_by_utilization,
    replicas_by_value,
    thousandths,
    total,
)

Object = Mapping[str, Any]
_NO_TARGET: Final = "neither a value target nor an average value target was set"


class MetricValues(msgspec.Struct, frozen=True):
    """The answer of a metrics API for one metric: samples by pod, or values of other objects in thousandths.

    `error` says why there are none.
    """

    samples: Mapping[str, PodSample] = {}
    values: tuple[int, ...] = ()
    error: str = ""


class ScaledPods(msgspec.Struct, frozen=True):
    """The target of an autoscaler: its pods, the replicas that its spec asks for, and those that its status has."""

    pods: Sequence[Object]
    asked: int
    standing: int
    namespace: str


class MetricResult(msgspec.Struct, frozen=True):
    """The replicas that a metric asks for, its name in messages, and its entry in `status.currentMetrics`."""

    replicas: int
    name: str
    status: Object


class FailedMetric(Exception):
    """A metric without a result: the reason and message of its event, and the text for all metrics together."""

    def __init__(self, reason: str, message: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.message = message
        self.text = text


def evaluate(spec: Object, found: MetricValues, target: ScaledPods, tolerances: Tolerances, now: float) -> MetricResult:
    """Return the result of one entry of `spec.metrics`. Raises FailedMetric."""
    kind = spec["type"]
    source = spec[kind[0].lower() + kind[1:]]
    evaluation = _KINDS[kind]
    try:
        return evaluation(source, found, target, tolerances, now)
    except MetricError as error:
        text = {
            "Object": "failed to get object metric value",
            "Pods": "failed to get pods metric value",
            "Resource": f"failed to get {source.get('name')} resource metric value",
            "ContainerResource": f"failed to get {source.get('container')} container metric value",
            "External": f"failed to get {(source.get('metric') or {}).get('name')} external metric value",
        }[kind]
        raise FailedMetric(f"FailedGet{kind}Metric", *_words(kind, source, str(error), text)) from None


def _words(kind: str, source: Object, error: str, text: str) -> tuple[str, str]:
    """Return the words of the event and those for all metrics: with a wider description for two kinds of targets."""
    middle = ""
    if kind == "External" and error != _invalid("external"):
        name = source["metric"]["name"]
        average = source["target"].get("averageValue") is not None
        middle = f"failed to get {name} external metric: " if average else f"failed to get external metric {name}: "
    if kind == "Object" and source["target"]["type"] == "AverageValue" and error != _invalid("object"):
        middle = f"failed to get {source['metric']['name']} object metric: "
    return error, f"{text}: {middle}{error}"


def _invalid(kind: str) -> str:
    return f"invalid {kind} metric source: {_NO_TARGET}"


def _resource(
    source: Object, found: MetricValues, target: ScaledPods, tolerances: Tolerances, now: float
) -> MetricResult:
    name, wanted, container = source["name"], source["target"], source.get("container") or ""
    kind = "containerResource" if container else "resource"
    average = wanted.get("averageValue")
    what = f"{name} {'utilization' if average is None else 'usage'}"
    if average is None and wanted.get("averageUtilization") is None:
        neither = "neither an average utilization target nor an average value (usage) target was set"
        raise MetricError(f"invalid resource metric source: {neither}")
    try:
        if found.error:
            raise MetricError(f"unable to get metrics for resource {name}: {found.error}")
        if average is not None:
            proposal = replicas_by_average(
                target.pods,
                found.samples,
                thousandths(average),
                target.asked,
                resource=name,
                tolerances=tolerances,
                now=now,
            )
        else:
            proposal = replicas_by_utilization(
                target.pods,
                found.samples,
                wanted["averageUtilization"],
                target.asked,
                resource=name,
                container=container,
                tolerances=tolerances,
                now=now,
            )
    except MetricError as error:
        raise MetricError(f"failed to get {what}: {error}") from None
    current: dict[str, Any] = {"averageValue": _spelled(proposal.average, binary=name == "memory")}
    if proposal.utilization is not None:
        current["averageUtilization"] = proposal.utilization
    entry = {"name": name, **({"container": container} if container else {}), "current": current}
    title = f"{name} resource"
    if average is None:
        title = f"{name} {'container ' if container else ''}resource utilization (percentage of request)"
    return MetricResult(proposal.replicas, title, {"type": kind[0].upper() + kind[1:], kind: entry})


def _pods(source: Object, found: MetricValues, target: ScaledPods, tolerances: Tolerances, now: float) -> MetricResult:
    metric = source["metric"]
    if found.error:
        raise MetricError(f"unable to get metric {metric['name']}: {found.error}")
    wanted = thousandths(source["target"].get("averageValue") or 0)
    proposal = replicas_by_average(
        target.pods, found.samples, wanted, target.asked, resource="", tolerances=tolerances, now=now
    )
    entry = {"metric": metric, "current": {"averageValue": _spelled(proposal.average)}}
    return MetricResult(proposal.replicas, f"pods metric {metric['name']}", {"type": "Pods", "pods": entry})


def _object(
    source: Object, found: MetricValues, target: ScaledPods, tolerances: Tolerances, now: float
) -> MetricResult:
    metric, wanted, described = source["metric"], source["target"], source["describedObject"]
    if found.error:
        # NB: the order of these words is that of a real controller, whatever was meant.
        where = f"{described['kind']} on {target.namespace} {described['name']}/{found.error}"
        raise MetricError(f"unable to get metric {metric['name']}: {where}")
    average = wanted["type"] == "AverageValue"
    proposal = _shared("object", wanted, found.values[0], target, tolerances, average=average)
    entry = {"describedObject": described, "metric": metric, "current": _current(proposal, average=average)}
    name = _external_name(metric) if average else f"{described['kind']} metric {metric['name']}"
    return MetricResult(proposal.replicas, name, {"type": "Object", "object": entry})


def _external(
    source: Object, found: MetricValues, target: ScaledPods, tolerances: Tolerances, now: float
) -> MetricResult:
    metric, wanted = source["metric"], source["target"]
    if found.error:
        name = f"{target.namespace}/{metric['name']}/{selector_words(metric.get('selector'))}"
        raise MetricError(f"unable to get external metric {name}: {found.error}")
    average = wanted.get("averageValue") is not None
    proposal = _shared("external", wanted, total(found.values), target, tolerances, average=average)
    entry = {"metric": metric, "current": _current(proposal, average=average)}
    return MetricResult(proposal.replicas, _external_name(metric), {"type": "External", "external": entry})


def _shared(
    kind: str, wanted: Object, value: int, target: ScaledPods, tolerances: Tolerances, *, average: bool
) -> Proposal:
    amount = wanted.get("averageValue" if average else "value")
    if amount is None:
        raise MetricError(_invalid(kind))
    if average:
        return replicas_by_share(value, thousandths(amount), target.standing, tolerances)
    return replicas_by_value(target.pods, value, thousandths(amount), target.asked, tolerances)


def _current(proposal: Proposal, *, average: bool) -> Object:
    return {"averageValue" if average else "value": _spelled(proposal.average)}


def _external_name(metric: Object) -> str:
    return f"external metric {metric['name']}({selector_words(metric.get('selector'))})"


def selector_words(selector: Object | None) -> str:
    """Return a label selector as Go prints it, which conditions and events contain."""
    if selector is None:
        return "nil"
    labels = "".join(f"{key}: {value}," for key, value in sorted((selector.get("matchLabels") or {}).items()))
    terms = "".join(
        f"LabelSelectorRequirement{{Key:{one['key']},Operator:{one['operator']},"
        f"Values:[{' '.join(one.get('values') or ())}],}},"
        for one in selector.get("matchExpressions") or ()
    )
    requirements = f"[]LabelSelectorRequirement{{{terms}}}"
    return f"&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:{requirements},}}"


def _spelled(value: int, *, binary: bool = False) -> str:
    return spell_quantity(Decimal(value) / 1000, binary=binary)


_Evaluation = Callable[[Object, MetricValues, ScaledPods, Tolerances, float], MetricResult]
_KINDS: Final[Mapping[str, _Evaluation]] = {
    "Resource": _resource,
    "ContainerResource": _resource,
    "Pods": _pods,
    "Object": _object,
    "External": _external,
}
