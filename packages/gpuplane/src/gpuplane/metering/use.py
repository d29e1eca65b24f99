"""The use of GPUs by pods now, from the meter's counters at several moments. Pure.

Invariants:

- The meter's own seconds are the clock: a GPU's held and unbooked seconds add up to the time that was metered. So a
  clock that is set, here or on a node, changes nothing, and neither does a scrape that came late.
- Counters that became smaller, or grew by more time than there was, began again: that GPU has no rates until it was
  read once more. Counters that passed their old values between two readings look like growth, as in Prometheus.
- Nothing is estimated: a value that was not measured is None.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

WINDOW_SECONDS: Final = 300.0
STEP_SECONDS: Final = 100.0  # between two moments that are remembered
LEAST_SECONDS: Final = 5.0  # of metered time, below which rates are noise
IDLE_PART: Final = 0.01  # of the time; a GPU that works less is not used
IDLE_SECONDS: Final = 300.0  # without use, after which a held GPU counts as idle

_MOST_USED: Final = 1.01  # of the time: seconds in metrics are rounded

HELD, USED, MEMORY = 0, 1, 2  # place of an amount among the three of a pod
POD_COUNTERS: Final = {
    "gpuplane_pod_gpu_held_seconds_total": HELD,
    "gpuplane_pod_gpu_used_seconds_total": USED,
    "gpuplane_pod_gpu_memory_byte_seconds_total": MEMORY,
}
REST_COUNTERS: Final = {
    "gpuplane_gpu_unbooked_seconds_total": HELD,
    "gpuplane_gpu_unbooked_used_seconds_total": USED,
    "gpuplane_gpu_unbooked_memory_byte_seconds_total": MEMORY,
}
GAUGES: Final = {
    "DCGM_FI_DEV_GPU_UTIL": "busy_percent",
    "DCGM_FI_DEV_FB_USED": "memory_mib",
    "DCGM_FI_DEV_POWER_USAGE": "power_watts",
    "DCGM_FI_DEV_GPU_TEMP": "temperature_celsius",
}
METRICS: Final = frozenset((*POD_COUNTERS, *REST_COUNTERS, *GAUGES))
MIB: Final = 1 << 20
_REST: Final = ""

Amounts = tuple[float | None, float | None, float | None]
"""Counters of seconds held, seconds used, and byte seconds of memory; None where nothing measures it."""
Counters = dict[str, Amounts]
"""Pod as namespace/name, empty for the rest of the GPU -> its counters."""
_NOTHING: Final[Amounts] = (None, None, None)


class MeteredGPU(msgspec.Struct):
    """One GPU at one moment: its gauges by the names of `GPUUse`, and its counters."""

    node: str
    index: int
    gauges: dict[str, float] = {}
    counters: Counters = {}


class PodUse(msgspec.Struct, frozen=True, rename="camel"):
    """A pod's use of one GPU over the window: percent of the GPU's time, and memory on average."""

    core: float | None = None
    memory_mib: float | None = None


class GPUUse(msgspec.Struct, frozen=True, rename="camel"):
    """Use of one GPU.

    `busy_percent` is the average of the window, or the value of the last reading where there was one only.
    `idle_seconds` is the time for which it has been held without use, as far as it was metered; 0 for a GPU that is
    used or free.
    """

    node: str
    index: int
    busy_percent: float | None = None
    memory_mib: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    idle_seconds: float = 0.0
    pods: dict[str, PodUse] = {}

    @property
    def idle(self) -> bool:
        """Return whether pods hold it and none has used it for long."""
        return self.idle_seconds >= IDLE_SECONDS


def read_lines(
    lines: Iterable[tuple[str, Mapping[str, str], float]], found: dict[str, MeteredGPU] | None = None
) -> dict[str, MeteredGPU]:
    """Return the GPUs of metric lines (name, labels, value) by UUID. Lines without UUID are left out, as
    are gauges of MIG instances; of a gauge that stands there once for each pod the last counts.
    """
    found = {} if found is None else found
    for name, labels, value in lines:
        uuid, index = labels.get("UUID", ""), labels.get("gpu", "")
        if not uuid or not index.isdecimal() or not math.isfinite(value):
            continue
        gpu = found.get(uuid)
        if gpu is None:
            gpu = found[uuid] = MeteredGPU(labels.get("Hostname", ""), int(index), {}, {})
        if (gauge := GAUGES.get(name)) is not None:
            if not labels.get("GPU_I_ID"):
                gpu.gauges[gauge] = value
            continue
        amount = POD_COUNTERS.get(name)
        # The same name is one text in all moments that are remembered.
        pod = _REST if amount is None else sys.intern(f"{labels.get('namespace', '')}/{labels.get('pod', '')}")
        amount = REST_COUNTERS.get(name) if amount is None else amount
        if amount is not None:
            sums = list(gpu.counters.get(pod, _NOTHING))
            sums[amount] = (sums[amount] or 0.0) + value  # a pod's containers, and its replicas
            gpu.counters[pod] = (sums[HELD], sums[USED], sums[MEMORY])
    return found


class _Moment(msgspec.Struct):
    counters: Counters
    metered: float


class _Watched(msgspec.Struct):
    moments: deque[_Moment]
    last: _Moment
    idle_seconds: float = 0.0


class UseWindow:
    """The readings of the last minutes; each one that is taken gives the use of all its GPUs."""

    def __init__(self) -> None:
        self._gpus: dict[str, _Watched] = {}

    def take(self, reading: Mapping[str, MeteredGPU]) -> dict[str, GPUUse]:
        """Return the use of the GPUs of a reading, by UUID. GPUs that are missing in it are forgotten."""
        self._gpus = {uuid: one for uuid, one in self._gpus.items() if uuid in reading}
        return {uuid: self._use(uuid, gpu) for uuid, gpu in reading.items()}

    def _use(self, uuid: str, gpu: MeteredGPU) -> GPUUse:
        now = _Moment(gpu.counters, sum(sums[HELD] or 0.0 for sums in gpu.counters.values()))
        watched = self._gpus.get(uuid)
        if watched is None or not _goes_on(watched.last, now):
            self._gpus[uuid] = _Watched(deque([now]), now)
            return _gauged(gpu)
        self._idle(watched, now)
        while len(watched.moments) > 1 and now.metered - watched.moments[1].metered >= WINDOW_SECONDS:
            watched.moments.popleft()
        before = watched.moments[0]
        watched.last = now
        if now.metered - watched.moments[-1].metered >= STEP_SECONDS:
            watched.moments.append(now)
        seconds = now.metered - before.metered
        if seconds < LEAST_SECONDS:
            return _gauged(gpu, idle_seconds=watched.idle_seconds)
        pods = {
            pod: PodUse(
                core=_rate(before, now, pod, USED, 100 / seconds),
                memory_mib=_rate(before, now, pod, MEMORY, 1 / MIB / seconds),
            )
            for pod in now.counters
            if pod and _rate(before, now, pod, HELD, 1.0)
        }
        used = _used(before, now)
        busy = {} if used is None else {"busy_percent": min(100.0, 100 * used / seconds)}
        return _gauged(gpu, idle_seconds=watched.idle_seconds, pods=pods, **busy)

    @staticmethod
    def _idle(watched: _Watched, now: _Moment) -> None:
        """Count the time since the last reading to the GPU's idle time, or begin again."""
        seconds, used = now.metered - watched.last.metered, _used(watched.last, now)
        held = sum(_rate(watched.last, now, pod, HELD, 1.0) or 0.0 for pod in now.counters if pod)
        if seconds <= 0:
            return
        unused = used is not None and used < IDLE_PART * seconds and held > 0
        watched.idle_seconds = watched.idle_seconds + seconds if unused else 0.0


def _gauged(gpu: MeteredGPU, **measured: Any) -> GPUUse:
    return msgspec.structs.replace(GPUUse(gpu.node, gpu.index), **{**gpu.gauges, **measured})


def _goes_on(before: _Moment, now: _Moment) -> bool:
    """Return whether the counters may be those of the moment before."""
    for pod, sums in before.counters.items():
        if any((new or 0.0) < (old or 0.0) for old, new in zip(sums, now.counters.get(pod, sums), strict=True)):
            return False
    return (_used(before, now) or 0.0) <= (now.metered - before.metered) * _MOST_USED + 1e-3


def _rate(before: _Moment, now: _Moment, pod: str, amount: int, scale: float) -> float | None:
    value = now.counters[pod][amount]
    return None if value is None else (value - (before.counters.get(pod, _NOTHING)[amount] or 0.0)) * scale


def _used(before: _Moment, now: _Moment) -> float | None:
    """Return the seconds in which the GPU worked, for pods or not; None where nothing measures that."""
    found = [_rate(before, now, pod, USED, 1.0) for pod in now.counters]
    measured = [one for one in found if one is not None]
    return sum(measured) if measured else None
