"""Pods by who made them and where they are, kept once for all controllers, and what a pod's status means.

Fed synchronously by the API server before any controller hears of the same write, so a controller that looks here sees
at least the writes that it heard of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kubekit.api.core import has_ended
from kubekit.api.durations import parse_time
from tinykube.controllers.following import follow

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]


def controller_of(obj: Object) -> Object | None:
    """The owner reference of the controller, if there is one."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return reference  # type: ignore[no-any-return]  # a JSON object
    return None


def phase(pod: Object) -> str:
    return (pod.get("status") or {}).get("phase") or "Pending"


def is_finished(pod: Object) -> bool:
    return has_ended(phase(pod))


def is_terminating(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_active(pod: Object) -> bool:
    """Counts toward its controller's replicas: neither finished nor on its way out."""
    return not is_finished(pod) and not is_terminating(pod)


def condition(obj: Object, type: str) -> Object | None:
    for entry in (obj.get("status") or {}).get("conditions") or ():
        if entry.get("type") == type:
            return entry  # type: ignore[no-any-return]  # a JSON object
    return None


def is_ready(pod: Object) -> bool:
    found = condition(pod, "Ready")
    return found is not None and found.get("status") == "True"


def available_in(pod: Object, min_ready_seconds: int, now: str) -> float | None:
    """Seconds until a ready pod counts as available (0: it does); None when it is not ready."""
    found = condition(pod, "Ready")
    if found is None or found.get("status") != "True":
        return None
    if not min_ready_seconds:
        return 0.0
    since = found.get("lastTransitionTime")
    if not since:
        return float(min_ready_seconds)
    ready_for = (parse_time(now) - parse_time(since)).total_seconds()
    return max(0.0, min_ready_seconds - ready_for)


async def mark_disrupted(registry: Registry, pod: Object, reason: str, message: str) -> None:
    """Write the condition DisruptionTarget of a pod that is about to be evicted. Raises ApiFailure."""
    meta, status = pod["metadata"], pod.get("status") or {}
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": registry.now(),
        "observedGeneration": meta.get("generation", 1),
    }
    others = [one for one in status.get("conditions") or () if one["type"] != "DisruptionTarget"]
    body = {**pod, "status": {**status, "conditions": [*others, condition]}}
    await registry.update("pods", meta["namespace"], meta["name"], body, subresource="status")


class PodIndex:
    """Pods by controller uid, by node and (those without a controller) by namespace; each maps names to objects.

    Inner keys are `namespace/name` in `on_node`, plain names elsewhere.
    """

    def __init__(self, registry: Registry) -> None:
        self._owned: dict[str, dict[str, Object]] = {}
        self._on_node: dict[str, dict[str, Object]] = {}
        self._orphans: dict[str, dict[str, Object]] = {}
        follow(registry, registry.resource("pods"), self._follow)

    def owned(self, uid: str) -> Mapping[str, Object]:
        return self._owned.get(uid, {})

    def on_node(self, node: str) -> Mapping[str, Object]:
        return self._on_node.get(node, {})

    def nodes(self) -> list[str]:
        """Every node name that some pod is bound to."""
        return list(self._on_node)

    def orphans(self, namespace: str) -> Mapping[str, Object]:
        return self._orphans.get(namespace, {})

    def _follow(self, event: str, obj: Object, old: Object | None) -> None:
        if old is not None:
            self._place(old, None)
        self._place(obj, None if event == "DELETED" else obj)

    def _place(self, pod: Object, value: Object | None) -> None:
        meta = pod["metadata"]
        owner = controller_of(pod)
        if owner is not None:
            _set(self._owned, owner["uid"], meta["name"], value)
        else:
            _set(self._orphans, meta["namespace"], meta["name"], value)
        node = pod["spec"].get("nodeName")
        if node:
            _set(self._on_node, node, f"{meta['namespace']}/{meta['name']}", value)


def _set(index: dict[str, dict[str, Object]], bucket: str, key: str, value: Object | None) -> None:
    if value is not None:
        index.setdefault(bucket, {})[key] = value
        return
    inner = index.get(bucket)
    if inner is not None:
        inner.pop(key, None)
        if not inner:
            del index[bucket]
