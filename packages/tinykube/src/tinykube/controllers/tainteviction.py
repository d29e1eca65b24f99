"""Evicts pods from nodes with NoExecute taints, at once or when their tolerations end.

As in kube-controller-manager's taint eviction controller: a pod's time runs from when both the taint and the pod were
on the node, and an evicted pod has the condition DisruptionTarget, by which Jobs tell a lost machine from a failed
program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from kubekit.api.durations import parse_time
from kubekit.scheduling.podinfo import compile_taints, compile_tolerations
from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers import pods as podstate
from tinykube.controllers.following import follow
from tinykube.controllers.recorder import Recorder
from tinykube.controllers.worker import KeyWorker

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_REASON: Final = "TaintManagerEviction"


def no_execute(node: Object) -> list[Object]:
    """Return a node's taints that pods on it have to tolerate."""
    return [taint for taint in (node.get("spec") or {}).get("taints") or () if taint["effect"] == "NoExecute"]


def patience(pod: Object, taints: Sequence[Object]) -> float | None:
    """Return how many seconds a pod may stay with these NoExecute taints: None for ever, 0 not at all.

    Of all tolerations that match one of the taints the shortest counts.
    """
    tolerations = pod["spec"].get("tolerations") or ()
    compiled = compile_tolerations(tolerations)
    limits: list[float] = []
    for taint in compile_taints(taints):
        matching = [raw for raw, one in zip(tolerations, compiled, strict=True) if one.tolerates(taint)]
        if not matching:
            return 0.0
        limits += [max(0.0, t["tolerationSeconds"]) for t in matching if t.get("tolerationSeconds") is not None]
    return min(limits, default=None)


def patience_starts(pod: Object, taints: Sequence[Object], now: datetime) -> datetime:
    """Return when a pod's time began, of which nothing is remembered: when the first taint and the pod were there.

    A taint that a user sets has no time, and counts from now.
    """
    scheduled = podstate.condition(pod, "PodScheduled") or {}
    came = scheduled.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    added = min((parse_time(t["timeAdded"]) if t.get("timeAdded") else now for t in taints), default=now)
    return max(added, parse_time(came)) if came else added


class TaintEvictionController:
    """Looks at a node's pods when its taints or one of them change, and when the next of them is due."""

    def __init__(self, registry: Registry, index: podstate.PodIndex, recorder: Recorder) -> None:
        self._registry = registry
        self._index = index
        self._recorder = recorder
        self._nodes = registry.resource("nodes")
        self._pods = registry.resource("pods")
        self._tainted: set[str] = set()
        self._waiting: dict[str, dict[str, datetime]] = {}  # by node: since when a pod waits to leave, by its uid
        self.worker: KeyWorker[str] = KeyWorker("taint eviction", self._look)
        for resource, callback in ((self._nodes, self._on_node), (self._pods, self._on_pod)):
            follow(registry, resource, callback)

    def workers(self) -> tuple[KeyWorker[Any], ...]:
        return (self.worker,)

    def _on_node(self, event: str, obj: Object, old: Object | None) -> None:
        name = obj["metadata"]["name"]
        if event == "DELETED":
            self._tainted.discard(name)
            self._waiting.pop(name, None)
            return
        taints = no_execute(obj)
        was_tainted = name in self._tainted
        (self._tainted.add if taints else self._tainted.discard)(name)
        if (taints or was_tainted) and (old is None or no_execute(old) != taints):
            self.worker.add(name)

    def _on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        node = obj["spec"].get("nodeName")
        if event != "DELETED" and node in self._tainted and (old is None or _relevant(old) != _relevant(obj)):
            self.worker.add(node)

    async def _look(self, name: str) -> float | None:
        node = self._registry.get(self._nodes, "", name)
        if node is None:
            return None
        taints, now = no_execute(node), parse_time(self._registry.now())
        before, waiting = self._waiting.pop(name, {}), dict[str, datetime]()
        again: list[float] = []
        for pod in list(self._index.on_node(name).values()):
            if podstate.is_terminating(pod):
                continue
            uid, seconds = pod["metadata"]["uid"], patience(pod, taints)
            if seconds is None:
                if uid in before:
                    self._record(pod, "Cancelling deletion of Pod")
                continue
            start = before.get(uid) or patience_starts(pod, taints, now)
            left = seconds - (now - start).total_seconds()
            if not seconds or left <= 0:
                await self._evict(pod)
            else:
                again.append(left)
                waiting[uid] = start
        if waiting:
            self._waiting[name] = waiting
        return min(again, default=None)

    def _record(self, pod: Object, text: str) -> None:
        meta = pod["metadata"]
        self._recorder.record(pod, "Pod", _REASON, f"{text} {meta['namespace']}/{meta['name']}")

    async def _evict(self, pod: Object) -> None:
        self._record(pod, "Marking for deletion Pod")
        meta, preconditions = pod["metadata"], {"uid": pod["metadata"]["uid"]}
        try:
            text = "Taint manager: deleting due to NoExecute taint"
            await podstate.mark_disrupted(self._registry, pod, "DeletionByTaintManager", text)
            await self._registry.delete(self._pods, meta["namespace"], meta["name"], preconditions=preconditions)
        except ApiFailure as error:
            if error.status != 404:
                raise


def _relevant(pod: Object) -> object:
    return pod["spec"].get("nodeName"), pod["spec"].get("tolerations"), podstate.is_terminating(pod)
