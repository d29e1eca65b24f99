"""Growth of the counters of meters between two readings, and the hours to which it belongs. Pure.

Rules:

1. A meter's process has a `life`, and its own seconds are the clock. So a reading that comes twice or late is ignored,
   and a clock that is set, here or on the node, makes no time.
2. Counters of another life began at 0, and so did a counter that is smaller, or that the reading before did not have.
3. The growth is spread evenly over the seconds that the meter booked meanwhile, up to now: after hours without a
   reading each hour has its part.
4. Of a node that has not been read before, only a meter that is younger than the store counts in full: what an older
   one counted before is unknown to be of the store's time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from gpuplane.metering.exposition import METER_SECONDS

HOUR: Final = 3600
REMEMBERED_LIVES: Final = 8
POD_METRICS: Final = {
    "gpuplane_pod_gpu_held_seconds_total": "held",
    "gpuplane_pod_gpu_used_seconds_total": "used",
    "gpuplane_pod_gpu_energy_joules_total": "energy",
}
REST_METRICS: Final = {
    "gpuplane_gpu_unbooked_seconds_total": "held",
    "gpuplane_gpu_unbooked_used_seconds_total": "used",
    "gpuplane_gpu_unbooked_energy_joules_total": "energy",
}
READ_METRICS: Final = {**POD_METRICS, **REST_METRICS, METER_SECONDS.name: ""}

Labels = tuple[tuple[str, str], ...]
"""Labels of a series by name, sorted. Those of a pod have `pod`, those of the rest of a GPU have not."""


class Amounts(NamedTuple):
    """Seconds held, seconds used and joules; None where nothing measures it."""

    held: float
    used: float | None
    energy: float | None


class CounterReading(msgspec.Struct, frozen=True):
    """The counters of one node's meter at one moment.

    Args:
        life: of the meter's process.
        seconds: that this process has booked.
    """

    node: str
    life: str
    seconds: float
    counters: Mapping[Labels, Amounts]


class LastReading(msgspec.Struct, frozen=True):
    """The last counters of a node, and the lives of its meter, the newest last. `seconds` is None where the counters
    were forgotten.
    """

    lives: tuple[str, ...]
    seconds: float | None
    counters: Mapping[Labels, Amounts]


class Growth(NamedTuple):
    """Amounts that were added since the last reading, in the last `seconds` before now."""

    added: dict[Labels, Amounts]
    seconds: float
    last: LastReading


def read_counters(lines: Iterable[tuple[str, Mapping[str, str], float]]) -> list[CounterReading]:
    """Return the readings in the metric lines (name, labels, value) of one text, by node.

    Lines of a node whose meter has no `gpuplane_meter_seconds_total` are left out: nothing says how old they are.
    """
    meters: dict[str, tuple[str, float]] = {}
    found: dict[Labels, dict[str, float]] = {}
    for name, labels, value in lines:
        if not 0 <= value < math.inf:
            continue
        if name == METER_SECONDS.name:
            meters[labels.get("node", "")] = (labels.get("life", ""), value)
        else:
            found.setdefault(tuple(sorted(labels.items())), {})[READ_METRICS[name]] = value
    counters: dict[str, dict[Labels, Amounts]] = {node: {} for node in meters}
    # An exporter writes no host name where its configuration says so; it has one node.
    only = next(iter(counters.values())) if len(counters) == 1 else None
    for key, sums in found.items():
        of = counters.get(dict(key).get("Hostname", ""), only)
        if of is not None:
            of[key] = Amounts(sums.get("held", 0.0), sums.get("used"), sums.get("energy"))
    return [CounterReading(node, *meter, counters[node]) for node, meter in meters.items()]


def grown(last: LastReading | None, now: CounterReading, store_seconds: float) -> Growth | None:
    """Return what a reading adds; None for a reading that came before.

    Args:
        last: the node's; None for a node that has not been read.
        store_seconds: the age of the store.
    """
    if last is None or (last.seconds is None and now.life == last.lives[-1]):
        added = dict(now.counters) if last is None and now.seconds <= store_seconds else {}
        return Growth(added, now.seconds, LastReading((now.life,), now.seconds, now.counters))
    if now.life != last.lives[-1]:
        if now.life in last.lives:
            return None
        lives = (*last.lives, now.life)[-REMEMBERED_LIVES:]
        return Growth(dict(now.counters), now.seconds, LastReading(lives, now.seconds, now.counters))
    if last.seconds is None or now.seconds <= last.seconds:
        return None
    added = {key: _added(last.counters.get(key), amounts) for key, amounts in now.counters.items()}
    return Growth(added, now.seconds - last.seconds, LastReading(last.lives, now.seconds, now.counters))


def _added(before: Amounts | None, now: Amounts) -> Amounts:
    if before is None or now.held < before.held:
        return now
    return Amounts(now.held - before.held, _more(before.used, now.used), _more(before.energy, now.energy))


def _more(before: float | None, now: float | None) -> float | None:
    return None if now is None else now - before if before is not None and now >= before else now


def spread(now: float, seconds: float) -> Iterator[tuple[int, float]]:
    """Yield the hours (since 1970) of the last `seconds` before `now`, each with its part; the parts add up to 1."""
    begin = now - max(0.0, seconds)
    first, last = int(begin // HOUR), int(now // HOUR)
    if first == last:
        yield last, 1.0
        return
    for hour in range(first, last + 1):
        part = (min(now, (hour + 1) * HOUR) - max(begin, hour * HOUR)) / (now - begin)
        if part > 0:
            yield hour, part
