"""Measures what 10,000 killed and 1,000 stopped processes do to the users of the same GPU, and what they leave behind.

    python benchmarks/limiter_kills.py [KILLED [STOPPED]]

packages/gpuplane/tests/limiter/kills.c forks processes that allocate, free and launch in a share, four at a time, and
kills each at a random moment: some while they start, some in their turn. Others are stopped before, for 50 ms.
Meanwhile one program of the same share and one of another launch, wait and allocate all the time: what counts is the
longest that one call of theirs took.

Goals: no call waits longer than a second, and nothing is left, neither in the ledger nor on the GPU. Peers (see the
reference of sharing): locks in shared memory, as HAMi-core and vcuda have them, wait for a killed holder for ever.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from figures import show
from gpuplane.limits.facts import CoreMode
from shared_gpu import MIB, ROOT, Machine, build_libraries, compiled

LIMIT = 64 * MIB
NAMES = {"kill": "SIGKILL", "stop": "SIGSTOP for 50 ms, then SIGKILL"}


def main(kills: int, stops: int) -> None:
    build_libraries()
    measure("kill", kills)
    measure("stop", stops)


def measure(how: str, count: int) -> None:
    """Let processes of a share be killed, or stopped and then killed, next to the measured processes."""
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(ROOT / "packages/gpuplane/tests/limiter/kills.c", Path(folder) / "kills")
        machine = Machine(Path(folder) / "machine")
        doomed = machine.share("doomed", memory_bytes=LIMIT, core=50, mode=CoreMode.WEIGHTED)
        other = machine.share("other", memory_bytes=LIMIT, core=40)
        free = int(machine.answer([program, "free"]))
        start = time.monotonic()
        watchers = [machine.start([program, "watch", str(MIB)], share) for share in (other, doomed)]
        for watcher in watchers:
            assert watcher.stdout is not None
            assert watcher.stdout.readline()
        killed = json.loads(machine.answer([program, how, str(count), "1"], doomed))
        seconds = time.monotonic() - start
        print(f"    {NAMES[how]}: {count:,} in {seconds:.0f} s; what they were at: {killed}")
        for watcher, who in zip(watchers, ("another share", "the same share"), strict=True):
            longest = json.loads(watcher.communicate("stop\n")[0])
            show(f"longest launch of {who}", longest["launch"] * 1000, "ms", goal=1000, peer="semaphores: for ever")
            show(f"longest allocation of {who}", longest["allocation"] * 1000, "ms", goal=1000)
        turned_away = machine.answer([program, "whole", str(LIMIT)], doomed) != "0"
        show("left in the share's ledger", turned_away * LIMIT / MIB, "MiB", goal=0)
        show("left on the GPU", (free - int(machine.answer([program, "free"]))) / MIB, "MiB", goal=0)
        show("processes that died of something else", killed["ended themselves"], "", goal=0)


if __name__ == "__main__":
    counts = [int(word) for word in sys.argv[1:3]]
    main(*counts, *(10_000, 1_000)[len(counts) :])
