"""Measures how long a neighbour waits for a shared GPU, by the way in which a tenant launches its kernels.

    python benchmarks/limits_gaps.py

Two tenants of a simulated T4 have half of its time each. One launches kernels as fast as it may: in one stream, in 40
streams in turn, in a new stream each, or from a new thread each, with and without an open capture. The other launches a
kernel of 0.1 ms from time to time, and waits for it: the figure is its longest wait. Goal: a quantum of 20 ms, what is
in flight, and a kernel. Programs run before everything else where that is allowed (SCHED_RR), since a busy machine
makes waits longer. Where only each stream is bounded, new streams make it 3 to 6 s.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from figures import show
from shared_gpu import Machine, begin, build_libraries, compiled

WAYS = {
    "one": "in one stream",
    "forty": "in 40 streams in turn",
    "fresh": "in a new stream each",
    "thread": "from a new thread each",
}
KERNELS_US = (200, 2000, 30_000)
SECONDS = 4.0
GOAL_MS = 40
PRIORITY = 5


def longest_wait(folder: Path, program: Path, way: str, us: int, capture: bool) -> float:
    """Milliseconds that the neighbour waited at most."""
    machine = Machine(folder)
    tenant, neighbour = (
        machine.start([program, *map(str, words)], machine.share(str(words[0]), core=50))
        for words in ((way, us, SECONDS + 0.5, int(capture)), ("watch", 100, SECONDS, 0))
    )
    begin(tenant, neighbour)
    longest = float(neighbour.communicate()[0].splitlines()[-1])
    tenant.communicate()
    return longest


def main() -> None:
    build_libraries()
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    except PermissionError:
        print("not allowed to go before other work: what else runs here makes waits longer\n")
    with tempfile.TemporaryDirectory() as name:
        program = compiled(Path(__file__).with_suffix(".c"), Path(name) / "gaps", "-lpthread")
        for us in KERNELS_US:
            for way, words in WAYS.items():
                waits = [longest_wait(Path(name, f"{us}-{way}-{n}"), program, way, us, n == 1) for n in range(2)]
                show(f"{us / 1000:g} ms {words}", max(waits), "ms", goal=GOAL_MS + us / 1000)


if __name__ == "__main__":
    main()
