"""HorizontalPodAutoscalers: their bounds, and what they say where no metrics API is served.

This cluster serves no metrics API, so an autoscaler computes no number from metrics. As on a real cluster without that
API, it brings its target's replicas within its bounds, and its conditions say that it has no metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.scales import scale_of, with_scale
from tinykube.controllers.everything import Everything
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_KIND: Final = "HorizontalPodAutoscaler"
_GOT: Final = (
    "AbleToScale",
    "True",
    "SucceededGetScale",
    "the HPA controller was able to get the target's current scale",
)
_OFF: Final = "scaling is disabled since the replica count of the target is zero"
_NO_SUCH: Final = "the server could not find the requested resource (get pods.metrics.k8s.io)"


class AutoscalingStep(msgspec.Struct, frozen=True):
    """The replicas to set, if they have to change, and why; conditions as (type, status, reason, message)."""

    conditions: tuple[tuple[str, str, str, str], ...]
    replicas: int | None = None
    reason: str = ""


def autoscale(spec: Object, current: int) -> AutoscalingStep:
    """Decide the next step of an autoscaler whose target has `current` replicas."""
    least, most = spec.get("minReplicas") or 1, spec["maxReplicas"]
    if not current:
        return AutoscalingStep((_GOT, ("ScalingActive", "False", "ScalingDisabled", _OFF)))
    if least <= current <= most:
        return AutoscalingStep((_GOT, ("ScalingActive", "False", *_no_metrics(spec.get("metrics") or ()))))
    wanted, side = (most, "above Spec.MaxReplicas") if current > most else (least, "below Spec.MinReplicas")
    text = f"the HPA controller was able to update the target scale to {wanted}"
    done = ("AbleToScale", "True", "SucceededRescale", text)
    return AutoscalingStep((done,), wanted, f"Current number of replicas {side}")


def _no_metrics(metrics: Iterable[Object]) -> tuple[str, str]:
    """Return the reason and message for metrics that no API serves."""
    prefix = "the HPA was unable to compute the replica count: "
    for metric in metrics:
        if metric["type"] == "Resource":
            name, target = metric["resource"]["name"], metric["resource"].get("target") or {}
            what = f"{name} utilization" if target.get("type") == "Utilization" else f"{name} usage"
            text = f"unable to get metrics for resource {name}: unable to fetch metrics from resource metrics API"
            return "FailedGetResourceMetric", f"{prefix}failed to get {what}: {text}: {_NO_SUCH}"
        return f"FailedGet{metric['type']}Metric", f"{prefix}no metrics API is served"
    return "InvalidMetricSourceType", f"{prefix}no metrics are named"


class AutoscalingController:
    """Looks at an autoscaler after each write of it or of its target."""

    def __init__(self, registry: Registry, everything: Everything, recorder: Recorder) -> None:
        self._registry = registry
        self._recorder = recorder
        self._autoscalers = registry.resource(("autoscaling", "horizontalpodautoscalers"))
        self._targets: dict[tuple[str, str, str], set[str]] = {}  # namespace, kind and name: names of autoscalers
        self.worker: KeyWorker[tuple[str, str]] = KeyWorker("autoscaler", self._look)
        everything.listen(self._on_write)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _on_write(self, info: ResourceInfo, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        namespace = meta.get("namespace") or ""
        for name in self._targets.get((namespace, info.kind, meta["name"]), ()):
            self.worker.add((namespace, name))
        if info.plural != self._autoscalers.plural or info.group != self._autoscalers.group:
            return
        for version, current in ((old, False), (obj, event != "DELETED")):
            if version is not None:
                target = version["spec"]["scaleTargetRef"]
                names = self._targets.setdefault((namespace, target["kind"], target["name"]), set())
                (names.add if current else names.discard)(meta["name"])
        self.worker.add((namespace, meta["name"]))

    async def _look(self, key: tuple[str, str]) -> None:
        obj = self._registry.get(self._autoscalers, *key)
        if obj is None:
            return
        target = obj["spec"]["scaleTargetRef"]
        kind = self._registry.kinds.of(target.get("apiVersion") or "", target["kind"])
        scaled = self._registry.get(kind.info, key[0], target["name"]) if kind is not None else None
        if kind is None or kind.rules.scale is None or scaled is None:
            found = f'{target["kind"].lower()}s "{target["name"]}" not found'
            text = f"the HPA controller was unable to get the target's current scale: {found}"
            await self._write_status(obj, (("AbleToScale", "False", "FailedGetScale", text),), {})
            return
        scale = scale_of(kind, scaled)
        current, numbers = scale["spec"].get("replicas") or 0, dict[str, Any]()
        step = autoscale(obj["spec"], current)
        if step.replicas is not None:
            wanted = {**scale, "spec": {"replicas": step.replicas}}
            await self._registry.update(kind.info, key[0], target["name"], with_scale(kind, scaled, wanted))
            self._recorder.record(obj, _KIND, "SuccessfulRescale", f"New size: {step.replicas}; reason: {step.reason}")
            numbers = {"desiredReplicas": step.replicas, "lastScaleTime": self._registry.now()}
        elif not current:
            numbers = {"desiredReplicas": 0}
        else:
            # As on a real cluster: an empty entry for each metric that could not be read.
            numbers = {"currentMetrics": [{"type": ""} for _ in obj["spec"].get("metrics") or ()] or None}
        await self._write_status(obj, step.conditions, {"currentReplicas": current, **numbers})

    async def _write_status(
        self, obj: Object, conditions: Iterable[tuple[str, str, str, str]], numbers: Mapping[str, Any]
    ) -> None:
        meta, standing = obj["metadata"], obj.get("status") or {}
        listed = {c["type"]: c for c in standing.get("conditions") or ()}
        for type_, status, reason, message in conditions:
            before = listed.get(type_) or {}
            since = before["lastTransitionTime"] if before.get("status") == status else self._registry.now()
            new = {"type": type_, "status": status, "lastTransitionTime": since, "reason": reason, "message": message}
            listed[type_] = new
        status_ = {
            "currentMetrics": None,
            "desiredReplicas": 0,
            **standing,
            **numbers,
            "conditions": [*listed.values()],
        }
        if status_ == standing:
            return
        try:
            body = {**obj, "status": status_}
            await self._registry.update(self._autoscalers, meta["namespace"], meta["name"], body, subresource="status")
        except ApiFailure as error:
            if error.status != 404:
                raise
