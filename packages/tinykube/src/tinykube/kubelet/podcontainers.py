"""The containers of one pod: what is seen of them, their records, and the tasks that wait for their ends.

Invariant: everything that happens (an exit, a probe, a resize) only changes what is seen and pokes the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from tinykube.kubelet.containers import ContainerRecord
from tinykube.kubelet.containers.records import is_running
from tinykube.kubelet.lifecycle import NEVER_SEEN, Ended, ObservedContainer
from tinykube.kubelet.logs import last_lines
from tinykube.kubelet.machine import KubeletMachine
from tinykube.kubelet.pod import KubeletPod, SpecContainer, every_container
from tinykube.kubelet.prepare import Preparation
from tinykube.kubelet.probes import watch_probes

log = logging.getLogger("tinykube.kubelet")

_MESSAGE_BYTES: Final = 4096
_NO_PROGRAM: Final = 127  # of shells
_LACKING: Final = ("ModuleNotFoundError", "ImportError", "cannot open shared object file")
_LONG_RUN_SECONDS: Final = 600  # after which the back-off begins again


class PodContainers:
    """The containers of a pod. `pod` has the resources that the node has allocated for it."""

    def __init__(self, machine: KubeletMachine, pod: KubeletPod) -> None:
        self.machine = machine
        self.seen: dict[str, ObservedContainer] = {}
        self.records: dict[str, ContainerRecord] = {}
        self.preparation = Preparation(machine, pod)
        self.changed = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def pod(self) -> KubeletPod:
        return self.preparation.pod

    @pod.setter
    def pod(self, pod: KubeletPod) -> None:
        self.preparation.pod = pod

    @property
    def key(self) -> str:
        return f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"

    def poke(self) -> None:
        self.changed.set()

    def find(self, name: str) -> SpecContainer | None:
        return next((c for c in every_container(self.pod) if c.name == name), None)

    # -- tasks -----------------------------------------------------------------------------------------------------

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it ends, instead of an earlier task of this name."""
        self.cancel(name)
        self._tasks[name] = asyncio.create_task(work, name=f"{self.key} {name}")

    def has_task(self, name: str) -> bool:
        return name in self._tasks

    def cancel(self, name: str) -> None:
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()

    async def close(self) -> None:
        """End all tasks; containers go on."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self.preparation.close()

    def release_objects(self) -> None:
        """The pod has ended: its ConfigMaps and Secrets are no longer watched for it, as by Kubernetes' kubelet."""
        self.cancel("volumes")
        self.preparation.close()

    # -- containers that run ---------------------------------------------------------------------------------------

    def adopt(self, record: ContainerRecord) -> None:
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
            self.watch(record, adopted=True)
        else:
            ended = self.ended(record, started)
            self.seen[record.name] = ObservedContainer(
                id=record.id, attempt=record.attempt, ended=ended, previous=before.ended, crashes=record.attempt + 1
            )

    def watch(self, record: ContainerRecord, *, adopted: bool = False) -> None:
        """Wait for the end of a container, and probe it until then."""
        self.spawn(f"wait {record.name}", self._await_end(record))
        if (container := self.find(record.name)) is not None:
            self.spawn(f"probe {record.name}", watch_probes(self, container, record, adopted=adopted))

    def note_probe(
        self, name: str, *, ready: bool | None = None, started: bool | None = None, unhealthy: str = ""
    ) -> None:
        """Note the result of a probe (see probes.py)."""
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
            self.poke()

    # -- ends ------------------------------------------------------------------------------------------------------

    async def _await_end(self, record: ContainerRecord) -> None:
        await self.machine.launcher.wait(record)
        state = self.seen[record.name]
        ended = self.ended(record, state.started_at or self.machine.clock.time())
        container = self.find(record.name)
        borrows = container and not state.stopping and self.machine.images.find(container.image).borrows
        if borrows and container and lacks_library(ended.code, last_lines(record.log, _MESSAGE_BYTES)):
            text = f"Container {record.name} ended with {ended.code} on programs of this machine's Python"
            self.machine.events.warn(
                self.pod, "StandIn", f"{text}: {self.machine.images.missing(container.image)}", container
            )
        self.note_end(record.name, record, ended, state, record.attempt)
        self.poke()

    def note_end(
        self, name: str, record: ContainerRecord, ended: Ended, before: ObservedContainer, attempt: int
    ) -> None:
        """A container has ended, or did not start."""
        for kind in ("probe", "hook"):
            self.cancel(f"{kind} {name}")
        long = ended.finished - ended.started >= _LONG_RUN_SECONDS
        replaced = before.replaced and before.running
        crashes = before.crashes if replaced else before.crashes + 1
        self.seen[name] = ObservedContainer(
            id=record.id,
            attempt=attempt,
            ended=ended,
            previous=before.previous if before.running else before.ended,
            crashes=1 if long else crashes,
            replaced=replaced,
        )
        log.info("%s: container %s ended with %d", self.key, name, ended.code)

    def ended(self, record: ContainerRecord, started: float) -> Ended:
        """Return the end of a container that does not run any more."""
        exit_ = self.machine.launcher.exit_of(record)
        container = self.find(record.name)
        message = self.preparation.termination_message(container, record.attempt) if container else ""
        if not message and container and container.termination_message_policy == "FallbackToLogsOnError" and exit_.code:
            message = last_lines(record.log, _MESSAGE_BYTES // 2)
        reason = "OOMKilled" if exit_.oom else "Completed" if exit_.code == 0 else "Error"
        finished = min(exit_.finished, self.machine.clock.time())
        return Ended(record.id, exit_.code, exit_.signal, reason, message[-_MESSAGE_BYTES:], started, finished)


def lacks_library(code: int, log_end: str) -> bool:
    """Return whether a program ended because it misses a library or another program, by what it wrote last."""
    return code == _NO_PROGRAM or (code != 0 and any(sign in log_end for sign in _LACKING))


def past_containers(pod: KubeletPod) -> dict[str, ObservedContainer]:
    """Return the containers' states from the status of a finished pod, when their records are lost."""
    past = {}
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if (t := status.state.terminated) is not None:
            name = status.container_id.rpartition("/")[2]
            ended = Ended(name, t.exit_code, t.signal, t.reason, t.message, 0.0, 0.0)
            past[status.name] = ObservedContainer(id=name, attempt=status.restart_count, ended=ended)
    return past
