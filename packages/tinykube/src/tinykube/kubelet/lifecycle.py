"""Decides a kubelet's next actions for one pod: a pure function of the pod, the state of its containers, and the time.

The rules are those of Kubernetes: init containers one after the other, sidecars (init containers that restart) before
what follows them and, at the end of the pod, after it, ephemeral containers once and next to all others, restart
policies with a back-off of 0, 10, 20, 40 ... 300 s that a run of ten minutes resets, no restart once a pod is being
deleted.

Invariant: calling it again on an unchanged world gives the same plan, and a world that a plan was applied to gives
an empty one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from tinykube.kubelet.pod import KubeletPod, SpecContainer

FIRST_DELAY_SECONDS: Final = 10.0
LONGEST_DELAY_SECONDS: Final = 300.0
RESETS_AFTER_SECONDS: Final = 600.0
WORK_DONE: Final = "the pod's work is done"


class Ended(msgspec.Struct, frozen=True):
    """The end of one attempt of a container; times in seconds since the epoch, `id` as the runtime names it."""

    id: str
    code: int
    signal: int
    reason: str
    message: str
    started: float
    finished: float


class ObservedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container as it is now.

    `started_at` is set while it runs. `crashes` counts ends in a row, see the back-off. `waiting` is (reason,
    message) of a container that could not be started and may be tried again at `retry_at`. `started` says that its
    startup probe passed, `ready` what its readiness probe says, `unhealthy` why its liveness probe wants it killed.
    `replaced` says that it was stopped for a resize: it starts again at once, whatever its restart policy.
    """

    id: str = ""
    attempt: int = 0
    started_at: float | None = None
    ended: Ended | None = None
    previous: Ended | None = None
    crashes: int = 0
    waiting: tuple[str, str] | None = None
    retry_at: float = 0.0
    started: bool = False
    ready: bool = False
    unhealthy: str = ""
    stopping: bool = False
    replaced: bool = False

    @property
    def running(self) -> bool:
        return self.started_at is not None


NEVER_SEEN: Final = ObservedContainer()


class Phase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Stop(msgspec.Struct, frozen=True):
    name: str
    why: str
    replaced: bool = False


class PodPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`start` and `stop` name containers; `wake_at` is when time alone changes the plan; `finished` says that the
    pod is over: nothing runs any more and nothing will."""

    start: tuple[str, ...] = ()
    stop: tuple[Stop, ...] = ()
    backing_off: tuple[str, ...] = ()
    wake_at: float | None = None
    initialized: bool = False
    finished: Phase | None = None


def delay_seconds(crashes: int) -> float:
    """Return how long a container that ended `crashes` times in a row waits after its latest end."""
    if crashes <= 1:
        return 0.0
    return min(FIRST_DELAY_SECONDS * 2.0 ** (crashes - 2), LONGEST_DELAY_SECONDS)


def delay_text(crashes: int) -> str:
    """Return `delay_seconds` as Go writes durations: 40s, 1m20s, 5m0s."""
    minutes, seconds = divmod(int(delay_seconds(crashes)), 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def restarts(pod: KubeletPod, container: SpecContainer, ended: Ended) -> bool:
    """Return whether the restart policy brings a main container back."""
    policy = pod.spec.restart_policy
    return policy == "Always" or (policy == "OnFailure" and ended.code != 0)


def decide(pod: KubeletPod, seen: Mapping[str, ObservedContainer], now: float, *, evicted: bool = False) -> PodPlan:
    """The plan for `pod`; `evicted` when it must end without having been deleted (rejected, deadline exceeded)."""
    return _Decision(pod, seen, now).plan(evicted)


class _Decision:
    def __init__(self, pod: KubeletPod, seen: Mapping[str, ObservedContainer], now: float) -> None:
        self.pod = pod
        self.seen = seen
        self.now = now
        self.start: list[str] = []
        self.backing_off: list[str] = []
        self.stop: list[Stop] = []
        self.wake: list[float] = []

    def of(self, container: SpecContainer) -> ObservedContainer:
        return self.seen.get(container.name, NEVER_SEEN)

    def plan(self, evicted: bool) -> PodPlan:
        spec = self.pod.spec
        everyone = (*spec.init_containers, *spec.containers, *spec.ephemeral_containers)
        ending = evicted or self.pod.metadata.deletion_timestamp is not None
        if ending:
            alive = self._end("pod")
            return self._result(self._initialized(), None if alive else self._final(evicted))
        for container in everyone:
            state = self.of(container)
            if state.running and state.unhealthy and not state.stopping:
                self.stop.append(Stop(container.name, state.unhealthy))
        if self._over():
            return self._result(True, None if self._end(WORK_DONE) else self._final(False))
        progress = self._init()
        if progress is None:
            return self._result(False, None if self._end(WORK_DONE) else Phase.FAILED)
        for container in spec.ephemeral_containers:
            if not self.of(container).running and self.of(container).ended is None:
                self._again(container)
        if progress:
            for container in spec.containers:
                self._main(container)
        return self._result(progress, None)

    def _end(self, why: str) -> bool:
        """Stop what runs of the pod; return whether anything of it still does.

        Sidecars come after the main containers, the last one first.
        """
        spec = self.pod.spec
        sidecars = [c for c in reversed(spec.init_containers) if c.sidecar and self.of(c).running]
        first = [c for c in spec.init_containers if not c.sidecar]
        turn = [c for c in (*first, *spec.containers, *spec.ephemeral_containers) if self.of(c).running]
        alive = bool(turn or sidecars)
        if not any(self.of(c).running for c in spec.containers):
            turn += sidecars[:1]
        planned = {stop.name for stop in self.stop}
        self.stop += [Stop(c.name, why) for c in turn if not self.of(c).stopping and c.name not in planned]
        return alive

    def _result(self, initialized: bool, finished: Phase | None) -> PodPlan:
        return PodPlan(
            start=tuple(self.start),
            stop=tuple(self.stop),
            backing_off=tuple(self.backing_off),
            wake_at=min(self.wake, default=None),
            initialized=initialized,
            finished=finished,
        )

    def _initialized(self) -> bool:
        """Once a main container has been tried, initialisation is over for good."""
        if any(c.name in self.seen for c in self.pod.spec.containers):
            return True
        ends = [self.of(c).ended for c in self.pod.spec.init_containers if not c.sidecar]
        return all(e is not None and e.code == 0 for e in ends)

    def _over(self) -> bool:
        """All main containers have ended and none comes back."""
        for container in self.pod.spec.containers:
            ended = self.of(container).ended
            if self.of(container).running or ended is None or self._returns(container, ended):
                return False
        return True

    def _final(self, evicted: bool) -> Phase:
        ends = [self.of(c).ended for c in self.pod.spec.containers]
        good = not evicted and all(e is not None and e.code == 0 for e in ends)
        return Phase.SUCCEEDED if good else Phase.FAILED

    def _init(self) -> bool | None:
        """Goes on with initialisation; True when main containers may run, None when the pod has failed in it."""
        tried = any(c.name in self.seen for c in self.pod.spec.containers)
        for container in self.pod.spec.init_containers:
            state = self.of(container)
            if container.sidecar:
                if not state.running:
                    self._again(container)
                    if not tried:
                        return False
                elif not state.started and not tried:
                    return False
                continue
            if tried or (state.ended is not None and not state.running and state.ended.code == 0):
                continue
            if state.running:
                return False
            if state.ended is not None and self.pod.spec.restart_policy == "Never":
                return None
            self._again(container)
            return False
        return True

    def _main(self, container: SpecContainer) -> None:
        state = self.of(container)
        if state.running:
            return
        if state.ended is None or self._returns(container, state.ended):
            self._again(container)

    def _returns(self, container: SpecContainer, ended: Ended) -> bool:
        return self.of(container).replaced or restarts(self.pod, container, ended)

    def _again(self, container: SpecContainer) -> None:
        """Starts a container that does not run, unless its back-off or its last failed try says later."""
        state = self.of(container)
        at = state.retry_at
        if state.ended is not None and not state.replaced:
            at = max(at, state.ended.finished + delay_seconds(state.crashes))
        if at <= self.now:
            self.start.append(container.name)
        else:
            self.wake.append(at)
            self.backing_off.append(container.name)
