"""Decide the next step of an autoscaler from its spec, its target and the values of its metrics. Pure.

The largest number that any metric asks for counts. A metric that cannot be read keeps the target from shrinking, and
where none can be read the target stays as it is.

Source: the documentation "Horizontal Pod Autoscaling"; the words are those of kube-controller-manager 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from kubekit.api.quantity import parse_quantity
from tinykube.apiserver.autoscaler_defaults import filled_behavior
from tinykube.controllers.autoscaling.behavior import Condition, History, limit
from tinykube.controllers.autoscaling.metrics import FailedMetric, MetricResult, MetricValues, ScaledPods, evaluate
from tinykube.controllers.autoscaling.replicas import Tolerances

Object = Mapping[str, Any]
_GOT: Final[Condition] = (
    "AbleToScale",
    "True",
    "SucceededGetScale",
    "the HPA controller was able to get the target's current scale",
)
_OFF: Final = "scaling is disabled since the replica count of the target is zero"
_UNABLE: Final = "the HPA was unable to compute the replica count: "
_COUNTED: Final = "the HPA was able to successfully calculate a replica count from "


class AutoscalingStep(msgspec.Struct, frozen=True, kw_only=True):
    """The next step of an autoscaler.

    Args:
        conditions: those to set, as (type, status, reason, message); a later one of a type replaces an earlier one.
        replicas: the number to set, if it has to change; `reason` says why.
        desired: `status.desiredReplicas`; None leaves it as it stands.
        metrics: `status.currentMetrics`.
        warnings: events, as (reason, message).
    """

    conditions: tuple[Condition, ...]
    history: History
    replicas: int | None = None
    reason: str = ""
    desired: int | None = None
    metrics: tuple[Object, ...] | None = None
    warnings: tuple[tuple[str, str], ...] = ()


def needs_metrics(spec: Object, current: int) -> bool:
    """Return whether the metrics of an autoscaler count for a target of `current` replicas."""
    return current > 0 and (spec.get("minReplicas") or 1) <= current <= spec["maxReplicas"]


def autoscale(
    spec: Object,
    target: ScaledPods,
    found: Sequence[MetricValues],
    history: History,
    now: float,
    unselected: tuple[str, str, str] | None = None,
) -> AutoscalingStep:
    """Decide the next step.

    Args:
        found: the values of each entry of `spec.metrics`; empty where `needs_metrics` is false.
        now: in seconds since the epoch.
        unselected: why the target's pods are unknown: the event's reason, the condition's message and the event's.
    """
    least, most, current = spec.get("minReplicas") or 1, spec["maxReplicas"], target.asked
    history = history.begun(current, now)
    if not current:
        off = ("ScalingActive", "False", "ScalingDisabled", _OFF)
        return AutoscalingStep(conditions=(_GOT, off), history=history, desired=0)
    if not needs_metrics(spec, current):
        wanted, side = (most, "above Spec.MaxReplicas") if current > most else (least, "below Spec.MinReplicas")
        return _change((), wanted, f"Current number of replicas {side}", None, (), history)
    behavior = spec.get("behavior")
    behavior = None if behavior is None else filled_behavior(behavior)
    metrics = spec.get("metrics") or ()
    if unselected is not None:
        reason, message, event = unselected
        condition = ("ScalingActive", "False", "InvalidSelector" if reason == "SelectorRequired" else reason, message)
        events = ((reason, event), ("FailedComputeMetricsReplicas", event))
        return AutoscalingStep(conditions=(_GOT, condition), history=history, warnings=events)
    best, statuses, failures = _evaluate_all(metrics, found, target, tolerances_of(behavior), now)
    warnings = tuple((failure.reason, failure.message) for failure in failures)
    if best is None or (failures and best.replicas < current):
        first = failures[0]
        count = f"invalid metrics ({len(failures)} invalid out of {len(metrics)})"
        condition = ("ScalingActive", "False", first.reason, _UNABLE + first.message)
        last = ("FailedComputeMetricsReplicas", f"{count}, first error is: {first.text}")
        return AutoscalingStep(
            conditions=(_GOT, condition), history=history, metrics=statuses, warnings=(*warnings, last)
        )
    active: Condition = ("ScalingActive", "True", "ValidMetricFound", _COUNTED + best.name)
    limited = limit(best.replicas, current, least, most, behavior, history, now)
    history = history.recommending(best.replicas, now)
    conditions = (active, *limited.conditions)
    if limited.replicas == current:
        return AutoscalingStep(
            conditions=(_GOT, *conditions), history=history, desired=current, metrics=statuses, warnings=warnings
        )
    reason = ""  # only an earlier recommendation changes the target
    if best.replicas != current:
        reason = f"{best.name} above target" if best.replicas > current else "All metrics below target"
    if behavior is not None:
        history = history.scaled(current, limited.replicas, now)
    return _change(conditions, limited.replicas, reason, statuses, warnings, history)


def tolerances_of(behavior: Object | None) -> Tolerances:
    """Return the tolerances of a behavior, or the usual ones."""
    named = {
        name: float(parse_quantity(rules["tolerance"]))
        for name, field in (("up", "scaleUp"), ("down", "scaleDown"))
        if (rules := (behavior or {}).get(field) or {}).get("tolerance") is not None
    }
    return Tolerances(**named)


def _evaluate_all(
    metrics: Sequence[Object],
    found: Sequence[MetricValues],
    target: ScaledPods,
    tolerances: Tolerances,
    now: float,
) -> tuple[MetricResult | None, tuple[Object, ...], list[FailedMetric]]:
    """Return the metric that asks for most replicas, the status of all, and the failures."""
    best: MetricResult | None = None
    statuses, failures = [], []
    for metric, values in zip(metrics, found, strict=True):
        try:
            result = evaluate(metric, values, target, tolerances, now)
        except FailedMetric as failure:
            statuses.append({"type": ""})  # as on a real cluster: an empty entry for what could not be read
            failures.append(failure)
            continue
        statuses.append(dict(result.status))
        if best is None or not best.replicas or result.replicas > best.replicas:
            best = result
    return best, tuple(statuses), failures


def _change(
    conditions: tuple[Condition, ...],
    replicas: int,
    reason: str,
    metrics: tuple[Object, ...] | None,
    warnings: tuple[tuple[str, str], ...],
    history: History,
) -> AutoscalingStep:
    done = ("AbleToScale", "True", "SucceededRescale")
    text = f"the HPA controller was able to update the target scale to {replicas}"
    return AutoscalingStep(
        conditions=(_GOT, *conditions, (*done, text)),
        history=history,
        replicas=replicas,
        reason=reason,
        desired=replicas,
        metrics=metrics,
        warnings=warnings,
    )
