"""The openb packing experiment: pods arrive one after the other, none leaves, and what is left over is measured.

Each pod that fits somewhere is placed, by a policy with a cluster's ledger (`PolicyPlacer`) or by a whole scheduler
(`gpuplane.scheduler.simulation`); a pod that does not fit is dropped. Measured is how much of the GPUs is held when so
much has arrived (in percent of what the GPUs are), as in "Beware of Fragmentation" (USENIX ATC 2023) and its published
results: each arrival is a row, rows whose arrived load rounds to the same percent are averaged. The watts of the GPUs
are those of a model (`placement.watts`), at equal parts of the GPUs held.

Core counts 1000 to a GPU here. Without an order of arrival, pods are shuffled by the seed and then drawn again, each as
likely as the other, until `inflate` times the GPUs have been asked for.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from gpuplane.sharing.assignment import Assignment
from gpuplane.sharing.busy import BusyGPUs
from gpuplane.sharing.ledger import Ledger
from gpuplane.sharing.node import LedgerGPU
from gpuplane.sharing.placement.alike import AlikeNodes
from gpuplane.sharing.placement.fragmentation import FragmentationPolicy
from gpuplane.sharing.placement.mix import Mix
from gpuplane.sharing.placement.ranking import Ranking
from gpuplane.sharing.placement.registry import policy_named
from gpuplane.sharing.request import Ask, Request

MILLI: Final = 1000
FIRST_LESSON: Final = 16  # arrivals; then after twice as many each time
LESSON_EVERY: Final = 4_096  # arrivals at most
ROWS: Final = (90, 100, 110, 120, 130)  # percent arrived
POWER_ROWS: Final = tuple(range(10, 100, 10))  # percent held


class PackingMachine(msgspec.Struct, frozen=True):
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class Job(msgspec.Struct, frozen=True):
    """A pod of the trace: `gpus` GPUs, `milli` of each; several GPUs are whole ones. `models` are any-of."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    milli: int
    models: tuple[str, ...] = ()

    @property
    def load(self) -> int:
        return self.gpus * self.milli

    def request(self) -> Request:
        asks = (Ask("pod", self.load, scale=MILLI),) if self.load else ()
        return Request(asks, models=self.models, cpu_milli=self.cpu_milli, host_memory_mib=self.memory_mib)


class Outcome(msgspec.Struct, frozen=True):
    """`allocated` by percent arrived, None for what never arrived; `fragments` in percent of all GPUs, at the end.

    `watts` by percent held: what all GPUs take, in the model, when pods first hold so much; None where they never do.
    """

    allocated: dict[int, float | None]
    watts: dict[int, int | None]
    fragments: float
    arrived: int
    placed: int


def arrivals(jobs: Sequence[Job], machines: Iterable[PackingMachine], seed: int, inflate: float) -> list[Job]:
    """Return the jobs in a random order, then some of them again."""
    chance = random.Random(seed)
    found = sorted(jobs, key=lambda job: job.name)
    chance.shuffle(found)
    wanted = inflate * MILLI * sum(machine.gpus for machine in machines)
    load = sum(job.load for job in found)
    if not load:
        return found
    while True:
        job = chance.choice(jobs)
        if load + job.milli > wanted:
            return found
        load += job.load
        found.append(job)


def up_to(arriving: Iterable[Job], machines: Iterable[PackingMachine], inflate: float) -> list[Job]:
    """Return the first jobs, until they request `inflate` times the GPUs."""
    wanted = inflate * MILLI * sum(machine.gpus for machine in machines)
    found: list[Job] = []
    load = 0
    for job in arriving:
        load += job.load
        if load > wanted:
            break
        found.append(job)
    return found


def shuffled(machines: Iterable[PackingMachine], seed: int) -> list[PackingMachine]:
    found = sorted(machines, key=lambda machine: machine.name)
    random.Random(~seed).shuffle(found)
    return found


class Placer(Protocol):
    """A way to place pods: a policy alone, or a scheduler with all that it looks at."""

    ledger: Ledger

    def request(self, job: Job) -> Request:
        """Return what the job requests, in the units of the ledger."""

    def arrive(self, job: Job) -> None:
        """Learn that the job was created, as a cluster does before it decides about it."""

    def place(self, key: str, job: Job) -> Assignment | None:
        """Place the job under a key that names nothing else; None where it fits no node now."""

    def remove(self, key: str) -> None:
        """Free what the job under the key holds."""


