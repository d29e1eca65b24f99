"""How exactly shares of a GPU's time hold.

    python benchmarks/limits.py [--quick]

On simulated T4s, whose time line is exact: kernels take the time they say, and cost the machine nothing. A program in C
launches one kernel after the other for as long as it may; its share is that of the GPU's time from one second after
its start on, so an error within the goal is also a settling within a second. Where kernels are long, several machines
run at a time, since nothing is to be done but wait. Programs run on this machine's processors, and what else runs
there makes shares smaller: so what a program gets without a limit is shown beside them. Where that is below 100, a
limit's time cannot all be used. It takes two minutes and wants a quiet machine.

Goals: at most 2 points of error for one tenant, 3 for each of two, for limits of 10 to 90 percent and kernels of 20 us
to 300 ms. Peers (see the reference of sharing): vcuda and HAMi-core give 31 to 100 percent for a limit of 30, depending
on the kernel. What becomes of killed processes is in limiter_kills.py, what a launch costs in limiter_overhead.py.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from figures import show
from gpuplane.limits.facts import Mode
from shared_gpu import Machine, begin, build_libraries, compiled

PEER = "vcuda, HAMi-core: 31-100 at 30"
KERNELS_US = (20, 100, 1000, 20_000, 300_000)
CORES = range(10, 100, 10)
Tenant = tuple[float, Mapping[str, object]]  # microseconds of its kernels, its limits


class Bench:
    def __init__(self, folder: Path) -> None:
        self.program = compiled(Path(__file__).with_name("limits_busy.c"), folder / "busy")
        self._folders = (folder / f"machine-{number}" for number in itertools.count())

    def shares(self, seconds: float, *machines: Sequence[Tenant]) -> list[list[float]]:
        """Percent of its GPU's time that each tenant of each machine gets, all at the same time."""
        children = []
        for tenants in machines:
            machine = Machine(next(self._folders))
            for number, (us, limits) in enumerate(tenants):
                share = machine.share(f"tenant-{number}", **limits)
                children.append(machine.start([self.program, str(us), str(seconds)], share))
        begin(*children)
        got = iter([float(child.communicate()[0]) for child in children])
        return [[next(got) for _ in tenants] for tenants in machines]


def seconds_of(us: float, quick: bool) -> float:
    """Long kernels come seldom under small limits, so they need longer."""
    return 13.0 if us > 20_000 else 2.0 if quick else 3.3


def at_a_time(us: float) -> int:
    """How many machines this one can play without a delay that shows."""
    return 1 if us < 1000 else 3 if us < 20_000 else len(CORES)


def batches(cores: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (cores[at : at + size] for at in range(0, len(cores), size))


def one_tenant(bench: Bench, quick: bool) -> None:
    cores = list(CORES)[:: 4 if quick else 1]
    print("percent of the GPU's time that one tenant gets, by its limit and the length of its kernels:\n")
    print(f"{'':10}{'none':>7}" + "".join(f"{core:>7}" for core in cores) + "   worst   goal")
    worst = {}
    for us in KERNELS_US[: -1 if quick else None]:
        [[unlimited]] = bench.shares(2, [(us, {})])
        got = []
        for some in batches(cores, at_a_time(us)):
            got += bench.shares(seconds_of(us, quick), *([(us, {"core": core})] for core in some))
        worst[us] = max(abs(share - core) for [share], core in zip(got, cores, strict=True))
        print(f"{us:>7,} us{unlimited:7.1f}" + "".join(f"{share:7.1f}" for [share] in got), end="")
        print(f"{worst[us]:8.2f}{'  ' if worst[us] <= 2 else ' !'}{2:5}", flush=True)
    print()
    show("one tenant, worst error", max(worst.values()), "pts", goal=2, peer=PEER)


def two_tenants(bench: Bench, quick: bool) -> None:
    pairs = [((20, 30), (20, 60)), ((1000, 30), (1000, 60)), ((20_000, 30), (20_000, 60))]
    if not quick:
        pairs += [
            ((100, 20), (100, 70)),
            ((1000, 45), (1000, 45)),
            ((1000, 10), (20_000, 80)),
            ((300_000, 30), (1000, 60)),
        ]
    worst = 0.0
    for first, second in pairs:
        seconds = max(seconds_of(us, quick) for us, _ in (first, second))
        [got] = bench.shares(seconds, [(us, {"core": core}) for us, core in (first, second)])
        error = max(abs(share - core) for share, (_, core) in zip(got, (first, second), strict=True))
        worst = max(worst, error)
        what = " and ".join(f"{core} of {us:,} us" for us, core in (first, second))
        print(f"    {what:34} {got[0]:5.1f} {got[1]:5.1f}   worst {error:.2f}", flush=True)
    show("two tenants, worst error", worst, "pts", goal=3, peer=PEER)
    weights = [(1000, {"core": 1, "weight": weight, "mode": Mode.WEIGHTED}) for weight in (1, 3)]
    [[light, heavy]] = bench.shares(seconds_of(1000, quick), weights)
    show("weights 1 and 3: of all time lost", 100 - light - heavy, "pts")
    show("weights 1 and 3: error of the ratio", abs(heavy / light - 3) / 3 * 100, "%")


def main() -> None:
    quick = "--quick" in sys.argv
    build_libraries()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        one_tenant(bench, quick)
        two_tenants(bench, quick)


if __name__ == "__main__":
    main()
