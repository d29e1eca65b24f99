"""One pod on one node: looks, decides (`lifecycle.decide`), acts, reports, and waits until something changes.

Invariants:

- One task a pod; everything that happens (an exit, a probe, a new version of the pod) only changes what is seen and
  pokes it.
- A status is written when it differs from the last one written, so a pod that comes up costs one write, two with
  probes.
- The pod's object goes only after its last container has ended.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from typing import Any

import msgspec

from kubekit.errors import Retryable
from kubekit.kube import ApiError, Conflict, NotFound
from kubekit.kube.tasks import first_of
from tinykube.kubelet.containers import ContainerRecord, remove_tree
from tinykube.kubelet.lifecycle import ObservedContainer, Phase, PodPlan, decide
from tinykube.kubelet.machine import KubeletMachine
from tinykube.kubelet.pod import KubeletPod
from tinykube.kubelet.podcontainers import PodContainers, past_containers
from tinykube.kubelet.podresize import PodResizer
from tinykube.kubelet.rejected import PodRejected
from tinykube.kubelet.starting import ContainerStarter
from tinykube.kubelet.status import pod_status
from tinykube.kubelet.stopping import ContainerStopper

log = logging.getLogger("tinykube.kubelet")

_RETRY_SECONDS = 2.0


class PodWorker:
    """Runs one pod until it is gone. `run` returns when nothing of it is left; `update` and `vanish` may come any
    time."""

    def __init__(self, machine: KubeletMachine, pod: KubeletPod, found: list[ContainerRecord]) -> None:
        self.machine = machine
        self._containers = PodContainers(machine, pod)
        self._starter = ContainerStarter(self._containers)
        self._stopper = ContainerStopper(self._containers)
        self._resizer = PodResizer(self._containers, self._stopper.stop)
        self._begun = machine.clock.time()
        self._written: dict[str, Any] | None = None
        self._failure: tuple[str, str] | None = None
        self._waits: set[str] = set()  # ids of the containers whose back-off has an event
        self.known = False  # whether its turn to be admitted has come: before that, a kubelet does not list it
        machine.keep_ip(pod)
        for record in sorted(found, key=lambda r: r.attempt):
            self._containers.adopt(record)
        if self.seen and not pod.status.ended:
            machine.host_ports.hold(pod)
            self._resizer.adopt()
        self._containers.preparation.claims_ready = any(state.running for state in self.seen.values())

    @property
    def pod(self) -> KubeletPod:
        """Return the pod, with the resources that are allocated for it."""
        return self._containers.pod

    @property
    def seen(self) -> dict[str, ObservedContainer]:
        return self._containers.seen

    @property
    def records(self) -> dict[str, ContainerRecord]:
        return self._containers.records

    @property
    def key(self) -> str:
        return self._containers.key

    def update(self, pod: KubeletPod) -> None:
        """A newer version of the pod."""
        old = self.pod.metadata
        self._resizer.update(pod)
        if (old.labels, old.annotations) != (pod.metadata.labels, pod.metadata.annotations):
            self._containers.preparation.stale.set()  # files of the downward API
        self.poke()

    def vanish(self) -> None:
        """The object is gone (forced): end what still runs, quickly."""
        self._stopper.gone = True
        self.machine.host_ports.release(self.pod.metadata.uid)
        self.poke()

    def poke(self) -> None:
        self._containers.poke()

    # -- the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            await self._admit()
            while not await self._step():
                pass
        finally:
            await self._containers.close()

    async def _step(self) -> bool:
        """One round; True when the pod is over and gone."""
        self._containers.changed.clear()
        plan = self._decide(self.machine.clock.time())
        ending = self._stopper.gone or self.pod.metadata.deletion_timestamp is not None or plan.finished is not None
        if not ending and not self._resizer.fresh:
            self._resizer.act()
        for stop in plan.stop:
            self._stopper.stop(stop)
        for name in plan.start:
            await self._starter.start(name)
        self._note_waits(plan)
        if plan.start or plan.stop:
            plan = self._decide(self.machine.clock.time())
        if plan.finished is not None:
            # As in Kubernetes' kubelet: a scheduler that reads that the pod has ended may bind another one at once.
            self.machine.devices.release(self.pod.metadata.uid)
            self.machine.host_ports.release(self.pod.metadata.uid)
            self._resizer.release()
            self._containers.release_objects()
        try:
            if plan.finished is not None:
                await self.machine.claims.unprepare(self.pod.metadata.uid)
            await self._report(plan)
            if plan.finished is not None and (self._stopper.gone or self.pod.metadata.deletion_timestamp is not None):
                await self._leave()
                return True
        except NotFound:
            self._stopper.gone = True  # the watch will say so too; go on ending it
            self.poke()
        except (ApiError, Retryable) as error:
            log.warning("%s: %s; trying again", self.key, error)
            await self._wait(_RETRY_SECONDS)
            return False
        if self._resizer.fresh:
            self._resizer.fresh = False  # now that the status says so, it is carried out
            return False
        if plan.start:
            return False  # one that could not be started has its first retry at once
        wakes = [at for at in (plan.wake_at, self._resizer.retry_at) if at is not None]
        await self._wait(max(0.0, min(wakes) - self.machine.clock.time()) if wakes else None)
        return False

    def _decide(self, now: float) -> PodPlan:
        pod, gone = self.pod, self._stopper.gone
        deadline = pod.spec.active_deadline_seconds
        if deadline is not None and self._failure is None and now >= self._begun + deadline:
            self._failure = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
            self.machine.events.note(pod, *self._failure)
        plan = decide(pod, self.seen, now, evicted=self._failure is not None or gone)
        if deadline is not None and self._failure is None:
            at = self._begun + deadline
            plan = msgspec.structs.replace(plan, wake_at=at if plan.wake_at is None else min(at, plan.wake_at))
        if plan.finished is not None and pod.status.ended and not gone:
            plan = msgspec.structs.replace(plan, finished=Phase(pod.status.phase))  # a final phase never changes
        return plan

    def _note_waits(self, plan: PodPlan) -> None:
        """An event for each end of a container that its back-off follows."""
        for name in plan.backing_off:
            container, ended = self._containers.find(name), self.seen[name].ended
            if container is not None and ended is not None and ended.id not in self._waits:
                self._waits.add(ended.id)
                self.machine.events.backing_off(self.pod, container)

    async def _wait(self, seconds: float | None) -> None:
        changed = self._containers.changed
        if seconds is None:
            await changed.wait()
            return
        await first_of(changed.wait(), self.machine.clock.sleep(seconds))

    # -- admission -------------------------------------------------------------------------------------------------

    def _begins(self) -> None:
        self.known = True

    async def _admit(self) -> None:
        pod = self.pod
        self.known = bool(self.seen) or pod.metadata.deletion_timestamp is not None
        if pod.status.ended:
            self._failure = (pod.status.reason, pod.status.message) if pod.status.reason else None
            if not self.seen:
                self.seen.update(past_containers(pod))
            return
        if self.seen or pod.metadata.deletion_timestamp is not None:
            return  # it was admitted by the kubelet before
        try:
            await self.machine.admit(pod, self._begins)
        except PodRejected as rejected:
            self._failure = (rejected.reason, f"Pod was rejected: {rejected.what}")
            self.machine.events.warn(pod, rejected.reason, rejected.what)
        else:
            self._resizer.admit()

    # -- reporting -------------------------------------------------------------------------------------------------

    async def _report(self, plan: PodPlan) -> None:
        if self._stopper.gone:
            return
        machine, pod = self.machine, self.pod
        status = pod_status(
            pod,
            self.seen,
            plan,
            now=machine.clock.time(),
            started_at=self._begun,
            host_ip=machine.host_ip,
            pod_ip=machine.pod_ip(pod.metadata.uid),
            runtime=machine.runtime_name,
            failure=self._failure,
            resources=machine.claims.resources_status(pod),
            actual=self._resizer.actual,
            resize=self._resizer.conditions(),
        )
        if status == self._written:
            return
        meta = pod.metadata
        body = {"metadata": {"uid": meta.uid}, "status": status}
        try:
            await machine.client.patch(KubeletPod, meta.name, body, meta.namespace, "strategic", "status")
        except Conflict as error:  # another pod of this name by now
            raise NotFound(f"pod {self.key} was replaced", status=404, reason="NotFound") from error
        self._written = status

    async def _leave(self) -> None:
        meta = self.pod.metadata
        if not self._stopper.gone:
            with contextlib.suppress(NotFound, Conflict):
                await self.machine.client.delete(KubeletPod, meta.name, meta.namespace, meta.uid, grace_seconds=0)
        self.machine.forget(self.pod)
        for record in self.machine.launcher.records.all():
            if record.pod_uid == meta.uid:
                self.machine.launcher.records.remove(record.id)
        with contextlib.suppress(OSError):
            remove_tree(self.machine.pod_dir(meta.uid))
        shutil.rmtree(self.machine.pod_logs(self.pod), ignore_errors=True)
        log.info("%s: gone", self.key)
