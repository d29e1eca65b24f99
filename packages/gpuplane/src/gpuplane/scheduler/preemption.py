"""`preempt`: the nodes that have room for the pod after kube-scheduler's evictions, and the pods to evict from each.

kube-scheduler counts a node's GPUs together, so it may want to evict pods that free the wrong GPU, too few pods, or no
pod. The ledger is asked without those pods. Where they do not suffice, pods of lower priority are added, the lowest
first; added pods that turn out to be needless are left out again.

Nothing is changed: the pods are put back before another request reads the ledger.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence

from gpuplane.scheduler import wire
from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.transforms import CachedPod
from gpuplane.sharing import request_of
from gpuplane.sharing.placement import Placement
from kubekit.errors import InvalidInput


class Preemption:
    def __init__(self, cluster: Cluster, filtering: Filtering) -> None:
        self._cluster = cluster
        self._filtering = filtering

    def preempt(self, args: wire.PreemptArgs) -> bytes:
        """Answer with ExtenderPreemptionResult: the nodes that remain, with their victims. Raises Retryable."""
        try:
            wanted = bool(request_of(args.pod))
        except InvalidInput:
            return wire.preempt_result({})
        if not wanted:
            return wire.preempt_result(args.victims)
        pod = self._filtering.pod_of(args.pod)
        lower = self._lower(pod, args.victims)
        remaining = {}
        for node, proposed in args.victims.items():
            if not self._cluster.unusable(node):
                victims = self._victims(pod, node, proposed, lower.get(node, []))
                if victims is not None:
                    remaining[node] = victims
        return wire.preempt_result(remaining)

    def victims_on(self, pod: CachedPod, node: str, proposed: Sequence[str]) -> tuple[str, ...] | None:
        """Return the uids of the pods to evict from a node for which kube-scheduler proposes some; None where evictions
        cannot help.
        """
        if self._cluster.unusable(node):
            return None
        found = self._victims(pod, node, wire.Victims(tuple(proposed)), self._lower(pod, [node]).get(node, []))
        return tuple(found.uids) if found is not None else None

    def _victims(self, pod: CachedPod, node: str, proposed: wire.Victims, lower: list[str]) -> wire.Victims | None:
        """Return the pods to evict from the node; None when evictions cannot help."""
        if self._fits(pod, node, proposed.uids):
            return proposed if proposed.uids else None
        chosen: list[str] = []
        for uid in lower:
            if uid in proposed.uids:
                continue
            chosen.append(uid)
            if self._fits(pod, node, (*proposed.uids, *chosen)):
                break
        else:
            return None
        for uid in chosen[:-1]:
            spared = [other for other in chosen if other != uid]
            if self._fits(pod, node, (*proposed.uids, *spared)):
                chosen = spared
        return wire.Victims((*proposed.uids, *chosen), proposed.violations)

    def _lower(self, pod: CachedPod, nodes: Collection[str]) -> dict[str, list[str]]:
        """Return the pods with GPUs and lower priority of each node, the lowest priority first."""
        mine = pod.spec.priority or 0
        found: dict[str, list[tuple[int, str]]] = {}
        for uid, other in self._cluster.by_uid.items():
            priority = other.spec.priority or 0
            if priority < mine and other.spec.node_name in nodes:
                found.setdefault(other.spec.node_name, []).append((priority, uid))
        return {node: [uid for _, uid in sorted(pods)] for node, pods in found.items()}

    def _fits(self, pod: CachedPod, node: str, without: Sequence[str]) -> bool:
        with self.away(without):
            if self._filtering.check(pod)(node).reason:
                return False
            return isinstance(self._filtering.answers(pod.request).place(node), Placement)

    @contextlib.contextmanager
    def away(self, uids: Sequence[str]) -> Iterator[None]:
        """Free what these pods hold for as long as the context lasts; reservations stay."""
        ledger, usage = self._cluster.ledger, self._cluster.usage
        pods = [pod for uid in uids if (pod := self._cluster.by_uid.get(uid)) is not None and pod.spec.node_name]
        held = [(pod, holding) for pod in pods if (holding := ledger.holding(pod.metadata.uid)) is not None]
        for pod, _ in held:
            ledger.release(pod.metadata.uid)
            usage.remove(pod.metadata.uid)
        try:
            yield
        finally:
            for pod, (node, assignment) in held:
                self._cluster.hold(pod, node, assignment)
