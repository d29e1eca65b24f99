"""Looks at each HorizontalPodAutoscaler every 15 seconds, as the autoscaler of kube-controller-manager does.

A write of an autoscaler or of its target is not a reason for an earlier look, and the first look comes 15 seconds after
the autoscaler was created: users of a real cluster wait as long. Without autoscalers nothing is read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kubekit.api.durations import parse_time
from tinykube.apiserver.failure import ApiFailure, bad_request, no_such_resource, not_found
from tinykube.apiserver.kinds import Kind
from tinykube.apiserver.local_calls import LocalReader
from tinykube.apiserver.scales import scale_of, with_scale
from tinykube.apiserver.selectors import parse_labels
from tinykube.controllers.autoscaling.behavior import Condition, History
from tinykube.controllers.autoscaling.decide import AutoscalingStep, autoscale, needs_metrics
from tinykube.controllers.autoscaling.metrics import MetricValues, ScaledPods
from tinykube.controllers.autoscaling.sources import MetricSources
from tinykube.controllers.following import follow
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
Key = tuple[str, str]
SYNC_S: Final = 15.0  # --horizontal-pod-autoscaler-sync-period
_WORKERS: Final = 5  # --concurrent-horizontal-pod-autoscaler-syncs: one slow metrics API does not delay all
_KIND: Final = "HorizontalPodAutoscaler"
_USER: Final = "system:kube-controller-manager"
_UNGOT: Final = "the HPA controller was unable to get the target's current scale: "
_log = logging.getLogger("tinykube.controllers")


class AutoscalerMemory(msgspec.Struct):
    """The memory of one autoscaler: its history, and the selector of its target once that was read."""

    history: History = History()
    selector: str | None = None


class AutoscalingController:
    """All autoscalers of a cluster."""

    def __init__(self, registry: Registry, recorder: Recorder, sources: MetricSources | None = None) -> None:
        self._registry = registry
        self._recorder = recorder
        self._sources = sources or MetricSources(LocalReader(registry, _USER), self._plural)
        self._autoscalers = registry.resource(("autoscaling", "horizontalpodautoscalers"))
        self._memories: dict[Key, AutoscalerMemory] = {}
        self._workers: list[KeyWorker[Key]] = [KeyWorker(f"autoscaler {n}", self._look) for n in range(_WORKERS)]
        follow(registry, self._autoscalers, self._on_write)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return tuple(self._workers)

    def _on_write(self, event: str, obj: Object, old: Object | None) -> None:
        key = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        if event == "DELETED":
            self._memories.pop(key, None)
            return
        self._memories.setdefault(key, AutoscalerMemory())
        self._workers[hash(key) % _WORKERS].later(key, SYNC_S)

    def _plural(self, api_version: str, kind: str) -> str | None:
        found = self._kind(api_version, kind)
        return None if found is None else found.info.qualified

    def _kind(self, api_version: str, kind: str) -> Kind | None:
        """Return a kind of a group in the version that is named, or in any other."""
        found = self._registry.kinds.of(api_version, kind)
        group = api_version.rpartition("/")[0]
        others = (one for one in self._registry.kinds if (one.info.group, one.info.kind) == (group, kind))
        return found or next(others, None)

    async def _look(self, key: Key) -> float | None:
        obj, memory = self._registry.get(self._autoscalers, *key), self._memories.get(key)
        if obj is None or memory is None:
            return None
        try:
            await self._advance(key, obj, memory)
        except ApiFailure as error:
            _log.warning("autoscaler %s/%s: %s", *key, error)
        return SYNC_S

    async def _advance(self, key: Key, obj: Object, memory: AutoscalerMemory) -> None:
        reference, spec = obj["spec"]["scaleTargetRef"], obj["spec"]
        try:
            kind, scale = self._scale(key[0], reference)
        except ApiFailure as error:
            self._recorder.record(obj, _KIND, "FailedGetScale", error.message, "Warning")
            await self._write_status(key, (("AbleToScale", "False", "FailedGetScale", _UNGOT + error.message),), {})
            return
        current, standing = scale["spec"].get("replicas") or 0, scale["status"].get("replicas") or 0
        memory.selector = scale["status"].get("selector") or ""
        unselected, pods, found = None, list[Object](), list[MetricValues]()
        if needs_metrics(spec, current):
            unselected, pods = self._selected(key, memory.selector)
            if unselected is None:
                metrics = spec.get("metrics") or ()
                found = [await self._sources.read(metric, key[0], memory.selector) for metric in metrics]
        now = parse_time(self._registry.now()).timestamp()
        target = ScaledPods(pods, current, standing, key[0])
        step = autoscale(spec, target, found, memory.history, now, unselected)
        for reason, message in step.warnings:
            self._recorder.record(obj, _KIND, reason, message, "Warning")
        await self._carry_out(key, obj, kind, current, step, memory)

    def _scale(self, namespace: str, reference: Object) -> tuple[Kind, Object]:
        """Return the kind and the Scale of a target. Raises ApiFailure."""
        api_version, name = reference.get("apiVersion") or "", reference["name"]
        kind = self._kind(api_version, reference["kind"])
        if kind is None:
            group = api_version.rpartition("/")[0]
            raise bad_request(f'no matches for kind "{reference["kind"]}" in group "{group}"')
        if kind.rules.scale is None:
            raise no_such_resource()
        scaled = self._registry.get(kind.info, namespace, name)
        if scaled is None:
            raise not_found(kind.info, name)
        return kind, scale_of(kind, scaled)

    def _selected(self, key: Key, selector: str) -> tuple[tuple[str, str, str] | None, list[Object]]:
        """Return why the pods of a target are unknown, or None, and those pods."""
        if not selector:
            text = "selector is required"
            return ("SelectorRequired", "the HPA target's scale is missing a selector", text), []
        try:
            pods = self._registry.list("pods", key[0], labels=selector)
        except ApiFailure as error:
            text = f"couldn't convert selector into a corresponding internal selector object: {error}"
            return ("InvalidSelector", text, text), []
        rivals = [
            f"{other[0]}/{other[1]}"
            for other, memory in sorted(self._memories.items())
            if other[0] == key[0] and memory.selector and (other == key or _selects(memory.selector, pods))
        ]
        if pods and len(rivals) > 1:
            text = f"pods by selector {selector} are controlled by multiple HPAs: [{' '.join(rivals)}]"
            return ("AmbiguousSelector", text, text), []
        return None, list(pods)

    async def _carry_out(
        self, key: Key, obj: Object, kind: Kind, current: int, step: AutoscalingStep, memory: AutoscalerMemory
    ) -> None:
        name, conditions = obj["spec"]["scaleTargetRef"]["name"], step.conditions
        numbers: dict[str, Any] = {"currentReplicas": current, "currentMetrics": step.metrics and list(step.metrics)}
        if step.replicas is not None:
            why = f"New size: {step.replicas}; reason: {step.reason}"
            try:
                # The metrics may have taken seconds: the number goes on the target that stands now.
                if (before := self._registry.get(kind.info, key[0], name)) is None:
                    raise not_found(kind.info, name)
                wanted = {"spec": {"replicas": step.replicas}}
                await self._registry.update(kind.info, key[0], name, with_scale(kind, before, wanted))
            except ApiFailure as error:
                self._recorder.record(obj, _KIND, "FailedRescale", f"{why}; error: {error}", "Warning")
                text = f"the HPA controller was unable to update the target scale: {error}"
                failed = ("AbleToScale", "False", "FailedUpdateScale", text)
                conditions = (*(one for one in conditions if one[2] != "SucceededRescale"), failed)
                await self._write_status(key, conditions, numbers)
                return
            self._recorder.record(obj, _KIND, "SuccessfulRescale", why)
            numbers["lastScaleTime"] = self._registry.now()
        memory.history = step.history
        if step.desired is not None:
            numbers["desiredReplicas"] = step.desired
        await self._write_status(key, conditions, numbers)

    async def _write_status(self, key: Key, conditions: Iterable[Condition], numbers: Mapping[str, Any]) -> None:
        # The metrics may have taken seconds: the status goes on the object that stands now.
        obj = self._registry.get(self._autoscalers, *key)
        if obj is None:
            return
        standing = obj.get("status") or {}
        listed = {one["type"]: one for one in standing.get("conditions") or ()}
        for type_, status, reason, message in conditions:
            before = listed.get(type_) or {}
            since = before["lastTransitionTime"] if before.get("status") == status else self._registry.now()
            new = {"type": type_, "status": status, "lastTransitionTime": since, "reason": reason, "message": message}
            listed[type_] = new
        usual = {"currentMetrics": None, "desiredReplicas": 0}
        status_ = {**usual, **standing, **numbers, "conditions": [*listed.values()]}
        if not status_.get("currentReplicas"):
            status_.pop("currentReplicas", None)  # as Go writes a field that may be left out
        if status_ == standing:
            return
        try:
            body = {**obj, "status": status_}
            await self._registry.update(self._autoscalers, *key, body, subresource="status")
        except ApiFailure as error:
            if error.status != 404:
                raise


def _selects(selector: str, pods: Iterable[Object]) -> bool:
    parsed = parse_labels(selector)
    return parsed is not None and any(parsed.matches(pod["metadata"].get("labels")) for pod in pods)
