"""Validates Deployments, ReplicaSets, DaemonSets, StatefulSets and ReplicationControllers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tinykube.apiserver.failure import Cause, forbidden_value, invalid_value, not_supported, required
from tinykube.apiserver.selectors import selector_of
from tinykube.apiserver.validation.names import validate_labels, validate_selector
from tinykube.apiserver.validation.pods import validate_pod_spec
from tinykube.apiserver.validation.tables import (
    Object,
    RuleTable,
    immutable,
    not_negative,
    number_or_percent,
    one_of,
)


def matches_template(selector: Object | None, template: Object, where: str) -> Iterator[Cause]:
    """Find out whether a selector selects the pods of a template, as every controller of pods demands."""
    labels = (template.get("metadata") or {}).get("labels")
    found = selector_of(selector) if selector else None
    if found is None or not found.matches(labels):
        text = "`selector` does not match template `labels`"
        yield invalid_value(f"{where}.template.metadata.labels", labels, text)


def validate_template(template: Object, where: str) -> Iterator[Cause]:
    labels = (template.get("metadata") or {}).get("labels") or {}
    yield from validate_labels(labels, f"{where}.labels")
    yield from validate_pod_spec(template.get("spec"), f"{where}.spec", is_template=True)


def _always(spec: Object, kind: str) -> Iterator[Cause]:
    """Pods of these controllers run until a user deletes them."""
    pod = (spec.get("template") or {}).get("spec") or {}
    policy = pod.get("restartPolicy", "Always")
    if policy != "Always":
        yield not_supported("spec.template.spec.restartPolicy", policy, ("Always",))
    if pod.get("activeDeadlineSeconds") is not None:
        text = f"activeDeadlineSeconds in {kind} is not Supported"
        yield forbidden_value("spec.template.spec.activeDeadlineSeconds", text)


def _selector(spec: Object, kind: str) -> Iterator[Cause]:
    """The selector, and whether the template matches it."""
    selector = spec.get("selector")
    if selector is None:
        yield required("spec.selector")
        yield from matches_template(None, spec.get("template") or {}, "spec")
        return
    wrong = validate_selector(selector, "spec.selector")
    yield from wrong
    if wrong:
        yield invalid_value("spec.selector", selector, "invalid label selector")
    elif not (selector.get("matchLabels") or selector.get("matchExpressions")):
        yield invalid_value("spec.selector", {}, f"empty selector is invalid for {kind}")
    else:
        yield from matches_template(selector, spec.get("template") or {}, "spec")


def _is_none(value: Any) -> bool:
    """Return whether a number or percentage of pods is zero."""
    return value in (0, "0%")


_PACE: Final = RuleTable(("maxUnavailable", number_or_percent), ("maxSurge", number_or_percent))
_NUMBERS: Final = RuleTable(
    ("replicas", not_negative), ("minReadySeconds", not_negative), ("revisionHistoryLimit", not_negative)
)


def validate_deployment(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if old is not None and spec == old.get("spec"):
        return []
    causes = [*_NUMBERS(spec, "spec"), *_selector(spec, "deployment")]
    causes += validate_template(spec.get("template") or {}, "spec.template")
    causes += _always(spec, "ReplicaSet")
    causes += _deployment_strategy(spec.get("strategy") or {}, "spec.strategy")
    deadline, ready = spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds") or 0
    if deadline is not None:
        causes += not_negative(deadline, "spec.progressDeadlineSeconds")
        if deadline <= ready:
            causes.append(
                invalid_value("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds")
            )
    return causes if old is None else [*causes, *immutable(spec, old["spec"], "selector", where="spec")]


def _deployment_strategy(strategy: Object, where: str) -> Iterator[Cause]:
    kind, rolling = strategy.get("type"), strategy.get("rollingUpdate")
    if kind == "Recreate":
        if rolling is not None:
            yield forbidden_value(f"{where}.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'")
    elif kind != "RollingUpdate":
        yield not_supported(where, {"Type": kind, "RollingUpdate": rolling}, ("Recreate", "RollingUpdate"))
    else:
        pace = rolling or {}
        yield from _PACE(pace, f"{where}.rollingUpdate")
        if _is_none(pace.get("maxUnavailable")) and _is_none(pace.get("maxSurge")):
            yield invalid_value(f"{where}.rollingUpdate.maxUnavailable", 0, "may not be 0 when `maxSurge` is 0")


def validate_replica_set(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if old is not None and spec == old.get("spec"):
        return []
    causes = [*_NUMBERS(spec, "spec"), *_selector(spec, "deployment")]
    causes += validate_template(spec.get("template") or {}, "spec.template")
    causes += _always(spec, "ReplicaSet")
    return causes if old is None else [*causes, *immutable(spec, old["spec"], "selector", where="spec")]


def validate_daemon_set(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if old is not None and spec == old.get("spec"):
        return []
    selector = spec.get("selector")
    causes = validate_selector(selector, "spec.selector") if selector is not None else []
    if not causes:
        causes += matches_template(selector, spec.get("template") or {}, "spec")
    if selector is not None and not selector:
        causes.append(invalid_value("spec.selector", {}, "empty selector is invalid for daemonset"))
    causes += validate_template(spec.get("template") or {}, "spec.template")
    causes += _always(spec, "DaemonSet")
    causes += _daemon_strategy(spec.get("updateStrategy") or {}, "spec.updateStrategy")
    causes += _NUMBERS(spec, "spec")
    return causes if old is None else [*causes, *immutable(spec, old["spec"], "selector", where="spec")]


def _daemon_strategy(strategy: Object, where: str) -> Iterator[Cause]:
    kind, rolling = strategy.get("type"), strategy.get("rollingUpdate")
    if kind == "RollingUpdate":
        pace = rolling or {}
        yield from _PACE(pace, f"{where}.rollingUpdate")
        unavailable, surge = pace.get("maxUnavailable"), pace.get("maxSurge")
        if not _is_none(unavailable) and not _is_none(surge):
            text = "may not be set when maxUnavailable is non-zero"
            yield invalid_value(f"{where}.rollingUpdate.maxSurge", surge, text)
        if _is_none(unavailable) and _is_none(surge):
            yield required(f"{where}.rollingUpdate.maxUnavailable", "cannot be 0 when maxSurge is 0")
    elif kind != "OnDelete":
        yield not_supported(where, {"Type": kind, "RollingUpdate": rolling}, ("RollingUpdate", "OnDelete"))


_RETENTION: Final = one_of("Retain", "Delete")
_STATEFUL: Final = RuleTable(
    ("ordinals", RuleTable(("start", not_negative))),
    ("persistentVolumeClaimRetentionPolicy", RuleTable(("whenDeleted", _RETENTION), ("whenScaled", _RETENTION))),
)
_STATEFUL_MUTABLE: Final = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)


def validate_stateful_set(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if old is not None and spec == old.get("spec"):
        return []
    causes: list[Cause] = []
    policy = spec.get("podManagementPolicy")
    if policy not in ("OrderedReady", "Parallel"):
        causes.append(invalid_value("spec.podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'"))
    strategy = spec.get("updateStrategy") or {}
    rolling = strategy.get("rollingUpdate") or {}
    if strategy.get("type") not in ("RollingUpdate", "OnDelete"):
        whole = {"Type": strategy.get("type"), "RollingUpdate": strategy.get("rollingUpdate")}
        causes.append(invalid_value("spec.updateStrategy", whole, "must be 'RollingUpdate' or 'OnDelete'"))
    elif rolling.get("partition") is not None:
        causes += not_negative(rolling["partition"], "spec.updateStrategy.rollingUpdate.partition")
    causes += _STATEFUL(spec, "spec")
    causes += _NUMBERS(spec, "spec")
    causes += _selector(spec, "statefulset")
    causes += validate_template(_with_claims(spec), "spec.template")
    causes += _always(spec, "StatefulSet")
    if old is not None:
        before = old["spec"]
        if any(spec.get(name) != before.get(name) for name in {*spec, *before} if name not in _STATEFUL_MUTABLE):
            listed = ", ".join(f"'{name}'" for name in _STATEFUL_MUTABLE[:-1])
            text = f"updates to statefulset spec for fields other than {listed} and '{_STATEFUL_MUTABLE[-1]}' "
            text += "are forbidden"
            causes.append(forbidden_value("spec", text))
    return causes


def _with_claims(spec: Object) -> Object:
    """Return the template of a StatefulSet with a volume for each of its claims, as its pods have them."""
    template: Object = spec.get("template") or {}
    pod = template.get("spec")
    named = [(claim.get("metadata") or {}).get("name") for claim in spec.get("volumeClaimTemplates") or ()]
    claims = [name for name in named if name]
    if not isinstance(pod, dict) or not claims:
        return template
    own = [volume for volume in pod.get("volumes") or () if volume.get("name") not in claims]
    return {**template, "spec": {**pod, "volumes": [*own, *({"name": name, "emptyDir": {}} for name in claims)]}}


def validate_replication_controller(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj.get("spec") or {}
    if old is not None and spec == old.get("spec"):
        return []
    template = spec.get("template")
    causes = [*_NUMBERS(spec, "spec")]
    if not spec.get("selector"):
        causes.append(required("spec.selector"))
    if template is None:
        return [*causes, required("spec.template")]
    causes += matches_template({"matchLabels": spec.get("selector") or {}}, template, "spec")
    return [*causes, *validate_template(template, "spec.template"), *_always(spec, "ReplicationController")]
