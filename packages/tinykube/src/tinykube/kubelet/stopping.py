"""Stops containers of a pod: the hook before the stop, SIGTERM, and SIGKILL when the grace period is over."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from kubekit.kube.tasks import first_of
from tinykube.kubelet.containers import ContainerRecord
from tinykube.kubelet.containers.records import is_running, signal_container
from tinykube.kubelet.hooks import run_hook
from tinykube.kubelet.lifecycle import WORK_DONE, Stop
from tinykube.kubelet.pod import SpecContainer
from tinykube.kubelet.podcontainers import PodContainers

_SHORTEST_GRACE_SECONDS: Final = 2.0  # of a container whose turn comes when the time of its pod is over


class ContainerStopper:
    """Stops the containers of one pod.

    Attributes:
        gone: the pod's object is gone, so nothing has a grace period any more.
    """

    def __init__(self, containers: PodContainers) -> None:
        self.gone = False
        self._containers = containers
        self._machine = containers.machine
        self._ends_since: float | None = None

    def stop(self, stop: Stop) -> None:
        """Begin to stop a container that runs."""
        containers = self._containers
        record, container = containers.records[stop.name], containers.find(stop.name)
        state = containers.seen[stop.name]
        containers.seen[stop.name] = msgspec.structs.replace(state, stopping=True, replaced=stop.replaced)
        why = f": {stop.why}" if stop.why != "pod" else ""
        self._machine.events.note(containers.pod, "Killing", f"Stopping container {stop.name}{why}", container)
        containers.spawn(f"stop {stop.name}", self._kill(record, container, self._grace(stop)))

    def _grace(self, stop: Stop) -> float:
        """Return how many seconds a container has. Those that end one after the other share the time of their pod."""
        whole = self._containers.pod.grace_seconds
        if self.gone or stop.why not in ("pod", WORK_DONE):
            return 0 if self.gone else whole
        now = self._machine.clock.time()
        if self._ends_since is None:
            self._ends_since = now
        return max(whole - (now - self._ends_since), min(whole, _SHORTEST_GRACE_SECONDS))

    async def _kill(self, record: ContainerRecord, container: SpecContainer | None, grace: float) -> None:
        clock, events, pod = self._machine.clock, self._machine.events, self._containers.pod
        ends = clock.time() + grace
        if container is not None and container.lifecycle.pre_stop is not None and grace > 0:
            hook = run_hook(self._machine, pod, container, record, container.lifecycle.pre_stop)
            if problem := await self._within(hook, grace):
                text = f"PreStopHook of {container.name} failed: {problem}"
                events.warn(pod, "FailedPreStopHook", text, container)
        signal_container(record, signal.SIGTERM if grace > 0 else signal.SIGKILL)
        await clock.sleep(max(ends - clock.time(), 0))
        if is_running(record):
            signal_container(record, signal.SIGKILL)

    async def _within(self, hook: Coroutine[Any, Any, str], seconds: float) -> str:
        """Return the error of a hook that may take so long."""
        task = asyncio.ensure_future(hook)
        try:
            if await first_of(task, self._machine.clock.sleep(seconds)) == 1:
                return f"it did not end within the grace period of {seconds:g} s"
            return await task
        except OSError as error:
            return str(error)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
