"""The ways to place pods that `gpuplane simulate packing` knows, and what one run of a way came to."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence
from typing import Final

import msgspec

from gpuplane.sharing.assignment import Assignment
from gpuplane.sharing.departures import Occupation
from gpuplane.sharing.findings import POLICIES
from gpuplane.sharing.packing import Job, Outcome

THROUGH: Final = ("policy", "extender", "scheduler")
Times = tuple[int, int | None, int | None]
"""Seconds of arrival, start and end; None while that did not happen."""
PlacementRow = tuple[Job, Assignment | None, Times | None]


class PackingWay(msgspec.Struct, frozen=True):
    through: str
    policy: str

    def __str__(self) -> str:
        return self.policy if self.through == "policy" else f"{self.policy}, {self.through}"


class PackingRun(msgspec.Struct, frozen=True):
    """`speed` is decisions a second. `outcome` is of an experiment without times, `occupation` of one with times.

    `held` is the percent of all GPUs that pods held, by the percent that arrived, or by the seconds of an experiment
    with times; `waiting` are the GPUs that waiting pods requested by these seconds.
    """

    way: PackingWay
    speed: float
    placements: Sequence[PlacementRow]
    outcome: Outcome | None = None
    occupation: Occupation | None = None
    held: Sequence[tuple[float, float]] = ()
    waiting: Sequence[tuple[float, float]] = ()


def read_way(text: str) -> PackingWay:
    """Read `POLICY`, `WAY` or `WAY:POLICY`. Raises ArgumentTypeError."""
    first, _, second = text.partition(":")
    through, policy = (first, second or POLICIES[0]) if first in THROUGH else ("policy", text)
    if policy not in POLICIES:
        ways = f"one of {', '.join(POLICIES)}, or one of {', '.join(THROUGH)}, alone or as scheduler:tightest"
        raise argparse.ArgumentTypeError(f"{text!r} is no way to place pods: {ways}")
    return PackingWay(through, policy)


def placements_csv(rows: Sequence[PlacementRow]) -> str:
    """Format where each pod went, in the order of arrival; `gpus` are indices, as 0|3, and nothing was placed without
    a node.
    """
    out = io.StringIO()
    timed = any(times is not None for _, _, times in rows)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["arrival", "pod", "node", "gpus", *(("arrived", "started", "ended") if timed else ())])
    for number, (job, placed, times) in enumerate(rows, start=1):
        gpus = "|".join(str(index) for _, index in placed.held()) if placed is not None else ""
        row = [str(number), job.name, placed.node if placed is not None else "", gpus]
        writer.writerow([*row, *("" if time is None else str(time) for time in times or ())])
    return out.getvalue()
