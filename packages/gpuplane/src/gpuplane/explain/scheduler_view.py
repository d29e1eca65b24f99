"""The cluster as a scheduler of gpuplane sees it, made of the objects that were read once. Without I/O.

The classes that decide in the scheduler (`scheduler.pods.deciders`) decide here too, on a cache and a ledger of the
same classes. The rest of the scheduler's memory is not here: reservations of Bindings on their way, places that are
held for moved pods, the past of queues, and which GPU is reserved for a gang that has to be on one.

Volumes and resource claims of pods are left out, since the objects that decide about them are not read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from gpuplane import names
from gpuplane.explain.world import ClusterFacts, Object
from gpuplane.scheduler.gangs.members import GangKey, GangMembers
from gpuplane.scheduler.pods.decide import Decision, choose_node
from gpuplane.scheduler.pods.deciders import Deciders
from gpuplane.scheduler.pods.objects import ScheduledPod, transform_scheduled_pod
from gpuplane.scheduler.pods.promises import as_promised, keep_room
from gpuplane.scheduler.policies import Policies
from gpuplane.scheduler.queues.fair import FairQueues
from gpuplane.scheduler.queues.kueue_watch import kueue_queues
from gpuplane.scheduler.queues.objects import tree_of
from gpuplane.scheduler.simulation.offline import OfflineCluster
from gpuplane.sharing import Request
from gpuplane.sharing.placement import Placement
from kubekit.api.raw import RawPod
from kubekit.kube import SystemClock
from kubekit.scheduling.podinfo import DEFAULT_SCHEDULER, PodInfo

if TYPE_CHECKING:
    from gpuplane.explain.evictions import EvictionAnswer
    from gpuplane.explain.gangs import GangFindings

_ELSEWHERE = ("volumes", "resourceClaims")  # fields of pods about which other objects decide


def offline_cluster(facts: ClusterFacts, *, claims: bool = True) -> OfflineCluster:
    """Return the ledger, the cache and the filters of the pod scheduler.

    Args:
        claims: with the volumes and resource claims of pods, whose objects are unknown.
    """
    cluster = OfflineCluster(names.SCHEDULER_NAME, Policies(), facts.quotas.get)
    cluster.cluster.name_by(facts.naming)
    cluster.set_namespaces(facts.namespaces)
    gpunodes = {node.metadata.name: node for node in facts.gpunodes}
    for node in facts.nodes:
        # An object that does not decode is absent, as it is for informers.
        with contextlib.suppress(msgspec.ValidationError):
            cluster.add_node(node, gpunodes.get(node["metadata"]["name"]))
    for pod in facts.pods:
        with contextlib.suppress(msgspec.ValidationError):
            cluster.add_pod(pod if claims else _without_claims(pod))
    cluster.cluster.all_known()
    for one in cluster.known_pods():
        cluster.policies.seen(one.request)
    return cluster


class SchedulerView:
    """The pod scheduler's view; it also answers for pods of kube-scheduler."""

    def __init__(self, facts: ClusterFacts) -> None:
        self.facts = facts
        self.offline = offline = offline_cluster(facts, claims=False)
        self.cache, self.filtering = offline.cache, offline.filtering
        self.ledger = offline.cluster.ledger
        self.fair = FairQueues(offline.cluster, SystemClock(), self._request_of, self._promised)
        self.members = GangMembers()
        self.groups = facts.scheduling.groups
        self.deciders = Deciders(
            self.cache, offline.cluster, self.filtering, self.fair, self.members, facts.scheduling.groups
        )
        self.evictions: dict[bytes, EvictionAnswer] = {}  # by the kind of the pod, for `evictions`
        self.gangs: dict[tuple[GangKey, frozenset[str]], GangFindings] = {}  # by the uids of its pods, for `gangs`
        self._nominated: list[PodInfo] = []
        for name, node in self.cache.nodes.items():
            state = self.ledger.node(name)
            self.fair.capacity.set(name, node.facts, state.gpus if state is not None else ())
        self.kueue = kueue_queues(facts.scheduling.kueue.objects, facts.namespaces)
        tree, _ = tree_of(facts.queues, self.kueue)
        self.fair.follows_kueue = bool(self.kueue.queues)
        self.fair.set_tree(tree, self.cache.pods.values())
        self.cache.counted = self.fair.counted
        for pod in offline.known_pods():
            self.members.changed(None, pod)
            self._nominate(pod)

    def _request_of(self, key: str) -> Request:
        pod = self.pod(key)
        return pod.request if pod is not None else Request()

    def _promised(self) -> list[PodInfo]:
        return self._nominated

    def _nominate(self, pod: ScheduledPod) -> None:
        info = pod.info
        if info is None or info.node_name or not info.nominated or info.terminating:
            return
        self._nominated.append(info)
        cache, filtering, fair = self.cache, self.filtering, self.fair
        keep_room(info, pod, info.nominated, cache=cache, filtering=filtering, fair=fair)

    # -- pods --------------------------------------------------------------------------------------------------------

    def pod(self, key: str) -> ScheduledPod | None:
        """Return a pod by its namespace and name; None for one that waits for another scheduler without GPUs."""
        found = self.offline.pods.get(key)
        return found if isinstance(found, ScheduledPod) else None

    def as_ours(self, raw: Object) -> ScheduledPod | None:
        """Return a pod that waits for any scheduler as one that this view decides about; None for one that has ended.

        Raises ValidationError for a pod that cannot be decoded.
        """
        scheduler = raw["spec"].get("schedulerName") or DEFAULT_SCHEDULER
        named = {**raw, "spec": {**raw["spec"], "schedulerName": scheduler}}
        return transform_scheduled_pod(scheduler)(msgspec.convert(_without_claims(named), RawPod))

    def promised(self, pod: ScheduledPod) -> ScheduledPod:
        """Return the pod as the filters have to see it, if room is reserved for it."""
        if pod.info is None or not pod.info.nominated:
            return pod
        return as_promised(pod, pod.info, self.fair)

    def refusal(self, pod: ScheduledPod) -> str:
        """Return why the pod's queue may not hold more; empty where it may."""
        return self.fair.refuses(pod.info) if pod.info is not None else ""

    def decide(self, pod: ScheduledPod) -> Decision:
        """Return the decision for a pod that is placed by itself, as the scheduler makes it."""
        return choose_node(self.promised(pod), self.cache, self.filtering, refusal=self.refusal(pod))

    def place(self, pod: ScheduledPod, node: str) -> str:
        """Return where the pod gets GPUs on the node, as node/GPU,GPU; the node alone without GPUs."""
        placed = self.filtering.answers(pod.request).place(node) if pod.request else None
        if not isinstance(placed, Placement):
            return node
        return gpus_text(
            node, sorted({part.index for parts in placed.assignment.containers.values() for part in parts})
        )

    def holds(self, uid: str) -> list[int]:
        """Return the indices of the GPUs that a pod holds."""
        held = self.ledger.holding(uid)
        return sorted({index for _, index in held[1].held()}) if held is not None else []

    def holders(self, nodes: frozenset[str] | None) -> Iterator[PodInfo]:
        """Yield the bound pods with GPUs of some nodes, None for all."""
        for info in self.cache.pods.values():
            if (nodes is None or info.node_name in nodes) and self.holds(info.uid):
                yield info


def gpus_text(node: str, indices: list[int]) -> str:
    """Return GPUs of a node as node/GPU,GPU; the node alone for none."""
    return f"{node}/{','.join(map(str, indices))}" if indices else node


def _without_claims(pod: Object) -> Object:
    if not any(pod["spec"].get(name) for name in _ELSEWHERE):
        return pod
    return {**pod, "spec": {name: value for name, value in pod["spec"].items() if name not in _ELSEWHERE}}
