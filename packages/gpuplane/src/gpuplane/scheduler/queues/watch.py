"""Follows the objects that declare queues, and writes into GPUQueues what each queue holds.

Invariants:

- The tree is that of the objects as the watches delivered them last; several changes at once are one new tree, and
  so are those of a pause of REST_FACTOR times as long as the last tree took.
- A finding is an event on its object, once, and stands in the status for as long as it holds.
- A status is written when it says something else than before, by the replica that leads, and at most every
  STATUS_SECONDS. The next leader reads the past use from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any, Final

import msgspec

from gpuplane.api.gpuqueue import GPUQueue, GPUQueueStatus
from gpuplane.scheduler.pods.model import PodModel
from gpuplane.scheduler.queues.kueue_watch import KueueWatch
from gpuplane.scheduler.queues.objects import average_of, tree_of, written
from gpuplane.scheduler.queues.shares import dominant_share
from gpuplane.scheduler.queues.tree import QueueFinding
from kubekit.api.core import Namespace, ObjectReference
from kubekit.api.meta import to_dict
from kubekit.errors import KubekitError
from kubekit.kube import Client, Clock, EventRecorder, Informer, NotFound

log = logging.getLogger("gpuplane.scheduler")
STATUS_SECONDS: Final = 10.0
REST_FACTOR: Final = 20.0
"""The pause after a new tree, in the time that it took: trees take a twentieth of the scheduler's time at most."""
NOT_AS_WRITTEN: Final = "QueueNotAsWritten"


class QueueWatch:
    """Feeds the queues of the scheduler's model."""

    def __init__(
        self,
        client: Client,
        recorder: EventRecorder,
        clock: Clock,
        model: PodModel,
        namespaces: Informer[Namespace],
    ) -> None:
        self.queues: Informer[GPUQueue] = Informer(client, GPUQueue, clock=clock, optional=True)
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._model = model
        self._changed = asyncio.Event()
        self._ready = asyncio.Event()
        self._findings: set[QueueFinding] = set()
        self._reported: set[QueueFinding] = set()
        self._leads = False
        self._objects: dict[str, tuple[str, str]] = {}  # of Kueue, by the name of the queue
        self.queues.add_handler(self._object_changed)
        self._kueue = KueueWatch(client, clock, namespaces, self._changed.set)

    async def synced(self) -> None:
        """Return when the tree is that of the objects."""
        await self._ready.wait()

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queues.run())
            group.create_task(self._kueue.run())
            await asyncio.gather(self.queues.synced(), self._kueue.synced())
            self._build()
            self._ready.set()
            while True:
                await self._changed.wait()
                began = self._clock.now()
                self._build()
                # NB: a tenant may change its LocalQueue again and again, and each time all pods are counted.
                await self._clock.sleep(REST_FACTOR * (self._clock.now() - began))

    async def lead(self) -> None:
        """Report findings and statuses, and try pods again whose queues are below their guarantee, until cancelled."""
        for queue in self.queues.items():
            if (average := average_of(queue.status)) is not None:
                self._model.fair.remember(queue.metadata.name, average)
        self._leads = True
        self._report_findings()
        while True:
            await self._clock.sleep(STATUS_SECONDS)
            self._model.try_below_guarantee()
            for queue in self.queues.items():
                status = self.status(queue)
                if msgspec.structs.replace(status, observed=queue.status.observed) != queue.status:
                    await self._write(queue, status)

    def _object_changed(self, old: Any, new: Any) -> None:
        if old is None or new is None or old.spec != new.spec:
            self._changed.set()

    def _build(self) -> None:
        """Make the tree of the objects as they are now."""
        self._changed.clear()
        theirs = self._kueue.read()
        self._objects = theirs.objects
        self._model.fair.follows_kueue = bool(theirs.queues)
        tree, findings = tree_of(self.queues.items(), theirs)
        self._findings = set(findings)
        log.info("queues read queues=%d findings=%d", len(list(tree)), len(findings))
        self._model.set_queues(tree)
        self._report_findings()

    def _report_findings(self) -> None:
        """Report what is new of the findings, if this replica leads."""
        if not self._leads:
            return
        for finding in sorted(self._findings - self._reported, key=str):
            about: GPUQueue | ObjectReference | None = self.queues.get(finding.queue)
            if about is None and finding.queue in self._objects:
                about = self._kueue.about(*self._objects[finding.queue])
            if about is not None:
                self._recorder.event(about, "Warning", NOT_AS_WRITTEN, finding.message)
        self._reported = set(self._findings)

    # -- the status --------------------------------------------------------------------------------------------------

    def status(self, queue: GPUQueue) -> GPUQueueStatus:
        """Return the state of a queue now."""
        fair, name = self._model.fair, queue.metadata.name
        waiting = self._waiting()
        share = dominant_share(fair.sums.held(name), fair.capacity.total)
        return GPUQueueStatus(
            held=written(fair.sums.held(name)),
            borrowed=written(fair.sums.borrowed(name)),
            share=f"{share * 100:.3g}%",
            waiting=waiting[name],
            average=written(fair.average(name)),
            observed=f"{self._clock.wall()[:19]}Z",
            message="; ".join(finding.message for finding in sorted(self._findings, key=str) if finding.queue == name),
        )

    def _waiting(self) -> Counter[str]:
        """Count the waiting pods of each queue, with those below it."""
        fair, counts = self._model.fair, Counter[str]()
        for info in self._model.queue.pods():
            counts.update(fair.tree.path(fair.queue_of(info)))
        return counts

    async def _write(self, queue: GPUQueue, status: GPUQueueStatus) -> None:
        meta = queue.metadata
        try:
            await self._client.patch(
                GPUQueue,
                meta.name,
                {"metadata": {"uid": meta.uid}, "status": to_dict(status)},
                None,
                "merge",
                "status",
            )
        except NotFound:
            return
        except KubekitError as error:
            log.warning("status of queue not written queue=%s: %s", meta.name, error)
