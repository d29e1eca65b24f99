"""One pod on one node: looks, decides (`lifecycle.decide`), acts, reports, and waits until something changes.

Invariants:

- One task a pod; everything that happens (an exit, a probe, a new version of the pod) only changes what is seen and
  pokes it.
- A status is written when it differs from the last one written, so a pod that comes up costs one write, two with
  probes.
- The pod's object goes only after its last container has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import uuid
from collections.abc import Coroutine
from typing import Any

import msgspec

from kubekit.errors import Retryable
from kubekit.kube import ApiError, Conflict, NotFound
from kubekit.kube.tasks import first_of
from tinykube.kubelet.containers import ContainerRecord, ProgramMissing, StartFailed, fit, remove_tree
from tinykube.kubelet.containers.records import handles_sigterm, is_running, signal_container
from tinykube.kubelet.hooks import run_hook
from tinykube.kubelet.lifecycle import NEVER_SEEN, WORK_DONE, Ended, ObservedContainer, Phase, PodPlan, Stop, decide
from tinykube.kubelet.logs import last_lines
from tinykube.kubelet.machine import KubeletMachine
from tinykube.kubelet.pod import KubeletPod, LifecycleHandler, SpecContainer, every_container, memory_limit
from tinykube.kubelet.prepare import Preparation, WaitingFor
from tinykube.kubelet.probes import watch_probes
from tinykube.kubelet.rejected import PodRejected
from tinykube.kubelet.status import pod_status

log = logging.getLogger("tinykube.kubelet")

_RETRY_SECONDS = 2.0
_MESSAGE_BYTES = 4096
_SHORTEST_GRACE_SECONDS = 2.0  # of a container whose turn comes when the time of its pod is over


class PodWorker:
    """Runs one pod until it is gone. `run` returns when nothing of it is left; `update` and `vanish` may come any
    time."""

    def __init__(self, machine: KubeletMachine, pod: KubeletPod, found: list[ContainerRecord]) -> None:
        self.machine = machine
        self.pod = pod
        self.seen: dict[str, ObservedContainer] = {}
        self.records: dict[str, ContainerRecord] = {}
        self._poke = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._begun = machine.clock.time()
        self._written: dict[str, Any] | None = None
        self._failure: tuple[str, str] | None = None
        self._gone = False
        self._ends_since: float | None = None
        self._memory: dict[str, int] = {}  # bytes that a container may have, by its id
        self._waits: set[str] = set()  # ids of the containers whose back-off has an event
        self.known = False  # whether its turn to be admitted has come: before that, a kubelet does not list it
        self._preparation = Preparation(machine, pod)
        machine.keep_ip(pod)
        for record in sorted(found, key=lambda r: r.attempt):
            self._adopt(record)
        if self.seen and not pod.status.ended:
            machine.host_ports.hold(pod)
        self._preparation.claims_ready = any(state.running for state in self.seen.values())

    @property
    def key(self) -> str:
        return f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"

    def update(self, pod: KubeletPod) -> None:
        """A newer version of the pod."""
        old, self.pod, self._preparation.pod = self.pod.metadata, pod, pod
        self._limit_memory()
        if (old.labels, old.annotations) != (pod.metadata.labels, pod.metadata.annotations):
            self._preparation.stale.set()  # files of the downward API
        self._poke.set()

    def _limit_memory(self) -> None:
        """Containers that run follow a resize of their pod."""
        for container in self.pod.spec.containers:
            record, limit = self.records.get(container.name), memory_limit(container)
            if record is None or not record.memory or limit is None or self._memory.get(record.id, limit) == limit:
                continue
            if problem := self.machine.launcher.limit_memory(record, limit):
                self.machine.events.warn(self.pod, "ResizeError", f"memory limit of {limit}: {problem}", container)
            self._memory[record.id] = limit

    def vanish(self) -> None:
        """The object is gone (forced): end what still runs, quickly."""
        self._gone = True
        self.machine.host_ports.release(self.pod.metadata.uid)
        self._poke.set()

    def poke(self) -> None:
        self._poke.set()

    # -- the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            await self._admit()
            while not await self._step():
                pass
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._preparation.close()

    async def _step(self) -> bool:
        """One round; True when the pod is over and gone."""
        self._poke.clear()
        now = self.machine.clock.time()
        plan = self._decide(now)
        for stop in plan.stop:
            self._stop(stop)
        for name in plan.start:
            await self._start(name)
        self._note_waits(plan)
        if plan.start or plan.stop:
            plan = self._decide(self.machine.clock.time())
        if plan.finished is not None:
            # As in Kubernetes' kubelet: a scheduler that reads that the pod has ended may bind another one at once.
            self.machine.devices.release(self.pod.metadata.uid)
            self.machine.host_ports.release(self.pod.metadata.uid)
        try:
            if plan.finished is not None:
                await self.machine.claims.unprepare(self.pod.metadata.uid)
            await self._report(plan)
            if plan.finished is not None and (self._gone or self.pod.metadata.deletion_timestamp is not None):
                await self._leave()
                return True
        except NotFound:
            self._gone = True  # the watch will say so too; go on ending it
            self._poke.set()
        except (ApiError, Retryable) as error:
            log.warning("%s: %s; trying again", self.key, error)
            await self._wait(_RETRY_SECONDS)
            return False
        if plan.start:
            return False  # one that could not be started has its first retry at once
        delay = None if plan.wake_at is None else max(0.0, plan.wake_at - self.machine.clock.time())
        await self._wait(delay)
        return False

    def _decide(self, now: float) -> PodPlan:
        pod = self.pod
        deadline = pod.spec.active_deadline_seconds
        if deadline is not None and self._failure is None and now >= self._begun + deadline:
            self._failure = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
            self.machine.events.note(pod, *self._failure)
        plan = decide(pod, self.seen, now, evicted=self._failure is not None or self._gone)
        if deadline is not None and self._failure is None:
            at = self._begun + deadline
            plan = msgspec.structs.replace(plan, wake_at=at if plan.wake_at is None else min(at, plan.wake_at))
        if plan.finished is not None and pod.status.ended and not self._gone:
            plan = msgspec.structs.replace(plan, finished=Phase(pod.status.phase))  # a final phase never changes
        return plan

    def _note_waits(self, plan: PodPlan) -> None:
        """An event for each end of a container that its back-off follows."""
        for name in plan.backing_off:
            container, ended = self._container(name), self.seen[name].ended
            if container is not None and ended is not None and ended.id not in self._waits:
                self._waits.add(ended.id)
                self.machine.events.backing_off(self.pod, container)

    async def _wait(self, seconds: float | None) -> None:
        if seconds is None:
            await self._poke.wait()
            return
        await first_of(self._poke.wait(), self.machine.clock.sleep(seconds))

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        old = self._tasks.pop(name, None)
        if old is not None:
            old.cancel()
        self._tasks[name] = asyncio.create_task(work, name=f"{self.key} {name}")

    # -- admission and adoption ------------------------------------------------------------------------------------

    def _begins(self) -> None:
        self.known = True

    async def _admit(self) -> None:
        pod = self.pod
        self.known = bool(self.seen) or pod.metadata.deletion_timestamp is not None
        if pod.status.ended:
            self._failure = (pod.status.reason, pod.status.message) if pod.status.reason else None
            self.seen = self.seen or _past(pod)
            return
        if self.seen or pod.metadata.deletion_timestamp is not None:
            return  # it was admitted by the kubelet before
        try:
            await self.machine.admit(pod, self._begins)
        except PodRejected as rejected:
            self._failure = (rejected.reason, f"Pod was rejected: {rejected.what}")
            self.machine.events.warn(pod, rejected.reason, rejected.what)

    def _adopt(self, record: ContainerRecord) -> None:
        """A container that an earlier kubelet of this node started."""
        before = self.seen.get(record.name, NEVER_SEEN)
        self.records[record.name] = record
        started = self.machine.started_at(record)
        if is_running(record):
            self.seen[record.name] = ObservedContainer(
                id=record.id, attempt=record.attempt, started_at=started, previous=before.ended, crashes=record.attempt,
                started=True,
                ready=True,
            )  # fmt: skip
            self._spawn(f"wait {record.name}", self._await_end(record))
            container = self._container(record.name)
            if container is not None:
                self._spawn(f"probe {record.name}", watch_probes(self, container, record, adopted=True))
        else:
            ended = self._ended(record, started)
            self.seen[record.name] = ObservedContainer(
                id=record.id, attempt=record.attempt, ended=ended, previous=before.ended, crashes=record.attempt + 1
            )

    def _container(self, name: str) -> SpecContainer | None:
        return next((c for c in every_container(self.pod) if c.name == name), None)

    # -- starting --------------------------------------------------------------------------------------------------

    async def _start(self, name: str) -> None:
        container = self._container(name)
        assert container is not None
        before = self.seen.get(name, NEVER_SEEN)
        attempt = before.attempt + 1 if before.ended is not None else 0
        machine = self.machine
        now = machine.clock.time()
        record = ContainerRecord(
            id=uuid.uuid4().hex + uuid.uuid4().hex,
            pod_uid=self.pod.metadata.uid,
            namespace=self.pod.metadata.namespace,
            pod=self.pod.metadata.name,
            name=name,
            attempt=attempt,
            image=container.image,
            log=str(machine.log_path(self.pod, name, attempt)),
            created=machine.now(),
        )
        try:
            spec = await self._preparation.container(container, attempt)
            if container.target_container_name:
                spec = msgspec.structs.replace(spec, joins=self._target(container.target_container_name))
        except WaitingFor as waiting:
            reason = waiting.later_reason if before.waiting is not None else waiting.reason
            if waiting.later_reason == "ImagePullBackOff":
                machine.events.not_pulled(self.pod, container, waiting.what, again=before.waiting is not None)
            elif before.waiting is None or before.waiting[1] != waiting.what:
                machine.events.warn(self.pod, waiting.event, waiting.what, container)
            self.seen[name] = msgspec.structs.replace(
                before, waiting=(reason, waiting.what), retry_at=now + waiting.retry_seconds
            )
            return
        machine.events.pulled(self.pod, container, now=machine.pulls(container))
        machine.events.note(self.pod, "Created", f"Created container: {name}", container)
        if not container.command and machine.images.find(container.image).stand_in:
            text = f"Container {name} serves nothing: {machine.images.missing(container.image)}"
            machine.events.note(self.pod, "StandIn", text, container)
        _, lacks = fit(spec, machine.launcher.mode)
        if lacks:
            text = f"Container {name} runs without what this machine cannot give it: {'; '.join(lacks)}"
            machine.events.note(self.pod, "LessIsolated", text, container)
        try:
            record = await machine.launcher.start(record, spec, machine.now())
        except (StartFailed, OSError) as error:
            text = error.what if isinstance(error, StartFailed) else str(error)
            if isinstance(error, ProgramMissing):
                text = f"{text}; {machine.images.missing(container.image, error.program)}"
            machine.events.warn(self.pod, "Failed", f'Error: failed to start container "{name}": {text}', container)
            ended = Ended(record.id, 128, 0, "StartError", f"failed to create containerd task: {text}", now, now)
            self._after_end(name, record, ended, before, attempt)
            return
        previous = self.records.get(name)
        self.records[name] = record
        if (limit := memory_limit(container)) is not None:
            self._memory[record.id] = limit
        if previous is not None and before.previous is not None and before.previous.id != previous.id:
            machine.launcher.records.remove(before.previous.id)
        machine.events.note(self.pod, "Started", f"Started container {name}", container)
        self.seen[name] = ObservedContainer(
            id=record.id,
            attempt=attempt,
            started_at=machine.started_at(record),  # as the next kubelet will read it
            previous=before.ended,
            crashes=before.crashes,
            started=container.startup_probe is None,
            ready=container.readiness_probe is None and container.startup_probe is None,
        )
        self._spawn(f"wait {name}", self._await_end(record))
        self._spawn(f"probe {name}", watch_probes(self, container, record))
        if container.lifecycle.post_start is not None:
            self._spawn(f"hook {name}", self._post_start(container, record, container.lifecycle.post_start))
        if "volumes" not in self._tasks:
            self._spawn("volumes", self._keep_volumes())

    def _target(self, name: str) -> int:
        """Return the main process of a container that an ephemeral one joins. Raises WaitingFor."""
        record = self.records.get(name)
        if record is None or not is_running(record):
            raise WaitingFor(f'Error: failed to find the target container "{name}"', "CreateContainerError")
        return record.pid

    async def _post_start(self, container: SpecContainer, record: ContainerRecord, hook: LifecycleHandler) -> None:
        problem = await run_hook(self.machine, self.pod, container, record, hook)
        if problem:
            text = f"PostStartHook of {container.name} failed: {problem}"
            self.machine.events.warn(self.pod, "FailedPostStartHook", text, container)
            self.note_probe(container.name, unhealthy="FailedPostStartHook")

    async def _keep_volumes(self) -> None:
        """Mounted ConfigMaps and Secrets follow their objects; tokens are renewed before they end."""
        preparation, clock = self._preparation, self.machine.clock
        while True:
            due = preparation.refresh_at
            if due is None:
                await preparation.stale.wait()
            else:
                await first_of(preparation.stale.wait(), clock.sleep(max(due - clock.time(), 1.0)))
            try:
                await preparation.refresh()
            except (Retryable, ApiError) as error:  # an object that went: the files stay as they were
                log.warning("%s: volumes are not renewed: %s", self.key, error)
                await clock.sleep(_RETRY_SECONDS)

    # -- ending ----------------------------------------------------------------------------------------------------

    async def _await_end(self, record: ContainerRecord) -> None:
        await self.machine.launcher.wait(record)
        state = self.seen[record.name]
        ended = self._ended(record, state.started_at or self.machine.clock.time())
        container = self._container(record.name)
        if container and ended.code and not state.stopping and self.machine.images.find(container.image).borrows:
            text = f"Container {record.name} ended with {ended.code} on programs of this machine's Python"
            self.machine.events.warn(
                self.pod, "StandIn", f"{text}: {self.machine.images.missing(container.image)}", container
            )
        self._after_end(record.name, record, ended, state, record.attempt)
        self._poke.set()

    def _after_end(
        self, name: str, record: ContainerRecord, ended: Ended, before: ObservedContainer, attempt: int
    ) -> None:
        for kind in ("probe", "hook"):
            task = self._tasks.pop(f"{kind} {name}", None)
            if task is not None:
                task.cancel()
        long = ended.finished - ended.started >= 600
        self.seen[name] = ObservedContainer(
            id=record.id,
            attempt=attempt,
            ended=ended,
            previous=before.previous if before.running else before.ended,
            crashes=1 if long else before.crashes + 1,
        )
        log.info("%s: container %s ended with %d", self.key, name, ended.code)

    def _ended(self, record: ContainerRecord, started: float) -> Ended:
        exit_ = self.machine.launcher.exit_of(record)
        container = self._container(record.name)
        message = self._preparation.termination_message(container, record.attempt) if container else ""
        if not message and container and container.termination_message_policy == "FallbackToLogsOnError" and exit_.code:
            message = last_lines(record.log, _MESSAGE_BYTES // 2)
        reason = "OOMKilled" if exit_.oom else "Completed" if exit_.code == 0 else "Error"
        finished = min(exit_.finished, self.machine.clock.time())
        return Ended(record.id, exit_.code, exit_.signal, reason, message[-_MESSAGE_BYTES:], started, finished)

    def _stop(self, stop: Stop) -> None:
        record = self.records[stop.name]
        container = self._container(stop.name)
        self.seen[stop.name] = msgspec.structs.replace(self.seen[stop.name], stopping=True)
        why = f": {stop.why}" if stop.why != "pod" else ""
        self.machine.events.note(self.pod, "Killing", f"Stopping container {stop.name}{why}", container)
        self._spawn(f"stop {stop.name}", self._kill(record, container, self._grace(stop)))

    def _grace(self, stop: Stop) -> float:
        """Return how many seconds a container has. Those that end one after the other share the time of their pod."""
        whole = self.pod.grace_seconds
        if self._gone or stop.why not in ("pod", WORK_DONE):
            return 0 if self._gone else whole
        now = self.machine.clock.time()
        if self._ends_since is None:
            self._ends_since = now
        return max(whole - (now - self._ends_since), min(whole, _SHORTEST_GRACE_SECONDS))

    async def _kill(self, record: ContainerRecord, container: SpecContainer | None, grace: float) -> None:
        clock = self.machine.clock
        ends = clock.time() + grace
        if container is not None and container.lifecycle.pre_stop is not None and grace > 0:
            hook = run_hook(self.machine, self.pod, container, record, container.lifecycle.pre_stop)
            if problem := await self._within(hook, grace):
                text = f"PreStopHook of {container.name} failed: {problem}"
                self.machine.events.warn(self.pod, "FailedPreStopHook", text, container)
        if grace > 0 and is_running(record) and not handles_sigterm(record.pid):
            text = (
                f"Container {record.name} ends at once: process 1 of a container gets SIGTERM only if it handles it. "
            )
            text += f"Another kubelet would wait for the grace period of {grace:g} s"
            self.machine.events.note(self.pod, "SigtermNotHandled", text, container)
        signal_container(record, signal.SIGTERM if grace > 0 else signal.SIGKILL)
        await clock.sleep(max(ends - clock.time(), 0))
        if is_running(record):
            signal_container(record, signal.SIGKILL)

    async def _within(self, hook: Coroutine[Any, Any, str], seconds: float) -> str:
        """Return the error of a hook that may take so long."""
        task = asyncio.ensure_future(hook)
        try:
            if await first_of(task, self.machine.clock.sleep(seconds)) == 1:
                return f"it did not end within the grace period of {seconds:g} s"
            return await task
        except OSError as error:
            return str(error)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- what the probes say (see probes.py) -----------------------------------------------------------------------

    def note_probe(
        self, name: str, *, ready: bool | None = None, started: bool | None = None, unhealthy: str = ""
    ) -> None:
        state = self.seen.get(name)
        if state is None or not state.running:
            return
        new = msgspec.structs.replace(
            state,
            ready=state.ready if ready is None else ready,
            started=state.started if started is None else started,
            unhealthy=unhealthy or state.unhealthy,
        )
        if new != state:
            self.seen[name] = new
            self._poke.set()

    # -- reporting -------------------------------------------------------------------------------------------------

    async def _report(self, plan: PodPlan) -> None:
        if self._gone:
            return
        machine = self.machine
        status = pod_status(
            self.pod,
            self.seen,
            plan,
            now=machine.clock.time(),
            started_at=self._begun,
            host_ip=machine.host_ip,
            pod_ip=machine.pod_ip(self.pod.metadata.uid),
            runtime=machine.runtime_name,
            failure=self._failure,
            resources=machine.claims.resources_status(self.pod),
        )
        if status == self._written:
            return
        body = {"metadata": {"uid": self.pod.metadata.uid}, "status": status}
        meta = self.pod.metadata
        try:
            await machine.client.patch(KubeletPod, meta.name, body, meta.namespace, "strategic", "status")
        except Conflict as error:  # another pod of this name by now
            raise NotFound(f"pod {self.key} was replaced", status=404, reason="NotFound") from error
        self._written = status

    async def _leave(self) -> None:
        meta = self.pod.metadata
        if not self._gone:
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


def _past(pod: KubeletPod) -> dict[str, ObservedContainer]:
    """Return the containers' states from the status of a finished pod, when their records are lost."""
    past = {}
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if status.state.terminated is not None:
            t = status.state.terminated
            past[status.name] = ObservedContainer(
                id=status.container_id.rpartition("/")[2],
                attempt=status.restart_count,
                ended=Ended(
                    status.container_id.rpartition("/")[2], t.exit_code, t.signal, t.reason, t.message, 0.0, 0.0
                ),
            )
    return past
