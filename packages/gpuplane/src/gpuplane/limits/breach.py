"""Processes in the books that do more than their share may, by NVML: pure functions.

A process can open the driver's own library besides ours, or change ours. Its calls are then missing in the books, and
NVML is the only witness. The books and NVML are not of one moment, so small differences prove nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from gpuplane.limits.facts import CoreMode, Observation, OnGpu, ProcessSlot, Share

Entries = Mapping[OnGpu, tuple[Share, ProcessSlot] | None]
Worked = Mapping[tuple[str, str], tuple[int, int]]
"""By share and UUID: when it was read (monotonic nanoseconds), and the GPU's nanoseconds in the books by then."""

_MEMORY_SLACK: Final = 512 << 20
_MEMORY_SLACK_PART: Final = 20
_POINTS: Final = (10, 15)
"""Above the limit, and above the books, both seen twice."""
_BLATANT_POINTS: Final = (20, 40)
"""The same, where once is enough."""
_COMPARABLE_NS: Final = 1_500_000_000
"""NVML's figure is of the last second, so the books' one has to be of about as long for once to be enough."""


class EscapeKind(StrEnum):
    """The way in which a process goes round the limits."""

    OUTSIDE = "outside"  # in no books
    MEMORY = "memory"  # its share holds more than its limit
    TIME = "time"  # its share works longer than the books say, and than its limit
    DRAWING = "drawing"  # it uses the GPU by Vulkan or OpenGL, which no limit holds
    VIDEO = "video"  # it uses the encoder or decoder, which no limit holds


class Escape(msgspec.Struct, frozen=True, order=True):
    """A process outside the limits of a GPU that is shared; `share` is the share it belongs to, "" for none."""

    uuid: str
    pid: int
    start: int
    memory_bytes: int
    name: str = ""
    share: str = ""
    kind: EscapeKind = EscapeKind.OUTSIDE
    percent: int = 0

    @property
    def key(self) -> tuple[str, int, int, str]:
        return self.uuid, self.pid, self.start, self.kind


def worked(seen: Observation) -> Worked:
    """Return each share's time in the books, to be compared with the next observation."""
    return {
        (share.id, limit.uuid): (seen.at_ns, total.gpu_ns)
        for share in seen.shares
        for limit, total in zip(share.limits.gpus, share.totals, strict=False)
    }


def breaches(seen: Observation, entries: Entries, before: Worked) -> Iterator[tuple[Escape, bool]]:
    """Processes of shares that do more than they may, and whether having seen it once is enough.

    Of a share the process is named that holds or does the most. Processes that draw or use the video engines are named
    each.
    """
    for process, entry in entries.items():
        if entry is not None and process.draws:
            yield _escape(process, entry[0], EscapeKind.DRAWING), True
        if entry is not None and process.video_percent:
            yield _escape(process, entry[0], EscapeKind.VIDEO, percent=process.video_percent), True
    now = worked(seen)
    for (share, uuid), processes in _by_share(entries):
        limit = share.limits.of(uuid)
        assert limit is not None
        memory = sum(process.memory_bytes or 0 for process in processes)
        if limit.memory_bytes and memory > limit.memory_bytes + _slack(limit.memory_bytes):
            most = max(processes, key=lambda process: process.memory_bytes or 0)
            yield _escape(most, share, EscapeKind.MEMORY, memory=memory), True
        percent = sum(process.gpu_percent or 0 for process in processes)
        since = before.get((share.id, uuid))
        if since is None or limit.mode is not CoreMode.HARD or not 0 < limit.core < 100:
            continue
        passed, booked = now[share.id, uuid][0] - since[0], now[share.id, uuid][1] - since[1]
        own = 100 * booked / passed if passed > 0 else 100
        if percent > limit.core + _POINTS[0] and percent > own + _POINTS[1]:
            blatant = percent > limit.core + _BLATANT_POINTS[0] and percent > own + _BLATANT_POINTS[1]
            most = max(processes, key=lambda process: process.gpu_percent or 0)
            yield _escape(most, share, EscapeKind.TIME, percent=percent), blatant and passed < _COMPARABLE_NS


def _by_share(entries: Entries) -> Iterable[tuple[tuple[Share, str], list[OnGpu]]]:
    found: dict[tuple[str, str], list[OnGpu]] = defaultdict(list)
    shares = {}
    for process, entry in entries.items():
        if entry is not None:
            shares[entry[0].id] = entry[0]
            found[entry[0].id, process.uuid].append(process)
    return [((shares[share], uuid), processes) for (share, uuid), processes in sorted(found.items())]


def _slack(limit: int) -> int:
    """Contexts and modules count a second after they were made."""
    return max(_MEMORY_SLACK, limit // _MEMORY_SLACK_PART)


def _escape(process: OnGpu, share: Share, kind: EscapeKind, memory: int = 0, percent: int = 0) -> Escape:
    held = memory or process.memory_bytes or 0
    return Escape(process.uuid, process.pid, process.start, held, process.name, share.id, kind, percent)
