"""Nodes that fall silent: Ready becomes Unknown, and taints follow the conditions.

A node is heard of when its lease is renewed or its status changes; times are this process's own, so that a restarted
API server gives every node a full grace period. Taints are as in kube-controller-manager's node lifecycle controller;
`tainteviction` evicts the pods that do not tolerate them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers import pods as podstate
from tinykube.controllers.following import follow
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
GRACE_S: Final = 40.0
_LOOK_EVERY_S: Final = 5.0
_LEASES: Final = "kube-node-lease"
_PREFIX: Final = "node.kubernetes.io/"
_BY_CONDITION: Final = {
    ("Ready", "False"): "not-ready",
    ("Ready", "Unknown"): "unreachable",
    ("MemoryPressure", "True"): "memory-pressure",
    ("DiskPressure", "True"): "disk-pressure",
    ("PIDPressure", "True"): "pid-pressure",
    ("NetworkUnavailable", "True"): "network-unavailable",
}
_EVICTING: Final = ("not-ready", "unreachable")
#: (key, effect) of the taints that only this controller sets; users' taints may have the same keys and other effects.
_OURS: Final = frozenset(
    (
        *((_PREFIX + name, "NoSchedule") for name in (*_BY_CONDITION.values(), "unschedulable")),
        *((_PREFIX + name, "NoExecute") for name in _EVICTING),
    )
)
_KUBELET_CONDITIONS: Final = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


def taints_of(node: Object, now: str, *, evict: bool = True) -> list[dict[str, Any]]:
    """The taints a node should have: ours by its conditions, all others as they are.

    Without `evict` a node that is not ready takes no new pods but keeps those it has.
    """
    spec = node.get("spec") or {}
    wanted: list[tuple[str, str]] = []
    for condition in (node.get("status") or {}).get("conditions") or ():
        name = _BY_CONDITION.get((condition["type"], condition["status"]))
        if name:
            wanted.append((_PREFIX + name, "NoSchedule"))
            if evict and name in _EVICTING:
                wanted.append((_PREFIX + name, "NoExecute"))
    if spec.get("unschedulable"):
        wanted.append((_PREFIX + "unschedulable", "NoSchedule"))
    kept = []
    for taint in spec.get("taints") or ():
        which = (taint["key"], taint["effect"])
        if which not in _OURS or which in wanted:
            kept.append(dict(taint))
    there = {(taint["key"], taint["effect"]) for taint in kept}
    return [*kept, *({"key": k, "effect": e, "timeAdded": now} for k, e in wanted if (k, e) not in there)]


def silent(node: Object, now: str) -> list[dict[str, Any]]:
    """Return the conditions of a node that sends no heartbeat any more."""
    standing = (node.get("status") or {}).get("conditions") or ()
    answer = [dict(c) for c in standing if c["type"] not in _KUBELET_CONDITIONS]
    known = {c["type"]: c for c in standing}
    for type_ in _KUBELET_CONDITIONS:
        before = known.get(type_)
        if before is not None and before["status"] == "Unknown":
            answer.append(dict(before))
            continue
        never = before is None
        answer.append(
            {
                "type": type_,
                "status": "Unknown",
                "reason": "NodeStatusNeverUpdated" if never else "NodeStatusUnknown",
                "message": "Kubelet never posted node status." if never else "Kubelet stopped posting node status.",
                "lastHeartbeatTime": (before or {}).get("lastHeartbeatTime", node["metadata"].get("creationTimestamp")),
                "lastTransitionTime": now,
            }
        )
    return answer


class NodeLifecycleController:
    """Watches over the nodes' health; `grace_s` is how long a node may be silent."""

    def __init__(
        self, registry: Registry, index: podstate.PodIndex, recorder: Recorder, *, grace_s: float = GRACE_S
    ) -> None:
        self._registry = registry
        self._index = index
        self._recorder = recorder
        self._grace_s = grace_s
        self._nodes = registry.resource("nodes")
        self._pods = registry.resource("pods")
        self._leases = registry.resource(("coordination.k8s.io", "leases"))
        self._heard: dict[str, float] = {}
        self._known: set[str] = set()
        self._ready: set[str] = set()
        self.worker: KeyWorker[str] = KeyWorker("node lifecycle", self._look)
        self.health: KeyWorker[str] = KeyWorker("node health", self._look_at_health)
        follow(registry, self._leases, self._on_lease, existing=False)
        follow(registry, self._nodes, self._on_node)
        self.health.later("", _LOOK_EVERY_S)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return self.worker, self.health

    # -- what changed --------------------------------------------------------------------------------------------
    def _on_lease(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        if event != "DELETED" and meta["namespace"] == _LEASES:
            self._heard[meta["name"]] = asyncio.get_running_loop().time()

    def _on_node(self, event: str, obj: Object, old: Object | None) -> None:
        name = obj["metadata"]["name"]
        before = self._disrupted
        ready = event != "DELETED" and podstate.is_ready(obj)
        (self._ready.add if ready else self._ready.discard)(name)
        (self._known.discard if event == "DELETED" else self._known.add)(name)
        if self._disrupted != before:
            for other in self._known:
                self.worker.add(other)
        if event == "DELETED":
            self._heard.pop(name, None)
            return
        if name not in self._heard or (old is not None and _heartbeat(old) != _heartbeat(obj)):
            self._heard[name] = asyncio.get_running_loop().time()
        if old is None or _relevant(old) != _relevant(obj):
            self.worker.add(name)

    @property
    def _disrupted(self) -> bool:
        """Return whether no node at all is ready: then the control plane is probably cut off, and no pod is evicted."""
        return not self._ready

    # -- health --------------------------------------------------------------------------------------------------
    async def _look_at_health(self, key: str) -> float:
        now = asyncio.get_running_loop().time()
        for name, heard in list(self._heard.items()):
            if now - heard <= self._grace_s:
                continue
            node = self._registry.get(self._nodes, "", name)
            if node is None:
                self._heard.pop(name, None)  # a lease without a node
            elif (podstate.condition(node, "Ready") or {}).get("status") != "Unknown":
                await self._declare_silent(name, node)
        return _LOOK_EVERY_S

    async def _declare_silent(self, name: str, node: Object) -> None:
        conditions = silent(node, self._registry.now())
        body = {**node, "status": {**(node.get("status") or {}), "conditions": conditions}}
        heard = self._heard[name]
        try:
            await self._registry.update(self._nodes, "", name, body, subresource="status")
        except ApiFailure as error:
            if error.status not in (404, 409):
                raise
        # Our own write is no sign of life.
        self._heard[name] = heard
        message = f"Node {name} status is now: NodeNotReady"
        self._recorder.record(node, "Node", "NodeNotReady", message)

    # -- taints --------------------------------------------------------------------------------------------------
    async def _look(self, name: str) -> float | None:
        node = self._registry.get(self._nodes, "", name)
        if node is None:
            return None
        wanted = taints_of(node, self._registry.now(), evict=not self._disrupted)
        standing = (node.get("spec") or {}).get("taints") or []
        if wanted != standing:
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}
            patch = {"metadata": version, "spec": {"taints": wanted or None}}  # NB: Kubernetes writes no empty list
            await self._registry.patch(self._nodes, "", name, patch, "merge")
        if (podstate.condition(node, "Ready") or {}).get("status") in ("False", "Unknown"):
            await self._mark_pods(name)
        return None

    async def _mark_pods(self, node: str) -> None:
        """Pods on a node that is not ready are not ready either, whatever they said last."""
        for pod in list(self._index.on_node(node).values()):
            if not podstate.is_ready(pod):
                continue
            now = self._registry.now()
            conditions = [
                {**c, "status": "False", "lastTransitionTime": now} if c["type"] == "Ready" else c
                for c in pod["status"]["conditions"]
            ]
            meta = pod["metadata"]
            body = {**pod, "status": {**pod["status"], "conditions": conditions}}
            await self._registry.update(self._pods, meta["namespace"], meta["name"], body, subresource="status")


def _heartbeat(node: Object) -> object:
    return [c.get("lastHeartbeatTime") for c in (node.get("status") or {}).get("conditions") or ()]


def _relevant(node: Object) -> object:
    spec = node.get("spec") or {}
    conditions = [(c["type"], c["status"]) for c in (node.get("status") or {}).get("conditions") or ()]
    return spec.get("taints"), spec.get("unschedulable"), conditions
