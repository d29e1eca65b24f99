"""The scheduler's model of the cluster: the cache that filters read, and the queue of pods that wait.

Fed by the informers' handlers, after the extender's ledger has the same change. A change wakes the pods that wait for
such a change. A pod whose causes are those of single nodes is woken by any change of a node that it fits then.

Invariants:

- A pod that waits for this scheduler is in the queue, unless its Binding is on its way or it is assumed bound.
- A bound or assumed pod is counted on one node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.pods.decide import fits_now
from gpuplane.scheduler.pods.objects import ScheduledNode, ScheduledPod
from gpuplane.scheduler.pods.promises import as_promised, keep_room
from gpuplane.scheduler.queues.fair import FairQueues, in_queue_of
from gpuplane.scheduler.queues.tree import QueueTree
from gpuplane.scheduler.transforms import CachedPod
from gpuplane.sharing import Request
from kubekit.api.core import Namespace
from kubekit.errors import Retryable
from kubekit.kube import Clock, Informer
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.fair_queueing import NamespaceTurns
from kubekit.scheduling.podinfo import PodInfo
from kubekit.scheduling.queue import GPU_QUOTA, GPUS, QUEUE_LIMIT, ClusterEvent, Queue, QueueEntry, node_events

_OF_ONE_NODE: Final = frozenset(
    (
        *("NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit"),
        *(GPUS, GPU_QUOTA),
    )
)
"""Causes that a change of one node ends for this node only."""


class PodModel:
    """
    Args:
        wake: called when the queue may have a pod to try.
    """

    def __init__(
        self,
        cluster: Cluster,
        filtering: Filtering,
        namespaces: Informer[Namespace],
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self.cache = SchedulerCache()
        self.fair = FairQueues(cluster, clock, self._request_of, self._promised)
        self.cache.counted = self.fair.counted
        self.queue = Queue(NamespaceTurns(), self.fair)
        self.changes = 0  # of nodes and quotas: what may change a decision and is not in the cache or the ledger
        self._cluster = cluster
        self._filtering = filtering
        self._clock = clock
        self.wake = wake
        self._assumed: dict[str, PodInfo] = {}
        self._nominated: dict[str, str] = {}
        namespaces.add_handler(self._namespace_changed)
        cluster.nodes.add_handler(self._node_changed)
        cluster.gpunodes.add_handler(self._gpunode_changed)
        cluster.pods.add_handler(self._pod_changed)
        cluster.on_freed.append(self._gpu_freed)

    # -- what others ask ---------------------------------------------------------------------------------------------

    def pod(self, key: str) -> ScheduledPod | None:
        """Return the pod with this namespace and name as the last watch delivered it."""
        found = self._cluster.pods.get(key)
        return found if isinstance(found, ScheduledPod) else None

    def _request_of(self, key: str) -> Request:
        found = self._cluster.pods.get(key)
        return found.request if isinstance(found, CachedPod) else Request()

    def _promised(self) -> list[PodInfo]:
        """Return the pods that wait on a node for others to leave."""
        return [
            info
            for key, node in self._nominated.items()
            if (state := self.cache.nodes.get(node)) is not None and (info := state.nominated.get(key)) is not None
        ]

    def assume(self, info: PodInfo) -> None:
        """Count the pod on the node that it is about to be bound to."""
        self._assumed[info.key] = info
        self.withdraw(info.key)
        self.cache.place(info)

    def is_assumed(self, info: PodInfo) -> bool:
        """Return whether the pod's Binding is on its way, or was accepted and no watch has delivered it."""
        assumed = self._assumed.get(info.key)
        return assumed is not None and assumed.uid == info.uid

    def forget(self, info: PodInfo) -> None:
        """Take an assumption back: the pod is not bound to the node."""
        assumed = self._assumed.get(info.key)
        if assumed is not None and assumed.uid == info.uid:
            del self._assumed[info.key]
            self.cache.remove(info.key)
            self.notify(ClusterEvent.POD_GONE, info.node_name)

    def requeue(self, info: PodInfo) -> None:
        """Queue a pod again that was taken out of the queue as bound, if it still waits."""
        pod = self.pod(info.key)
        if pod is not None and pod.ours and pod.info is not None and pod.info.uid == info.uid:
            self._waits(pod.info)

    def nominate(self, info: PodInfo, node: str, request: Request | None = None) -> None:
        """Keep room for the pod on the node.

        Args:
            request: what to keep, such as a part of a certain GPU; None for what the pod requests.
        """
        self.withdraw(info.key)
        self._nominated[info.key] = node
        cache, filtering = self.cache, self._filtering
        keep_room(info, self.pod(info.key), node, cache=cache, filtering=filtering, fair=self.fair, request=request)

    def is_nominated(self, info: PodInfo) -> bool:
        """Return whether room is reserved for the pod."""
        return info.key in self._nominated

    def with_nomination(self, pod: ScheduledPod) -> ScheduledPod:
        """Return the pod with the node that it is nominated to, also where no watch has delivered that yet."""
        node = self._nominated.get(pod.info.key, "") if pod.info is not None else ""
        if pod.info is None or not node or node == pod.info.nominated:
            return pod
        return msgspec.structs.replace(pod, info=msgspec.structs.replace(pod.info, nominated=node))

    def as_promised(self, pod: ScheduledPod) -> ScheduledPod:
        """Return the pod as the filters have to see it.

        With queues, a pod that room was made for does not wait for the room of others.
        """
        if pod.info is None or pod.info.key not in self._nominated:
            return pod
        return as_promised(pod, pod.info, self.fair)

    def waits(self, info: PodInfo) -> bool:
        """Return whether the pod still waits for a node: it is not deleted, and no Binding is on its way."""
        pod = self.pod(info.key)
        if pod is None or pod.info is None or pod.info.uid != info.uid or info.key in self._assumed:
            return False
        return not pod.info.node_name and not pod.info.terminating

    def may_evict(self, info: PodInfo, victim: PodInfo) -> bool:
        """Return whether queues still allow that the pod takes the victim's room."""
        known = self.cache.pods.get(victim.key)
        if not self.fair or known is None or known.uid != victim.uid:
            return True  # no queue, or the victim is gone, which the deletion finds out
        return bool(self.fair.victims_for(info).together([known]))

    def leaves(self, victim: PodInfo) -> None:
        """Count a pod as terminating that was deleted just now: a watch may deliver that late."""
        known = self.cache.pods.get(victim.key)
        if known is not None and known.uid == victim.uid and not known.terminating:
            self.cache.place(msgspec.structs.replace(known, terminating=True))
            self.notify(ClusterEvent.POD_GONE, known.node_name)

    def withdraw(self, key: str) -> None:
        """Keep room for the pod no longer."""
        node = self._nominated.pop(key, None)
        if node is not None:
            info = self.cache.withdraw(key, node)
            if info is not None:
                self._filtering.nominations.remove(info.uid)
            self.notify(ClusterEvent.GPU_FREED, node)

    def quotas_changed(self) -> None:
        self.changes += 1
        self.notify(ClusterEvent.QUOTA_CHANGED, "")

    def set_queues(self, tree: QueueTree) -> None:
        """Use other queues from now on."""
        self.fair.set_tree(tree, self.cache.pods.values())
        self.queue.reorder()
        self.quotas_changed()

    def try_below_guarantee(self) -> None:
        """Wake the waiting pods that are within the guarantee of their queue: they may have borrowed room back."""
        fair = self.fair

        def is_entitled(entry: QueueEntry) -> bool:
            return not (_OF_ONE_NODE | {QUEUE_LIMIT}).isdisjoint(entry.plugins) and fair.sums.is_entitled(
                fair.queue_of(entry.pod), fair.amounts(entry.pod)
            )

        if fair and self.queue.notify(ClusterEvent.QUOTA_CHANGED, "", self._clock.now(), is_entitled):
            self.wake()

    def storage_changed(self, event: ClusterEvent, claim: tuple[str, str] | None = None) -> None:
        """Wake the pods that wait for such a change of volumes.

        Args:
            claim: namespace and name, where only pods that name this claim are helped.
        """
        self.changes += 1

        def helps(entry: QueueEntry) -> bool | None:
            pod = entry.pod
            names_it = claim is None or (
                pod.namespace == claim[0] and any(one.claim == claim[1] for one in pod.volumes)
            )
            return None if names_it else False

        if self.queue.notify(event, "", self._clock.now(), helps):
            self.wake()

    def try_all_again(self) -> None:
        """Wake all pods that wait."""
        self.changes += 1
        if self.queue.notify(ClusterEvent.POD_CHANGED, "", self._clock.now()):
            self.wake()

    def notify(self, event: ClusterEvent, node: str) -> None:
        """Wake the pods that wait for such a change of the node, and that it may help."""
        # NB: one pod more on a node helps no pod whose causes are those of single nodes, and there may be thousands.
        hint = _Hint(self, node) if node and event is not ClusterEvent.POD_PLACED else None
        if self.queue.notify(event, node, self._clock.now(), hint):
            self.wake()

    def fits(self, entry: QueueEntry, node: str) -> bool:
        """Return whether the pod fits the node now; True if that is unknown."""
        pod = self.pod(entry.pod.key)
        try:
            return pod is not None and fits_now(pod, node, self.cache, self._filtering)
        except Retryable:
            return True

    # -- changes -----------------------------------------------------------------------------------------------------

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None:
            self.cache.set_namespace(new.metadata.name, dict(new.metadata.labels))
        elif old is not None:
            self.cache.set_namespace(old.metadata.name, None)

    def _node_changed(self, old: Any, new: Any) -> None:
        self.changes += 1
        self.cache.touch((new or old).metadata.name)  # it may be Ready now
        facts = new.facts if isinstance(new, ScheduledNode) else None
        if facts is None:
            if old is not None:
                self.cache.remove_node(old.metadata.name)
                self._count_node(old.metadata.name)
            return
        state = self.cache.nodes.get(facts.name)
        before = state.facts if state is not None else None
        self.cache.set_node(facts)
        self._count_node(facts.name)
        for change in node_events(before, facts):
            self.notify(change, facts.name)

    def _gpunode_changed(self, old: Any, new: Any) -> None:
        self._count_node((new or old).metadata.name)

    def _count_node(self, name: str) -> None:
        """Count what the node has for the shares of queues."""
        state, gpus = self.cache.nodes.get(name), self._cluster.ledger.node(name)
        self.fair.capacity.set(name, state.facts if state is not None else None, gpus.gpus if gpus is not None else ())

    def _gpu_freed(self, node: str, namespace: str) -> None:
        # NB: a pod that frees a quota may help pods for other nodes, so its namespace's pods are all asked again.
        self.notify(ClusterEvent.GPU_FREED, node)
        if namespace:
            self.quotas_changed()

    def _pod_changed(self, old: Any, new: Any) -> None:
        info = new.info if isinstance(new, ScheduledPod) else None
        if info is None:
            if isinstance(old, ScheduledPod) and old.info is not None:
                self._gone(old.info)
        elif info.node_name:
            self._placed(info)
        elif info.key not in self._assumed:
            if new.ours:
                self._waits(info)
                if isinstance(old, ScheduledPod) and old.gang != new.gang:
                    self.try_all_again()
            else:
                self.nominate(info, info.nominated)

    def _gone(self, info: PodInfo) -> None:
        self.queue.drop(info.key)
        self._assumed.pop(info.key, None)
        self.withdraw(info.key)
        known = self.cache.pods.get(info.key)
        if known is not None and known.uid == info.uid:
            self.cache.remove(info.key)
            self.notify(ClusterEvent.POD_GONE, known.node_name)

    def _placed(self, info: PodInfo) -> None:
        assumed = self._assumed.pop(info.key, None) is not None
        self.queue.drop(info.key)
        self.withdraw(info.key)
        known = self.cache.pods.get(info.key)
        if known is not None and known.uid == info.uid:
            info = in_queue_of(info, known)
        self.cache.place(info)
        if assumed or known is None or known.labels != info.labels or known.node_name != info.node_name:
            self.notify(ClusterEvent.POD_PLACED, info.node_name)
        if known is not None and (known.requests != info.requests or known.terminating != info.terminating):
            self.notify(ClusterEvent.POD_GONE, info.node_name)

    def _waits(self, info: PodInfo) -> None:
        if info.terminating:
            self.queue.drop(info.key)
            self.withdraw(info.key)
            return
        if info.nominated and self._nominated.get(info.key) != info.nominated:
            self.nominate(info, info.nominated)
        self.queue.put(info, self._clock.now())
        self.wake()


class _Hint:
    """Tells whether a change of a node helps a pod that waits; equal pods are asked about once."""

    def __init__(self, model: PodModel, node: str) -> None:
        self._model = model
        self._node = node
        self._known: dict[bytes, bool] = {}

    def __call__(self, entry: QueueEntry) -> bool | None:
        if QUEUE_LIMIT in entry.plugins:
            return not self._model.fair.refuses(entry.pod)
        if not entry.plugins <= _OF_ONE_NODE:
            return None
        pod = self._model.pod(entry.pod.key)
        kind = pod.kind if pod is not None else b""
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = self._model.fits(entry, self._node)
        return known
