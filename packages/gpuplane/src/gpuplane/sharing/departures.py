"""The packing experiment on a trace with times: pods arrive, hold GPUs for as long as they did, and leave.

A pod that fits nowhere waits, and is tried again whenever a pod has left, in the order of arrival. It runs for as long
as in the trace, from the moment it is placed; so a policy that makes pods wait also makes them end later. Pods without
an end stay. Time is in seconds.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator

import msgspec

from gpuplane.sharing.assignment import Assignment
from gpuplane.sharing.busy import BusyGPUs
from gpuplane.sharing.means import MeanOverTime
from gpuplane.sharing.packing import MILLI, Job, PackingMachine, Placer


class Stay(msgspec.Struct, frozen=True):
    """A job with the time of its arrival, and for how long it runs (None: it does not end)."""

    job: Job
    arrives: int
    lasts: int | None


class Visit(msgspec.Struct):
    """A stay as it came to be: `placed` and `started` are None for a job that waits until the end."""

    stay: Stay
    placed: Assignment | None = None
    started: int | None = None

    @property
    def ends(self) -> int | None:
        if self.started is None or self.stay.lasts is None:
            return None
        return self.started + self.stay.lasts


class Occupation(msgspec.Struct, frozen=True):
    """The result of a trace, over the seconds from the first arrival to the last one.

    `held` and `most` are percent of all GPUs: the mean over time, and the most at a time. `held_waiting` is the mean
    over the time in which a pod with GPUs waited, None where no pod ever did: the part that a full cluster uses.
    `waited` pods were not placed when they arrived, `longest_wait` and `waited_99` (99 of 100 pods waited no longer)
    are seconds; a pod that is never placed counts until the end. `gpu_hours_waited` are GPUs times hours of waiting.
    `watts` is the mean over time of what all GPUs take, in the model of `placement.watts`.
    """

    seconds: int
    held: float
    most: float
    held_waiting: float | None
    arrived: int
    placed: int
    waited: int
    waited_99: int
    longest_wait: int
    gpu_hours_waited: float
    watts: int


class DepartureExperiment:
    """One run; `steps` yields after each arrival, `outcome` is the result; `visits` are in the order of arrival."""

    def __init__(self, machines: Iterable[PackingMachine], stays: Iterable[Stay], placer: Placer) -> None:
        self._placer = placer
        self.visits = [Visit(stay) for stay in sorted(stays, key=lambda stay: (stay.arrives, stay.job.name))]
        self._total = MILLI * sum(machine.gpus for machine in machines)
        self._waiting: dict[int, None] = {}
        self._waiting_load = 0
        self._leaving: list[tuple[int, int]] = []  # (when, number of the visit)
        self._now = self.visits[0].stay.arrives if self.visits else 0
        self._held = self._most = 0
        self._busy = BusyGPUs(placer.ledger.nodes())
        self._watt_seconds = 0
        self._held_seconds = self._held_seconds_waiting = self._waiting_seconds = 0
        last = self.visits[-1].stay.arrives if self.visits else 0
        self._held_means, self._waiting_means = (MeanOverTime(self._now, last) for _ in range(2))

    def steps(self) -> Iterator[None]:
        for number, visit in enumerate(self.visits):
            self._leave_until(visit.stay.arrives)
            self._pass(visit.stay.arrives)
            self._placer.arrive(visit.stay.job)
            if not self._start(number):
                self._waiting[number] = None
                self._waiting_load += visit.stay.job.load
            yield

    def _leave_until(self, now: int) -> None:
        """Let the jobs leave that end by `now`, and place the waiting ones that fit then."""
        while self._leaving and self._leaving[0][0] <= now:
            at = self._leaving[0][0]
            self._pass(at)
            while self._leaving and self._leaving[0][0] == at:
                number = heapq.heappop(self._leaving)[1]
                self._placer.remove(str(number))
                visit = self.visits[number]
                self._held -= visit.stay.job.load
                assert visit.placed is not None
                self._busy.remove(visit.placed)
            self._place_waiting()

    def _place_waiting(self) -> None:
        refused: set[Job] = set()
        for number in list(self._waiting):
            job = self.visits[number].stay.job
            kind = msgspec.structs.replace(job, name="")
            if kind in refused:
                continue
            if self._start(number):
                del self._waiting[number]
                self._waiting_load -= job.load
            else:
                refused.add(kind)

    def _start(self, number: int) -> bool:
        visit = self.visits[number]
        visit.placed = self._placer.place(str(number), visit.stay.job)
        if visit.placed is None:
            return False
        visit.started = self._now
        self._busy.add(visit.placed)
        self._held += visit.stay.job.load
        self._most = max(self._most, self._held)
        if visit.ends is not None:
            heapq.heappush(self._leaving, (visit.ends, number))
        return True

    def _pass(self, now: int) -> None:
        """Count the time up to `now`."""
        seconds = now - self._now
        self._held_seconds += self._held * seconds
        self._watt_seconds += self._busy.watts * seconds
        self._held_means.add(self._now, now, self._held)
        self._waiting_means.add(self._now, now, self._waiting_load)
        if self._waiting_load:
            self._held_seconds_waiting += self._held * seconds
            self._waiting_seconds += seconds
        self._now = now

    def curves(self) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        """Return the percent of all GPUs that pods held, and the GPUs that waiting pods requested, over time.

        Each point is (seconds since the first arrival, mean of a part of the time).
        """
        held = [(at, amount * 100 / self._total) for at, amount in self._held_means.means()]
        return held, [(at, amount / MILLI) for at, amount in self._waiting_means.means()]

    def outcome(self) -> Occupation:
        first = self.visits[0].stay.arrives if self.visits else 0
        seconds = self._now - first
        waits = sorted(self._waited(visit) for visit in self.visits)
        load_seconds = sum(self._waited(visit) * visit.stay.job.load for visit in self.visits)
        return Occupation(
            seconds=seconds,
            held=self._percent(self._held_seconds, seconds),
            most=round(self._most * 100 / self._total, 2),
            held_waiting=(
                self._percent(self._held_seconds_waiting, self._waiting_seconds) if self._waiting_seconds else None
            ),
            arrived=len(self.visits),
            placed=sum(visit.placed is not None for visit in self.visits),
            waited=sum(visit.started != visit.stay.arrives for visit in self.visits),
            waited_99=waits[max(0, math.ceil(len(waits) * 0.99) - 1)] if waits else 0,
            longest_wait=waits[-1] if waits else 0,
            gpu_hours_waited=round(load_seconds / MILLI / 3600, 1),
            watts=round(self._watt_seconds / seconds) if seconds else self._busy.watts,
        )

    def _waited(self, visit: Visit) -> int:
        return (self._now if visit.started is None else visit.started) - visit.stay.arrives

    def _percent(self, held_seconds: int, seconds: int) -> float:
        return round(held_seconds * 100 / (self._total * seconds), 2) if seconds else 0.0
