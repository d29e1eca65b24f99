"""Adds up the bookings of a node from reading to reading.

Invariants:

- Totals only grow, and begin at 0 with the process, as counters of Prometheus do: `rate` and `increase` know it. So the
  exporter writes nothing to its node.
- A holder has totals of 0 from the reading that finds it: Prometheus sees a counter's first step only then.
- The totals of a holder that left remain for `REMEMBERED_SECONDS`, so that a scrape gets the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gpuplane.metering.booking import book, energy_between
from gpuplane.metering.facts import NodeReading, PodContainer

REMEMBERED_SECONDS: Final = 600.0
Key = tuple[str, PodContainer | None]
"""UUID of a GPU, and its holder or None."""


class MeterTotals(msgspec.Struct):
    """Sums since the meter began; None for what NVML does not report."""

    held_seconds: float = 0.0
    used_seconds: float | None = None
    memory_byte_seconds: float | None = None
    energy_joules: float | None = None
    part: float = 0.0  # of the GPU, held at the last reading


class Meter:
    """The totals of one node."""

    def __init__(self) -> None:
        self._first_ns = 0
        self._last: NodeReading | None = None
        self._totals: dict[Key, MeterTotals] = {}
        self._seen_ns: dict[Key, int] = {}
        # Lowest mean power between two readings: with work all the time it is too high, and the energy goes by part.
        self._idle_watts: dict[str, float] = {}

    @property
    def totals(self) -> Mapping[Key, MeterTotals]:
        return self._totals

    @property
    def seconds(self) -> float:
        """Return the time between the first reading and the last one."""
        return 0.0 if self._last is None else (self._last.at_ns - self._first_ns) / 1e9

    def read(self, now: NodeReading) -> None:
        """Book the time since the last reading. A reading from before the last one is ignored."""
        last = self._last
        if last is not None and now.at_ns <= last.at_ns:
            return
        if last is not None:
            self._learn_idle(last, now)
            for booking in book(last, now, self._idle_watts):
                total = self._totals.setdefault((booking.uuid, booking.who), MeterTotals())
                total.held_seconds += booking.held_seconds
                total.used_seconds = _plus(total.used_seconds, booking.used_seconds)
                total.memory_byte_seconds = _plus(total.memory_byte_seconds, booking.memory_byte_seconds)
                total.energy_joules = _plus(total.energy_joules, booking.energy_joules)
                self._seen_ns[booking.uuid, booking.who] = now.at_ns
        else:
            self._first_ns = now.at_ns
        self._note_holders(now)
        self._last = now

    def _learn_idle(self, last: NodeReading, now: NodeReading) -> None:
        seconds = (now.at_ns - last.at_ns) / 1e9
        first = {gpu.uuid: gpu for gpu in last.gpus}
        for gpu in now.gpus:
            if gpu.uuid not in first or _began_again(first[gpu.uuid].energy_millijoules, gpu.energy_millijoules):
                continue
            energy = energy_between(first[gpu.uuid], gpu, seconds)
            if energy is not None:
                watts = energy / seconds
                self._idle_watts[gpu.uuid] = min(watts, self._idle_watts.get(gpu.uuid, watts))

    def _note_holders(self, now: NodeReading) -> None:
        for total in self._totals.values():
            total.part = 0.0
        gpus = {gpu.uuid: gpu for gpu in now.gpus}
        present: list[tuple[Key, float]] = [((hold.uuid, hold.who), hold.part) for hold in now.holds]
        for key, part in [*present, *(((uuid, None), 0.0) for uuid in gpus)]:
            gpu = gpus.get(key[0])
            if gpu is None:
                continue
            if key not in self._totals:
                energy = None if gpu.energy_millijoules is None and gpu.power_watts is None else 0.0
                used = None if gpu.active is None else 0.0
                memory = None if gpu.memory_bytes is None else 0.0
                self._totals[key] = MeterTotals(0.0, used, memory, energy)
            self._totals[key].part = part
            self._seen_ns[key] = now.at_ns
        oldest = now.at_ns - int(REMEMBERED_SECONDS * 1e9)
        for key in [key for key, seen in self._seen_ns.items() if seen < oldest]:
            del self._totals[key], self._seen_ns[key]


def _began_again(old: int | None, new: int | None) -> bool:
    return old is not None and new is not None and new < old


def _plus(total: float | None, more: float | None) -> float | None:
    return total if more is None else (total or 0.0) + more
