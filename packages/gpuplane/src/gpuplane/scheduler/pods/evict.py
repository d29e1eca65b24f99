"""Carries out a preemption: victims are marked and deleted, and the pod is nominated to the node.

Invariants:

- The nomination is in memory before the first victim is deleted, so that no other pod gets the room in between.
- A victim is deleted only under the uid that was decided about, and only while the pod that needs its room waits and
  the shares of their queues allow it.
- A pod makes room once at a time: until its victims are deleted, nothing else is planned for it.
- When something fails the nomination is withdrawn and the pod is tried again: it decides on what is there then.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

from gpuplane import names
from gpuplane.scheduler.pods.model import PodModel
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.pods.report import Reporter
from kubekit.api.core import ObjectReference, Pod
from kubekit.api.raw import RawBudget
from kubekit.errors import KubekitError
from kubekit.kube import Client, Clock, Conflict, NotFound
from kubekit.scheduling.podinfo import PodInfo
from kubekit.scheduling.preemption import Budget, outbid
from kubekit.scheduling.selectors import compile_selector

log = logging.getLogger("gpuplane.scheduler")
AGAIN_SECONDS: Final = 1.0
MESSAGE: Final = f"{names.SCHEDULER_NAME}: preempting to accommodate a higher priority pod"


class Evictor:
    def __init__(self, client: Client, clock: Clock, model: PodModel, reporter: Reporter) -> None:
        self.victims = 0
        self._client = client
        self._clock = clock
        self._model = model
        self._reporter = reporter
        self._at_work: set[str] = set()  # uids of the pods that room is made for

    def makes_room(self, info: PodInfo) -> bool:
        """Return whether victims of the pod are being deleted now."""
        return info.uid in self._at_work

    def nominate(self, places: Sequence[tuple[ScheduledPod, str]]) -> list[PodInfo]:
        """Keep the room for the pods, each on its node; return the pods whose nominations end for that."""
        keys = {pod.info.key for pod, _ in places if pod.info is not None}
        others: dict[str, PodInfo] = {}
        for pod, node in places:
            assert pod.info is not None
            others |= {one.key: one for one in outbid(self._model.cache.nodes[node], pod.info) if one.key not in keys}
        for other in others.values():
            self._model.withdraw(other.key)
        for pod, node in places:
            assert pod.info is not None
            self._model.nominate(pod.info, node, pod.request)
            self._at_work.add(pod.info.uid)
        return list(others.values())

    async def carry_out(
        self,
        places: Sequence[tuple[ScheduledPod, str]],
        victims: Sequence[PodInfo],
        outbid_pods: Iterable[PodInfo],
    ) -> None:
        """Write the nominations and delete the victims, while all the pods wait."""
        infos = [pod.info for pod, _ in places if pod.info is not None]
        first, node = places[0]
        try:
            for pod, name in places:
                assert pod.info is not None
                await self._write_nomination(pod.info, name)
            for other in outbid_pods:
                with contextlib.suppress(NotFound):
                    await self._write_nomination(other, None)
            for victim in victims:
                if not all(self._model.waits(info) for info in infos):
                    log.info("preemption stopped, since the pod does not wait any more pod=%s", first.shown)
                    return
                if not all(self._model.may_evict(info, victim) for info in infos):
                    log.info("preemption stopped, since queues hold something else now pod=%s", first.shown)
                    self._give_up(infos)
                    return
                await self._evict(victim, first, node)
        except KubekitError as error:
            log.warning("preemption failed pod=%s node=%s: %s", first.shown, node, error)
            # NB: no room is made for the pods meanwhile, or a pod that has gone, which no watch has delivered, would be
            # tried without a pause.
            await self._clock.sleep(AGAIN_SECONDS)
            self._give_up(infos)
        finally:
            self._at_work.difference_update(info.uid for info in infos)

    def _give_up(self, infos: Iterable[PodInfo]) -> None:
        """Keep no room for the pods, which are decided again."""
        for info in infos:
            self._model.withdraw(info.key)
        self._model.try_all_again()

    async def end_nomination(self, info: PodInfo) -> None:
        """Write that the pod waits for no node any more."""
        try:
            await self._write_nomination(info, None)
        except KubekitError as error:
            log.info("nomination not removed pod=%s: %s", info.key, error)

    async def _write_nomination(self, info: PodInfo, node: str | None) -> None:
        patch = {"metadata": {"uid": info.uid}, "status": {"nominatedNodeName": node}}
        await self._client.patch(Pod, info.name, patch, info.namespace, "merge", "status")

    async def _evict(self, victim: PodInfo, pod: ScheduledPod, node: str) -> None:
        assert pod.info is not None
        reclaims = self._model.fair.reclaims(pod.info, victim)
        if await self._delete(victim, f"{names.SCHEDULER_NAME}: {reclaims}" if reclaims else MESSAGE):
            self.victims += 1
            self._reporter.preempted(_reference(victim), pod.metadata.uid, node, reclaims)

    async def evict_of_gang(self, member: PodInfo, text: str) -> None:
        """Delete a pod of a gang that does not start. Raises KubekitError."""
        if await self._delete(member, f"{names.SCHEDULER_NAME}: {text}"):
            self._reporter.dissolved(_reference(member), text)

    async def _delete(self, victim: PodInfo, message: str) -> bool:
        """Mark the pod and delete it; return False for one that is gone or leaves already."""
        if victim.terminating:
            return False
        condition: dict[str, Any] = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": message,
            "lastTransitionTime": f"{self._clock.wall()[:19]}Z",
        }
        patch = {"metadata": {"uid": victim.uid}, "status": {"conditions": [condition]}}
        try:
            await self._client.patch(Pod, victim.name, patch, victim.namespace, "strategic", "status")
            await self._client.delete(Pod, victim.name, victim.namespace, victim.uid)
        except (NotFound, Conflict):
            return False  # it is gone, or another pod has its name
        self._model.leaves(victim)
        return True


def _reference(pod: PodInfo) -> ObjectReference:
    return ObjectReference(kind="Pod", api_version="v1", namespace=pod.namespace, name=pod.name, uid=pod.uid)


def read_budgets(budgets: Iterable[RawBudget]) -> list[Budget]:
    """Return the disruption budgets as preemption reads them."""
    return [
        Budget(
            budget.metadata.namespace,
            compile_selector(budget.spec.get("selector")),
            budget.status.get("disruptionsAllowed") or 0,
            budget.metadata.name,
        )
        for budget in budgets
    ]
