"""Flights: what was promised to pods and is not yet seen on them, and how each of them ends.

A flight begins with a reservation and ends when the watch shows the pod bound or gone. Where that does not come in
time, the pod is read. So a flight never stays, and nothing is held for a pod that does not have it.

    state       what was sent                           when its time is over
    posting     a Binding, no answer yet                (the answer comes first)
    doubt a Binding, and the answer is unknown read the pod
    bound       a Binding, and it was accepted          read the pod
    annotated   annotations alone (filter-only mode)    read the pod; take the annotations off if it was not bound
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

import msgspec

from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.transforms import KeptPod
from gpuplane.sharing import Assignment
from kubekit.kube import Clock
from kubekit.kube.clock import Timer

log = logging.getLogger("gpuplane.scheduler")
AGAIN_SECONDS: Final = 5.0  # until a pod that could not be read is read again


class State(Enum):
    POSTING = "posting"
    DOUBT = "doubt"
    BOUND = "bound"
    ANNOTATED = "annotated"


SECONDS: Final = {
    # The API server gives a Binding up after the time-out that we name it, so it cannot come true later.
    State.DOUBT: 15.0,
    State.BOUND: 30.0,
    State.ANNOTATED: 60.0,
}


class Flight(msgspec.Struct):
    """One pod's; `pod` as it was before."""

    pod: KeptPod
    node: str
    assignment: Assignment
    annotations: dict[str, str]
    state: State

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid


class Flights:
    """
    Args:
        settle: looks what became of a flight whose time is over; whether that could be told.
    """

    def __init__(self, cluster: Cluster, clock: Clock, settle: Callable[[Flight], Awaitable[bool]]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._settle = settle
        self._flights: dict[str, Flight] = {}
        self._timers: dict[str, Timer] = {}
        self._landed = asyncio.Event()  # no answer is on its way
        self._landed.set()
        self._tasks: set[asyncio.Task[None]] = set()
        cluster.on_pod.append(self._seen)

    def __len__(self) -> int:
        return len(self._flights)

    def count(self, state: State) -> int:
        return sum(flight.state is state for flight in self._flights.values())

    def get(self, uid: str) -> Flight | None:
        return self._flights.get(uid)

    def unsettled(self, uid: str) -> str | None:
        """The node of a pod whose Binding may still come true."""
        flight = self._flights.get(uid)
        return flight.node if flight is not None and flight.state in (State.POSTING, State.DOUBT) else None

    def begin(self, flight: Flight) -> None:
        """Reserves. Raises Retryable, with nothing changed, when that does not fit (any more)."""
        pod = flight.pod
        self._cluster.ledger.reserve(flight.uid, flight.node, flight.assignment)
        self._cluster.usage.add(flight.uid, pod.metadata.namespace, flight.node, pod.request.core, pod.metadata.name)
        self._flights[flight.uid] = flight
        self.turn(flight, flight.state)

    def turn(self, flight: Flight, state: State) -> None:
        """The flight goes on in another state, unless it has ended meanwhile."""
        if self._flights.get(flight.uid) is not flight:
            return
        flight.state = state
        self._count()
        if state is State.BOUND:
            self._cluster.ledger.commit(flight.uid)
        self._watch_over(flight, SECONDS.get(state))

    def fall(self, flight: Flight, *, gone: bool = False) -> None:
        """Nothing came of it: what was reserved is free again. `gone`: the pod is, whatever watches still show."""
        if self._flights.get(flight.uid) is flight:
            self._end(flight.uid)
            self._cluster.release(flight.uid)
            if gone:
                self._cluster.gone(flight.uid)

    def _seen(self, uid: str, pod: KeptPod | None) -> None:
        """The watch shows the pod bound (the cluster has counted what it holds), or gone (and freed it)."""
        if uid in self._flights and (pod is None or pod.spec.node_name):
            self._end(uid)

    def _end(self, uid: str) -> None:
        del self._flights[uid]
        self._count()
        self._stop_timer(uid)

    def _count(self) -> None:
        if self.count(State.POSTING):
            self._landed.clear()
        else:
            self._landed.set()

    def _watch_over(self, flight: Flight, seconds: float | None) -> None:
        self._stop_timer(flight.uid)
        if seconds is not None:
            self._timers[flight.uid] = self._clock.call_later(seconds, lambda: self._overdue(flight))

    def _stop_timer(self, uid: str) -> None:
        timer = self._timers.pop(uid, None)
        if timer is not None:
            timer.cancel()

    def _overdue(self, flight: Flight) -> None:
        task = asyncio.get_running_loop().create_task(self._look(flight), name=f"settle {flight.pod.shown}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self, flight: Flight) -> None:
        if self._flights.get(flight.uid) is flight and not await self._settle(flight):
            self._watch_over(flight, AGAIN_SECONDS)

    async def aclose(self, seconds: float) -> None:
        """Waits for answers that are on their way, no longer than `seconds`, then forgets everything."""
        try:
            async with asyncio.timeout(seconds):
                await self._landed.wait()
        except TimeoutError:
            log.warning("stopping without answers bindings=%d", self.count(State.POSTING))
        for uid in list(self._timers):
            self._stop_timer(uid)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
