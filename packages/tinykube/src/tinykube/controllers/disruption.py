"""The status of PodDisruptionBudgets: how many pods an eviction may take now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kubekit.api.durations import parse_time
from kubekit.scheduling.selectors import Selector, compile_selector
from tinykube.apiserver.bynamespace import ByNamespace
from tinykube.controllers import pods as podstate
from tinykube.controllers.following import follow
from tinykube.controllers.templates import scaled
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_EVICTION_S: Final = 120.0
_SCALABLE: Final = {
    "ReplicaSet": "replicasets",
    "ReplicationController": "replicationcontrollers",
    "StatefulSet": "statefulsets",
}


def still_disrupted(status: Object, pods: Iterable[Object], now: str) -> tuple[dict[str, str], float | None]:
    """Return the pods whose eviction was granted and that are still there, and when to look again.

    An eviction that has not begun after two minutes is given up.
    """
    granted: Object = status.get("disruptedPods") or {}
    left: dict[str, float] = {}
    for pod in pods:
        name = pod["metadata"]["name"]
        if name in granted and not podstate.is_terminating(pod):
            left[name] = _EVICTION_S - (parse_time(now) - parse_time(granted[name])).total_seconds()
    kept = {name: granted[name] for name, seconds in left.items() if seconds > 0}
    return kept, min((left[name] for name in kept), default=None)


def numbers(
    spec: Object, pods: Iterable[Object], expected: int, disrupted: Collection[str] = frozenset()
) -> dict[str, int]:
    """The four numbers of the status. `expected`: how many pods their controllers want; `disrupted`: those that go."""
    pods = [pod for pod in pods if podstate.is_active(pod)]
    healthy = sum(podstate.is_ready(pod) and pod["metadata"].get("name") not in disrupted for pod in pods)
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
        self._selectors: ByNamespace[Selector] = ByNamespace()
        self.worker: KeyWorker[str] = KeyWorker("disruption", self._look)
        for resource, callback in ((self._budgets, self._on_budget), (self._pods, self._on_pod)):
            follow(registry, resource, callback)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _on_budget(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        if event == "DELETED":
            self._selectors.discard(meta["namespace"], meta["name"])
            return
        selector = compile_selector(obj["spec"].get("selector"))
        if selector is not None:
            self._selectors.put(meta["namespace"], meta["name"], selector)
        self.worker.add(f"{meta['namespace']}/{meta['name']}")

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        for name, selector in self._selectors.of(meta["namespace"]).items():
            if selector.matches(meta.get("labels") or {}):
                self.worker.add(f"{meta['namespace']}/{name}")

    async def _look(self, key: str) -> float | None:
        namespace, name = key.split("/", 1)
        obj = self._registry.get(self._budgets, namespace, name)
        selector = self._selectors.of(namespace).get(name)
        if obj is None or selector is None:
            return None
        pods = [
            pod
            for pod in self._registry.list(self._pods, namespace)
            if selector.matches(pod["metadata"].get("labels") or {})
        ]
        standing = obj.get("status") or {}
        disrupted, again = still_disrupted(standing, pods, self._registry.now())
        found = numbers(obj["spec"], pods, self._expected(namespace, pods), disrupted)
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
        status = {**found, "observedGeneration": generation, "conditions": [condition]}
        if disrupted:
            status["disruptedPods"] = disrupted
        if status != standing:
            body = {**obj, "status": status}
            await self._registry.update(self._budgets, namespace, name, body, subresource="status")
        return again

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
