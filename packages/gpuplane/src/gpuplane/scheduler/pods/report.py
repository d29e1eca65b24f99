"""Reports decisions: events in kube-scheduler's words, and the condition PodScheduled of a pod that waits.

Invariants:

- A condition is written only to the version of the pod that was tried: the API server sets it to True with the Binding,
  and a write that comes later changes nothing.
- A condition that a pod has already is not written again. Of several for one pod the last is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gpuplane.scheduler.pods.objects import ScheduledPod
from kubekit.api.core import ObjectReference, Pod
from kubekit.errors import KubekitError
from kubekit.kube import Client, Clock, Conflict, EventRecorder, NotFound, TokenBucket

log = logging.getLogger("gpuplane.scheduler")
WRITERS: Final = 4
WRITE_SECONDS: Final = 5.0
TRIES, AGAIN_SECONDS = 5, 0.5  # of a condition whose pod changed meanwhile
SCHEDULED_PER_SECOND, SCHEDULED_AT_ONCE = 50.0, 500.0  # events of bound pods are hints: the pod has its node


class Reporter:
    """Writes in the background; `run` does the writing.

    Args:
        latest: the pod with this namespace and name, as a watch delivered it last.
    """

    def __init__(
        self,
        client: Client,
        recorder: EventRecorder,
        clock: Clock,
        latest: Callable[[str], ScheduledPod | None],
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._latest = latest
        self._scheduled = TokenBucket(SCHEDULED_PER_SECOND, SCHEDULED_AT_ONCE, clock.now)
        self._pending: dict[str, tuple[ScheduledPod, str, str]] = {}  # by uid, in the order of the first report
        self._said: dict[str, tuple[str, str]] = {}  # by uid, what was written and no watch has delivered yet
        self._writing: set[str] = set()
        self._something = asyncio.Event()

    def failed(self, pod: ScheduledPod, reason: str, message: str) -> None:
        """Report that no node was found, or that the pod was not bound."""
        self._recorder.event(_reference(pod), "Warning", "FailedScheduling", message)
        uid = pod.metadata.uid
        if self._said.get(uid, pod.said) == (reason, message):
            self._pending.pop(uid, None)
            return
        self._pending[uid] = pod, reason, message
        self._something.set()

    def scheduled(self, pod: ScheduledPod, node: str) -> None:
        """Report that the pod is bound."""
        self.ended(pod.metadata.uid)
        if self._scheduled.take():
            message = f"Successfully assigned {pod.shown} to {node}"
            self._recorder.event(_reference(pod), "Normal", "Scheduled", message)

    def preempted(self, victim: ObjectReference, by: str, node: str, why: str = "") -> None:
        """Report that a pod was evicted for another one."""
        message = f"Preempted by pod {by} on node {node}" + (f": {why}" if why else "")
        self._recorder.event(victim, "Normal", "Preempted", message)

    def dissolved(self, member: ObjectReference, text: str) -> None:
        """Report that a pod was evicted since its gang does not start."""
        self._recorder.event(member, "Warning", "GangDissolved", text)

    def ended(self, uid: str) -> None:
        """Forget a pod that is bound or gone."""
        self._pending.pop(uid, None)
        self._said.pop(uid, None)

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(self._write_all())

    async def _write_all(self) -> None:
        while True:
            await self._something.wait()
            uid = next((uid for uid in self._pending if uid not in self._writing), "")
            if not uid:
                self._something.clear()
                continue
            report = self._pending.pop(uid)
            self._writing.add(uid)
            try:
                await self._write(*report)
            finally:
                self._writing.discard(uid)
                if self._pending:
                    self._something.set()

    async def _write(self, pod: ScheduledPod, reason: str, message: str) -> None:
        uid, again = pod.metadata.uid, 0
        while uid not in self._pending and again < TRIES:
            now = self._latest(pod.shown)
            if now is None or now.metadata.uid != uid or now.spec.node_name or now.said == (reason, message):
                return
            again += 1
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._patch(now, reason, message)
            except Conflict:
                await self._clock.sleep(AGAIN_SECONDS)  # the watch delivers the version that is there
            except NotFound:
                return
            except (KubekitError, TimeoutError) as error:
                log.warning("condition not written pod=%s: %s", pod.shown, error)
                return
            else:
                self._said[uid] = reason, message
                return

    async def _patch(self, pod: ScheduledPod, reason: str, message: str) -> None:
        meta = pod.metadata
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        if pod.said == ("", ""):
            condition["lastTransitionTime"] = f"{self._clock.wall()[:19]}Z"
        patch = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"conditions": [condition]},
        }
        await self._client.patch(Pod, meta.name, patch, meta.namespace, "strategic", "status")


def _reference(pod: ScheduledPod) -> ObjectReference:
    meta = pod.metadata
    return ObjectReference(kind="Pod", api_version="v1", namespace=meta.namespace, name=meta.name, uid=meta.uid)
