"""Starts one container of a pod: prepared, with its events, and watched from then on."""

from __future__ import annotations

import logging
import uuid
from typing import Final

import msgspec

from kubekit.errors import Retryable
from kubekit.kube import ApiError
from kubekit.kube.tasks import first_of
from tinykube.kubelet.containers import ContainerRecord, ProgramMissing, StartFailed, fit
from tinykube.kubelet.containers.records import is_running
from tinykube.kubelet.hooks import run_hook
from tinykube.kubelet.lifecycle import NEVER_SEEN, Ended, ObservedContainer
from tinykube.kubelet.pod import LifecycleHandler, SpecContainer
from tinykube.kubelet.podcontainers import PodContainers
from tinykube.kubelet.prepare import WaitingFor

log = logging.getLogger("tinykube.kubelet")

_RETRY_SECONDS: Final = 2.0


class ContainerStarter:
    """Starts the containers of one pod."""

    def __init__(self, containers: PodContainers) -> None:
        self._containers = containers
        self._machine = containers.machine

    async def start(self, name: str) -> None:
        """Start a container, or note in what is seen why it has to wait."""
        containers, machine = self._containers, self._machine
        pod, container = containers.pod, containers.find(name)
        assert container is not None
        before = containers.seen.get(name, NEVER_SEEN)
        attempt = before.attempt + 1 if before.ended is not None else 0
        now = machine.clock.time()
        try:
            spec = await containers.preparation.container(container, attempt)
            if container.target_container_name:
                spec = msgspec.structs.replace(spec, joins=self._target(container.target_container_name))
            if spec.sysctls:
                spec = msgspec.structs.replace(spec, shares_ipc=self._neighbour())
        except WaitingFor as waiting:
            self._wait(container, before, waiting, now)
            return
        machine.events.pulled(pod, container, now=machine.pulls(container))
        machine.events.note(pod, "Created", f"Created container: {name}", container)
        if not container.command and machine.images.find(container.image).stand_in:
            text = f"Container {name} serves nothing: {machine.images.missing(container.image)}"
            machine.events.note(pod, "StandIn", text, container)
        _, lacks = fit(spec, machine.launcher.mode)
        if lacks:
            text = f"Container {name} runs without these, which this machine does not allow: {'; '.join(lacks)}"
            machine.events.note(pod, "LessIsolated", text, container)
        record = self._record(container, attempt)
        try:
            record = await machine.launcher.start(record, spec, machine.now())
        except (StartFailed, OSError) as error:
            text = error.what if isinstance(error, StartFailed) else str(error)
            if isinstance(error, ProgramMissing):
                text = f"{text}; {machine.images.missing(container.image, error.program)}"
            machine.events.warn(pod, "Failed", f'Error: failed to start container "{name}": {text}', container)
            ended = Ended(record.id, 128, 0, "StartError", f"failed to create containerd task: {text}", now, now)
            containers.note_end(name, record, ended, before, attempt)
            return
        self._note_start(container, record, before)

    def _record(self, container: SpecContainer, attempt: int) -> ContainerRecord:
        machine, meta = self._machine, self._containers.pod.metadata
        return ContainerRecord(
            id=uuid.uuid4().hex + uuid.uuid4().hex,
            pod_uid=meta.uid,
            namespace=meta.namespace,
            pod=meta.name,
            name=container.name,
            attempt=attempt,
            image=container.image,
            log=str(machine.log_path(self._containers.pod, container.name, attempt)),
            created=machine.now(),
            requests=container.resources.requests,
            limits=container.resources.limits,
        )

    def _wait(self, container: SpecContainer, before: ObservedContainer, waiting: WaitingFor, now: float) -> None:
        pod, events = self._containers.pod, self._machine.events
        again = before.waiting is not None
        reason = waiting.later_reason if again else waiting.reason
        if waiting.later_reason == "ImagePullBackOff":
            events.not_pulled(pod, container, waiting.image, waiting.what, again=again)
        elif before.waiting is None or before.waiting[1] != waiting.what:
            events.warn(pod, waiting.event, waiting.what, container)
        self._containers.seen[container.name] = msgspec.structs.replace(
            before, waiting=(reason, waiting.what), retry_at=now + waiting.retry_seconds
        )

    def _note_start(self, container: SpecContainer, record: ContainerRecord, before: ObservedContainer) -> None:
        containers, machine, name = self._containers, self._machine, container.name
        previous = containers.records.get(name)
        containers.records[name] = record
        if previous is not None and before.previous is not None and before.previous.id != previous.id:
            machine.launcher.records.remove(before.previous.id)
        machine.events.note(containers.pod, "Started", f"Started container {name}", container)
        containers.seen[name] = ObservedContainer(
            id=record.id,
            attempt=record.attempt,
            started_at=machine.started_at(record),  # as the next kubelet will read it
            previous=before.ended,
            crashes=before.crashes,
            started=container.startup_probe is None,
            ready=container.readiness_probe is None and container.startup_probe is None,
        )
        containers.watch(record)
        if container.lifecycle.post_start is not None:
            containers.spawn(f"hook {name}", self._post_start(container, record, container.lifecycle.post_start))
        if not containers.has_task("volumes"):
            containers.spawn("volumes", self._keep_volumes())

    def _neighbour(self) -> int | None:
        """Return the main process of a container of the pod that runs; None for no such container."""
        seen, records = self._containers.seen, self._containers.records
        return next((records[name].pid for name, state in seen.items() if state.running), None)

    def _target(self, name: str) -> int:
        """Return the main process of a container that an ephemeral one joins. Raises WaitingFor."""
        record = self._containers.records.get(name)
        if record is None or not is_running(record):
            raise WaitingFor(f'Error: failed to find the target container "{name}"', "CreateContainerError")
        return record.pid

    async def _post_start(self, container: SpecContainer, record: ContainerRecord, hook: LifecycleHandler) -> None:
        pod = self._containers.pod
        problem = await run_hook(self._machine, pod, container, record, hook)
        if problem:
            text = f"PostStartHook of {container.name} failed: {problem}"
            self._machine.events.warn(pod, "FailedPostStartHook", text, container)
            self._containers.note_probe(container.name, unhealthy="FailedPostStartHook")

    async def _keep_volumes(self) -> None:
        """Mounted ConfigMaps and Secrets follow their objects; tokens are renewed before they end."""
        preparation, clock = self._containers.preparation, self._machine.clock
        while True:
            due = preparation.refresh_at
            if due is None:
                await preparation.stale.wait()
            else:
                await first_of(preparation.stale.wait(), clock.sleep(max(due - clock.time(), 1.0)))
            try:
                await preparation.refresh()
            except (Retryable, ApiError, OSError) as error:  # an object that went: the files stay as they were
                log.warning("%s: volumes are not renewed: %s", self._containers.key, error)
                await clock.sleep(_RETRY_SECONDS)
