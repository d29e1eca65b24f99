"""The objects of a replica: they follow the cluster, and decide only while `lead` runs.

Invariant: until `lead` runs nothing is reserved, written or reported. So a standby may follow the cluster before it
takes the lease, and has nothing to read when it does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from gpuplane import names
from gpuplane.scheduler.binding import POST_SECONDS, Binder
from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.defrag.limits import MoveLimits
from gpuplane.scheduler.drift import BYPASSED, DIFFERS, NOT_ASKED
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.pods.objects import ScheduledPod, transform_scheduled_node, transform_scheduled_pod
from gpuplane.scheduler.pods.scheduler import PodScheduler
from gpuplane.scheduler.policies import LEARN_SECONDS, Chosen, Policies
from gpuplane.scheduler.predicates import Annotator
from gpuplane.scheduler.preemption import Preemption
from gpuplane.scheduler.quota import QuotaSettings
from gpuplane.scheduler.quota_watch import NOT_UNDERSTOOD, QuotaWatch
from gpuplane.scheduler.requeue import Requeuer
from gpuplane.scheduler.reservations import Reservations
from gpuplane.scheduler.settlement import Settlement
from gpuplane.scheduler.transforms import CachedPod
from gpuplane.sharing import WHOLE, Request
from kubekit.api.core import ConfigMap, ObjectReference
from kubekit.api.raw import RawNode, RawPod
from kubekit.kube import Client, Clock, EventRecorder, Informer

log = logging.getLogger("gpuplane.scheduler")
_LIKE_GPU_ADMISSION = Chosen("tightest")


class Leader:
    """
    Args:
        client: one that writes only while we lead.
        now_ns: the wall clock.
        scheduler_name: pods that name it in `spec.schedulerName` are scheduled; none without a name.
        moves: what moves of pods are allowed.
        namespace: where they are recorded.
    """

    def __init__(
        self,
        client: Client,
        recorder: EventRecorder,
        chosen: Chosen,
        clock: Clock,
        now_ns: Callable[[], int],
        scheduler_name: str = "",
        moves: MoveLimits = MoveLimits(),  # noqa: B008 - it is frozen
        namespace: str = names.OPERATOR_NAMESPACE,
    ) -> None:
        self._clock = clock
        self._recorder = recorder
        self.policies = Policies(chosen)
        self.cluster = _cluster(client, clock, scheduler_name)
        self._leads = False
        self.quotas = QuotaWatch(client, clock, self._quotas_changed, self._quotas_invalid)
        settlement = Settlement(client)
        self.reservations = Reservations(self.cluster, clock, settlement.look)
        self.binder = Binder(
            client, self.cluster, self.reservations, settlement, recorder=recorder, clock=clock, now_ns=now_ns
        )
        self.requeuer = Requeuer(client, self.cluster, clock)
        self.filtering = self._filtering(self.policies)
        self.cluster.on_differs.append(self._differs)
        self.cluster.on_bypassed.append(self._bypassed)
        self.preemption = Preemption(self.cluster, self.filtering)
        like_gpu_admission = self._filtering(Policies(_LIKE_GPU_ADMISSION))
        self.annotator = Annotator(
            client,
            self.cluster,
            like_gpu_admission,
            self.binder,
            reservations=self.reservations,
            settlement=settlement,
            now_ns=now_ns,
        )
        self.pods: PodScheduler | None = None
        if scheduler_name:
            self.pods = PodScheduler(
                client,
                recorder,
                clock,
                cluster=self.cluster,
                reservations=self.reservations,
                binder=self.binder,
                filtering=self.filtering,
                policies=self.policies,
                moves=moves,
                namespace=namespace,
            )

    def _filtering(self, policies: Policies) -> Filtering:
        return Filtering(self.cluster, self.reservations, policies=policies, quotas=self.quotas, waiting=self.requeuer)

    def _differs(self, pod: CachedPod, text: str) -> None:
        self._warn(pod, DIFFERS, text)

    def _bypassed(self, pod: CachedPod) -> None:
        if any(ask.core % WHOLE for ask in pod.request.asks):  # the kubelet counts whole GPUs by itself
            self._warn(pod, BYPASSED, NOT_ASKED)

    def _quotas_invalid(self, about: ConfigMap, text: str) -> None:
        if self._leads:
            self._recorder.event(about, "Warning", NOT_UNDERSTOOD, text)

    def _warn(self, pod: CachedPod, reason: str, text: str) -> None:
        if not self._leads:
            return
        meta = pod.metadata
        about = ObjectReference(kind="Pod", api_version="v1", namespace=meta.namespace, name=meta.name, uid=meta.uid)
        self._recorder.event(about, "Warning", reason, text)

    def _quotas_changed(self, naming: QuotaSettings) -> None:
        self.cluster.name_by(naming)
        self.requeuer.everywhere()
        if self.pods is not None:
            self.pods.model.quotas_changed()

    async def run(self, ready: Callable[[], None]) -> None:
        """Follow the cluster and lead until cancelled; `ready` is called when everything is known."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.lead(ready))
            group.create_task(self.follow())

    async def follow(self) -> None:
        """Follow the cluster until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.cluster.run())
            group.create_task(self.quotas.run())
            if self.pods is not None:
                for informer in self.pods.informers:
                    group.create_task(informer.run())
                group.create_task(self.pods.queues.run())

    async def lead(self, ready: Callable[[], None], version: str = "") -> None:
        """Decide until cancelled, while `follow` runs; `ready` is called when the first pod may be decided.

        Args:
            version: a resource version of pods, up to which every change has to be known before. Empty if all that is
                known was read by this leader.
        """
        try:
            self._leads = True
            self._report_what_stands()
            if self.pods is not None:
                await asyncio.gather(*(informer.synced() for informer in self.pods.informers))
                await self.pods.queues.synced()
            await self.cluster.synced()
            await self.quotas.synced()
            if version:
                await self.cluster.pods.reached(version)
            for pod in self.cluster.by_uid.values():
                self.policies.seen(pod.request)
            self.policies.of(Request())
            await self._learn()
            if self.pods is not None:
                # Before the first decision, the extender's included: no other pod gets the places of moves under way.
                await self.pods.mover.recover()
            self.annotator.adopt()
            async with asyncio.TaskGroup() as group:
                group.create_task(self.requeuer.run(self.filtering))
                group.create_task(self._keep_learning())
                if self.pods is not None:
                    group.create_task(self.pods.run())
                ready()
                self._wake_all()
        finally:
            await self.reservations.aclose(POST_SECONDS)
            if self.pods is not None:
                await self.pods.aclose()

    def _report_what_stands(self) -> None:
        """Report what was found while another replica led, and holds still."""
        for uid, text in self.cluster.differing.items():
            if (pod := self.cluster.by_uid.get(uid)) is not None:
                self._differs(pod, text)
        for about, text in self.quotas.invalid.values():
            self._quotas_invalid(about, text)

    async def _learn(self) -> None:
        await self.policies.learn([state.gpus for state in self.cluster.ledger.nodes()])

    async def _keep_learning(self) -> None:
        """Learn every LEARN_SECONDS, and sooner while most of the pods are new, as in a cluster's first minutes."""
        due = self.policies.due
        while True:
            timer = self._clock.call_later(LEARN_SECONDS, due.set)
            try:
                await due.wait()
            finally:
                timer.cancel()
            due.clear()  # pods that arrive while it learns may set it again
            await self._learn()

    def _wake_all(self) -> None:
        """Queue all waiting pods again: they may have been refused only because no replica answered."""
        for pod in self.cluster.by_uid.values():
            if not pod.spec.node_name and not (isinstance(pod, ScheduledPod) and pod.ours):
                self.requeuer.refused(pod)
        self.requeuer.everywhere()


def _cluster(client: Client, clock: Clock, scheduler_name: str) -> Cluster:
    """Return the view of the cluster; with a scheduler's name its pods and nodes have what this scheduler reads."""
    if not scheduler_name:
        return Cluster(client, clock=clock)
    pods: Informer[Any] = Informer(client, RawPod, keep=transform_scheduled_pod(scheduler_name), clock=clock)
    nodes: Informer[Any] = Informer(client, RawNode, keep=transform_scheduled_node, clock=clock)
    return Cluster(client, clock=clock, pods=pods, nodes=nodes)
