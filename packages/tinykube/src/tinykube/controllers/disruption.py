"""The status of PodDisruptionBudgets: how many pods an eviction may take now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kubekit.scheduling.selectors import Selector, compile_selector
from tinykube.controllers import pods as podstate
from tinykube.controllers.following import follow
from tinykube.controllers.templates import scaled
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_SCALABLE: Final = {
    "ReplicaSet": "replicasets",
    "ReplicationController": "replicationcontrollers",
    "StatefulSet": "statefulsets",
}


def numbers(spec: Object, pods: Iterable[Object], expected: int) -> dict[str, int]:
    """The four numbers of the status. `expected`: how many pods their controllers want."""
    pods = [pod for pod in pods if podstate.is_active(pod)]
    healthy = sum(podstate.is_ready(pod) for pod in pods)
    if spec.get("maxUnavailable") is not None:
        desired = max(0, expected - scaled(spec["maxUnavailable"], expected, up=True))
    else:
        minimum = spec.get("minAvailable", 1)
        if isinstance(minimum, int):
            # As in Kubernetes: an absolute minimum needs no controller to say how many there should be.
            expected, desired = len(pods), minimum
        else:
            desired = scaled(minimum, expected, up=True)
    return {
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "disruptionsAllowed": max(0, healthy - desired) if expected else 0,
    }


class DisruptionController:
    """Keeps the status of every budget true."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._budgets = registry.resource(("policy", "poddisruptionbudgets"))
        self._pods = registry.resource("pods")
        self._selectors: dict[str, dict[str, Selector]] = {}
        self.worker: KeyWorker[str] = KeyWorker("disruption", self._look)
        for resource, callback in ((self._budgets, self._on_budget), (self._pods, self._on_pod)):
            follow(registry, resource, callback)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _on_budget(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        named = self._selectors.setdefault(meta["namespace"], {})
        if event == "DELETED":
            named.pop(meta["name"], None)
            return
        selector = compile_selector(obj["spec"].get("selector"))
        if selector is not None:
            named[meta["name"]] = selector
        self.worker.add(f"{meta['namespace']}/{meta['name']}")

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        for name, selector in self._selectors.get(meta["namespace"], {}).items():
            if selector.matches(meta.get("labels") or {}):
                self.worker.add(f"{meta['namespace']}/{name}")

    async def _look(self, key: str) -> float | None:
        namespace, name = key.split("/", 1)
        obj = self._registry.get(self._budgets, namespace, name)
        selector = self._selectors.get(namespace, {}).get(name)
        if obj is None or selector is None:
            return None
        pods = [
            pod
            for pod in self._registry.list(self._pods, namespace)
            if selector.matches(pod["metadata"].get("labels") or {})
        ]
        standing = obj.get("status") or {}
        found = numbers(obj["spec"], pods, self._expected(namespace, pods))
        allowed = found["disruptionsAllowed"] > 0
        reason = "SufficientPods" if allowed else "InsufficientPods"
        before = podstate.condition(obj, "DisruptionAllowed") or {}
        status_ = "True" if allowed else "False"
        since = before["lastTransitionTime"] if before.get("status") == status_ else self._registry.now()
        generation = obj["metadata"].get("generation", 1)
        condition = {
            "type": "DisruptionAllowed",
            "status": status_,
            "reason": reason,
            "message": "",
            "lastTransitionTime": since,
            "observedGeneration": generation,
        }
        # NB: disruptedPods (evictions granted, pods not yet gone) need no carrying over: a pod that is being deleted
        # counts as unhealthy here at once, because this runs on the store itself and not on a lagging watch.
        status = {**found, "observedGeneration": generation, "conditions": [condition]}
        if status != standing:
            body = {**obj, "status": status}
            await self._registry.update(self._budgets, namespace, name, body, subresource="status")
        return None

    def _expected(self, namespace: str, pods: Sequence[Object]) -> int:
        """The sum of what the pods' controllers want; a pod without a scalable controller counts itself."""
        owners: dict[str, int] = {}
        for pod in pods:
            owner = podstate.controller_of(pod)
            if owner is None:
                owners[pod["metadata"]["uid"]] = 1
                continue
            group, _, _ = owner["apiVersion"].rpartition("/")
            plural = _SCALABLE.get(owner["kind"])
            found = self._registry.get((group, plural), namespace, owner["name"]) if plural else None
            if found is None:
                owners[owner["uid"]] = owners.get(owner["uid"], 0) + 1
            else:
                owners[owner["uid"]] = found["spec"].get("replicas", 1)
        return sum(owners.values())