class PolicyPlacer:
    """Places by a policy alone, on a ledger in thousandths of a GPU. Of equal nodes the first of `machines` counts."""

    def __init__(
        self, machines: Iterable[PackingMachine], jobs: Iterable[Job], policy: str, *, known: bool = True
    ) -> None:
        """
        Args:
            jobs: the trace, which is the mix of requests.
            known: whether the policy knows the mix from the start; otherwise it learns as a live cluster does, from
                what has arrived.
        """
        self.ledger = Ledger(MILLI)
        for machine in machines:
            gpus = tuple(
                LedgerGPU(index=at, uuid=f"{machine.name}/{at}", model=machine.model, memory_mib=0)
                for at in range(machine.gpus)
            )
            self.ledger.set_node(machine.name, gpus, cpu_milli=machine.cpu_milli, host_memory_mib=machine.memory_mib)
        self._requests: dict[Job, Request] = {}
        self._mix = Mix()
        self._learns = not known
        self._arrived, self._lesson = 0, FIRST_LESSON
        if known:
            for job in jobs:
                self._mix.seen(self.request(job))
        self._policy = policy
        self._alike = AlikeNodes(self.ledger, [node.name for node in self.ledger.nodes()])
        self._ranking = self._learn()

    def request(self, job: Job) -> Request:
        found = self._requests.get(job)
        if found is None:
            found = self._requests[job] = job.request()
        return found

    def arrive(self, job: Job) -> None:
        if not self._learns:
            return
        self._mix.seen(self.request(job))
        self._arrived += 1
        if self._arrived >= self._lesson:
            self._lesson = self._arrived + min(self._arrived, LESSON_EVERY)
            self._ranking = self._learn()

    def place(self, key: str, job: Job) -> Assignment | None:
        request = self.request(job)
        placement = self._ranking.best(request)
        if placement is None:
            return None
        found = placement.assignment
        self.ledger.hold(key, found.node, found, cpu_milli=request.cpu_milli, host_memory_mib=request.host_memory_mib)
        return found

    def remove(self, key: str) -> None:
        self.ledger.release(key)

    def _learn(self) -> Ranking:
        policy = policy_named(self._policy, self._mix, [node.gpus for node in self.ledger.nodes()], MILLI)
        return Ranking(self.ledger, self._alike, policy)


class Experiment:
    """One run; `steps` yields after each arrival, `outcome` is the result.

    `placements` has the job and its assignment for each arrival, None for a job that was dropped.
    """

    def __init__(
        self, machines: Iterable[PackingMachine], jobs: Iterable[Job], arriving: Sequence[Job], placer: Placer
    ) -> None:
        """
        Args:
            jobs: the trace, which is the mix of requests that fragments are measured by.
            arriving: what arrives, in order.
        """
        self._arriving = arriving
        self._placer = placer
        self._jobs = tuple(jobs)
        self._total = MILLI * sum(machine.gpus for machine in machines)
        self._rows: dict[int, list[float]] = {}
        self._busy = BusyGPUs(placer.ledger.nodes())
        self._watts: dict[int, int] = {}
        self.placements: list[tuple[Job, Assignment | None]] = []

    def steps(self) -> Iterator[None]:
        arrived = held = 0
        for number, job in enumerate(self._arriving):
            self._placer.arrive(job)
            placed = self._placer.place(str(number), job)
            self.placements.append((job, placed))
            arrived += job.load
            if placed is not None:
                held += job.load
                self._busy.add(placed)
                reached = [row for row in POWER_ROWS if row not in self._watts and held * 100 >= row * self._total]
                self._watts |= dict.fromkeys(reached, self._busy.watts)
            percent = round(arrived * 100 / self._total)
            self._rows.setdefault(percent, []).append(round(held * 100 / self._total, 2))
            yield

    def curve(self) -> list[tuple[float, float]]:
        """Return (percent arrived, percent held), the mean over the arrivals of each percent."""
        return [(float(percent), sum(some) / len(some)) for percent, some in sorted(self._rows.items())]

    def outcome(self) -> Outcome:
        # As in the published analysis: where no arrival rounds to a percent, its neighbours stand in.
        near = {row: self._rows.get(row - 1, []) + self._rows.get(row + 1, []) for row in ROWS}
        allocated = {row: self._rows.get(row) or near[row] for row in ROWS}
        return Outcome(
            allocated={row: round(sum(some) / len(some), 2) if some else None for row, some in allocated.items()},
            watts={row: self._watts.get(row) for row in POWER_ROWS},
            fragments=fragments_percent(self._placer, self._jobs),
            arrived=len(self._arriving),
            placed=sum(placed is not None for _, placed in self.placements),
        )


def fragments_percent(placer: Placer, jobs: Iterable[Job]) -> float:
    """Return the percent of all GPUs that are free now and of no use to the next pod, expected to be one of `jobs`."""
    mix, ledger = Mix(), placer.ledger
    for job in jobs:
        mix.seen(placer.request(job))
    measure = FragmentationPolicy(mix)
    nodes = list(ledger.nodes())
    fragments = sum(measure.fragments(node, node.core, node.cpu_milli) for node in nodes)
    return round(fragments * 100 / (ledger.scale * sum(len(node.gpus) for node in nodes)), 2)
