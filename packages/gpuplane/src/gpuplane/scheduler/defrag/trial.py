"""Changes of the cache, the ledger and the quotas that are taken back: what the cluster would be after some moves.

Invariant: after `undo`, or the end of the context, cache, ledger and quotas hold what they held before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import msgspec

from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.sharing import Assignment
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.podinfo import PodInfo


class Trial:
    """A stack of changes."""

    def __init__(self, cache: SchedulerCache, cluster: Cluster) -> None:
        self._cache = cache
        self._cluster = cluster
        self._undo: list[Callable[[], None]] = []

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Take back at the end of the context what was changed in it."""
        depth = len(self._undo)
        try:
            yield
        finally:
            while len(self._undo) > depth:
                self._undo.pop()()

    def leave(self, pod: ScheduledPod) -> None:
        """Count the pod as terminating: it holds what it held."""
        known = self._known(pod)
        if known is not None:
            self._cache.place(msgspec.structs.replace(known, terminating=True))
            self._undo.append(lambda: self._cache.place(known))

    def take_off(self, pod: ScheduledPod) -> None:
        """Take the pod off its node; nothing for a pod that has gone since it was chosen."""
        known = self._known(pod)
        if known is None:
            return
        uid, ledger, usage = pod.metadata.uid, self._cluster.ledger, self._cluster.usage
        self._cache.remove(known.key)
        held = ledger.holding(uid)
        ledger.release(uid)
        usage.remove(uid)

        def back() -> None:
            self._cache.place(known)
            if held is not None:
                self._cluster.hold_in_ledger(pod, *held)
            if pod.request:
                self._cluster.count(pod, known.node_name)

        self._undo.append(back)

    def _known(self, pod: ScheduledPod) -> PodInfo | None:
        assert pod.info is not None
        known = self._cache.pods.get(pod.info.key)
        return known if known is not None and known.uid == pod.metadata.uid else None

    def put(self, pod: ScheduledPod, node: str, assignment: Assignment) -> None:
        """Place a pod that is on no node."""
        assert pod.info is not None
        uid, key = pod.metadata.uid, pod.info.key
        self._cache.place(msgspec.structs.replace(pod.info, node_name=node))
        self._cluster.hold_in_ledger(pod, node, assignment)
        if pod.request:
            self._cluster.count(pod, node)

        def back() -> None:
            self._cache.remove(key)
            self._cluster.ledger.release(uid)
            self._cluster.usage.remove(uid)

        self._undo.append(back)
