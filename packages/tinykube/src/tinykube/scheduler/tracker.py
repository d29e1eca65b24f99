"""Feeds changes of nodes, pods and namespaces into the cache and the queue, and requeues the pods that they concern.

Called synchronously after each write, so it does no more than the change needs: a node's heartbeat or a pod's status
changes nothing here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from kubekit.api.core import has_ended
from kubekit.errors import InvalidInput
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.podinfo import PodInfo, compile_node, compile_pod
from kubekit.scheduling.queue import ClusterEvent, Queue, node_events
from tinykube.controllers.following import follow

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

Object = Mapping[str, Any]
_log = logging.getLogger("tinykube.scheduler")


class Tracker:
    """Keeps cache and queue true to the API server. `wake` is called when the queue may have something to do."""

    def __init__(
        self, registry: Registry, cache: SchedulerCache, queue: Queue, names: frozenset[str], wake: Callable[[], None]
    ) -> None:
        self._registry = registry
        self._cache = cache
        self._queue = queue
        self._names = names
        self._wake = wake
        self._assumed: dict[str, PodInfo] = {}
        self._nominated: dict[str, str] = {}

    def start(self) -> None:
        """Subscribes, and reads what is there (nothing can happen between the two)."""
        sources = (("namespaces", self.on_namespace), ("nodes", self.on_node), ("pods", self.on_pod))
        for plural, callback in sources:
            follow(self._registry, self._registry.resource(plural), callback)

    def on_namespace(self, event: str, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        self._cache.set_namespace(meta["name"], None if event == "DELETED" else meta.get("labels") or {})

    # -- nodes ---------------------------------------------------------------------------------------------------
    def on_node(self, event: str, obj: Object, old: Object | None) -> None:
        name = obj["metadata"]["name"]
        if event == "DELETED":
            self._cache.remove_node(name)
            return
        try:
            facts = compile_node(obj)
        except InvalidInput as error:
            _log.warning("node %s is left out: %s", name, error)
            self._cache.remove_node(name)
            return
        state = self._cache.nodes.get(name)
        before = state.facts if state is not None else None
        self._cache.set_node(facts)
        for change in node_events(before, facts):
            self._notify(change, name)
        if old is not None and old["metadata"].get("annotations") != obj["metadata"].get("annotations"):
            self._notify(ClusterEvent.NODE_OTHER, name)

    def _notify(self, event: ClusterEvent, node: str) -> None:
        if self._queue.notify(event, node, asyncio.get_running_loop().time()):
            self._wake()

    # -- pods ----------------------------------------------------------------------------------------------------
    def on_pod(self, event: str, obj: Object, old: Object | None) -> None:
        meta, spec = obj["metadata"], obj["spec"]
        key = f"{meta['namespace']}/{meta['name']}"
        if event == "DELETED" or has_ended((obj.get("status") or {}).get("phase")):
            self._gone(key, meta.get("uid", ""))
            return
        bound = bool(spec.get("nodeName"))
        if old is not None and bound and key in self._cache.pods and not _matters(old, obj):
            return
        if not bound and (spec.get("schedulerName") or "default-scheduler") not in self._names:
            return
        try:
            pod = compile_pod(obj)
        except InvalidInput as error:
            _log.warning("pod %s is left out: %s", key, error)
            return
        if bound:
            self._placed(pod)
        elif key not in self._assumed:
            self._waits(pod)

    def _gone(self, key: str, uid: str) -> None:
        self._queue.drop(key)
        self._assumed.pop(key, None)
        self.withdraw(key)
        known = self._cache.pods.get(key)
        if known is not None and known.uid == uid:
            self._cache.remove(key)
            self._notify(ClusterEvent.POD_GONE, known.node_name)

    def _placed(self, pod: PodInfo) -> None:
        assumed = self._assumed.pop(pod.key, None) is not None
        self._queue.drop(pod.key)
        self.withdraw(pod.key)
        known = self._cache.pods.get(pod.key)
        self._cache.place(pod)
        if assumed or known is None or known.labels != pod.labels or known.node_name != pod.node_name:
            self._notify(ClusterEvent.POD_PLACED, pod.node_name)
        elif known.requests != pod.requests or known.terminating != pod.terminating:
            self._notify(ClusterEvent.POD_GONE, pod.node_name)

    def _waits(self, pod: PodInfo) -> None:
        if pod.terminating:
            self._queue.drop(pod.key)
            return
        if pod.nominated and self._nominated.get(pod.key) != pod.nominated:
            self.nominate(pod, pod.nominated)
        self._queue.put(pod, asyncio.get_running_loop().time())
        self._wake()

    # -- decisions of our own ------------------------------------------------------------------------------------
    def assume(self, pod: PodInfo) -> None:
        """Counts a pod on the node it is about to be bound to."""
        self._assumed[pod.key] = pod
        self.withdraw(pod.key)
        self._cache.place(pod)

    def forget(self, pod: PodInfo) -> None:
        """The binding failed: takes the assumption back, unless the pod turns out to be bound."""
        if self._assumed.pop(pod.key, None) is not None:
            self._cache.remove(pod.key)
            self._notify(ClusterEvent.POD_GONE, pod.node_name)

    def nominate(self, pod: PodInfo, node: str) -> None:
        """Keeps the room that preemption makes for this pod."""
        self.withdraw(pod.key)
        self._nominated[pod.key] = node
        self._cache.nominate(msgspec.structs.replace(pod, nominated=node), node)

    def withdraw(self, key: str) -> None:
        """Keeps room for this pod no longer."""
        node = self._nominated.pop(key, None)
        if node is not None:
            self._cache.withdraw(key, node)


def _matters(old: Object, new: Object) -> bool:
    """Return whether a bound pod changed in what is counted: not by its status."""
    if old["spec"] is not new["spec"] and old["spec"] != new["spec"]:
        return True
    was, now = old["metadata"], new["metadata"]
    return was.get("labels") != now.get("labels") or ("deletionTimestamp" in was) != ("deletionTimestamp" in now)
