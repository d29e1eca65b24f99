"""The most of a cluster's GPUs that any way to pack can hold when 100% has arrived, on the openb traces.

    python benchmarks/packing_bound.py --data DIR [--seeds 42-46] [--traces default,gpushare40,...]

Two linear programs over node types and patterns of shares on a GPU (patterns are made as they are needed, as in
`gpuplane.sharing.placement.prices`). The first one chooses freely which of the arrived pods it holds. The second one
keeps the rule of the experiment that a pod which fits must be placed: whichever pod of one GPU is dropped first, all
such pods before it are held (but for those that name a model), and none after it that needs a whole GPU. It is solved
for many moments of the first drop, and the best counts. Neither looks at CPU and memory.

Needs SciPy, which is no part of the environment: without it the benchmark is skipped.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from figures import show
from gpuplane.cli.simulate_files import read_jobs, read_machines
from gpuplane.sharing.packing import MILLI, Job, PackingMachine, arrivals

TRACES = "default,gpuspec10,gpushare40,multigpu20"
FIRST_DROPS = [number / 4 for number in range(4 * 93, 4 * 98)]  # percent arrived
PENALTY = 50.0  # GPUs for a pod that must be held and is not: far above its worth
EPSILON = 1e-7
Kind = tuple[int, int, tuple[str, ...]]  # GPUs, thousandths of each, models
Pattern = tuple[int, tuple[tuple[int, int], ...]]  # type of nodes; (size, how often) on one GPU


def kind_of(job: Job) -> Kind:
    return job.gpus, job.milli, job.models


class Program:
    """The linear program; patterns that one solution needed are there for the next."""

    def __init__(self, machines: Sequence[PackingMachine], kinds: set[Kind]) -> None:
        self._optimize, self._sparse = (
            importlib.import_module("scipy.optimize"),
            importlib.import_module("scipy.sparse"),
        )
        types = Counter((machine.gpus, machine.model) for machine in machines)
        self._types = [(gpus, model, gpus * count) for (gpus, model), count in sorted(types.items())]
        self._kinds = sorted(kinds)
        self._sizes = sorted({milli for _, milli, _ in kinds if milli < MILLI})
        self._held = [
            (on, kind)
            for on, (size, model, _) in enumerate(self._types)
            for kind, (gpus, _, models) in enumerate(self._kinds)
            if size >= gpus and (not models or model in models)
        ]
        patterns = [(on, ((size, MILLI // size),)) for on in range(len(self._types)) for size in self._sizes]
        self._patterns: dict[Pattern, None] = dict.fromkeys(patterns)

    def most(self, least: Mapping[Kind, int], arrived: Mapping[Kind, int]) -> float | None:
        """Return the GPUs held at most, with at least `least` of each kind; None where so many do not fit."""
        kinds, types = len(self._kinds), len(self._types)
        right = [float(arrived.get(kind, 0)) for kind in self._kinds] + [
            -float(least.get(kind, 0)) for kind in self._kinds
        ]
        right += [float(gpus) for _, _, gpus in self._types] + [0.0] * (types * len(self._sizes))
        while True:
            result = self._solve(right)
            duals = [-float(dual) for dual in result.ineqlin.marginals]
            fresh = [self._pattern(on, duals, 2 * kinds) for on in range(types)]
            new = [pattern for pattern in fresh if pattern is not None and pattern not in self._patterns]
            if not new:
                return None if sum(result.x[-kinds:]) > 1e-6 else -float(result.fun)
            self._patterns |= dict.fromkeys(new)

    def _solve(self, right: Sequence[float]) -> Any:
        kinds, gpus_at = len(self._kinds), 2 * len(self._kinds)
        worth, columns = list[float](), list[dict[int, float]]()
        for on, kind in self._held:
            gpus, milli, _ = self._kinds[kind]
            takes = {gpus_at + on: float(gpus)} if milli == MILLI else {self._share(on, milli): 1.0}
            worth.append(-gpus * milli / MILLI)
            columns.append({kind: 1.0, kinds + kind: -1.0, **takes})
        for on, counts in self._patterns:
            worth.append(0.0)
            columns.append({gpus_at + on: 1.0, **{self._share(on, size): -float(count) for size, count in counts}})
        for kind in range(kinds):
            worth.append(PENALTY)
            columns.append({kinds + kind: -1.0})
        entries = [(value, row, at) for at, column in enumerate(columns) for row, value in column.items()]
        values, rows, at = zip(*entries, strict=True)
        matrix = self._sparse.coo_matrix((values, (rows, at)), shape=(len(right), len(columns))).tocsc()
        return self._optimize.linprog(worth, A_ub=matrix, b_ub=right, method="highs")

    def _share(self, on: int, size: int) -> int:
        """Return the row that counts shares of a size on a type of nodes."""
        return 2 * len(self._kinds) + len(self._types) + on * len(self._sizes) + self._sizes.index(size)

    def _pattern(self, on: int, duals: Sequence[float], gpus_at: int) -> Pattern | None:
        """Return the pattern that a GPU of the type gains most from; None where it gains nothing."""
        worths = [(duals[self._share(on, size)], size) for size in self._sizes]
        worths = [(worth, size) for worth, size in worths if worth > EPSILON]
        best, taken = [0.0] * (MILLI + 1), [0] * (MILLI + 1)
        for free in range(1, MILLI + 1):
            best[free] = best[free - 1]
            for worth, size in worths:
                if size <= free and best[free - size] + worth > best[free] + 1e-12:
                    best[free], taken[free] = best[free - size] + worth, size
        if best[MILLI] <= duals[gpus_at + on] + EPSILON:
            return None
        counts, free = Counter[int](), MILLI
        while free > 0:
            counts.update([taken[free]] if taken[free] else [])
            free -= taken[free] or 1
        return on, tuple(sorted(counts.items()))


def bounds(machines: Sequence[PackingMachine], jobs: Sequence[Job], seed: int) -> tuple[float, float]:
    """Return the percent of the GPUs not held at least: for a free choice of pods, and by the rule."""
    total = MILLI * sum(machine.gpus for machine in machines)
    arriving = arrivals(jobs, machines, seed, 1.3)
    load = list(accumulate(job.load for job in arriving))
    end = next(at for at, arrived in enumerate(load) if arrived >= total) + 1
    all_of = Counter(kind_of(job) for job in arriving[:end] if job.load)
    program = Program(machines, set(all_of))
    free = program.most({}, all_of)
    assert free is not None
    ruled = 0.0
    for percent in FIRST_DROPS:
        drop = next(at for at, arrived in enumerate(load) if arrived >= total * percent / 100)
        before = Counter(kind_of(job) for job in arriving[:drop] if job.load)
        least = {kind: count for kind, count in before.items() if kind[0] == 1 and not kind[2]}
        arrived = {kind: before[kind] if kind[1] == MILLI else count for kind, count in all_of.items()}
        ruled = max(ruled, program.most(least, arrived) or 0.0)
    return 100 - 100 * MILLI * free / total, 100 - 100 * MILLI * ruled / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("GPUPLANE_OPENB"), help="the openb traces")
    parser.add_argument("--seeds", default="42-46", help="first-last (default: %(default)s)")
    parser.add_argument("--traces", default=TRACES, help="separated by commas (default: %(default)s)")
    options = parser.parse_args()
    if options.data is None:
        print("skipped: --data DIR or GPUPLANE_OPENB names the directory of the openb traces")
        return
    if importlib.util.find_spec("scipy") is None:
        print("skipped: SciPy is not installed")
        return
    first, _, last = options.seeds.partition("-")
    machines = read_machines(options.data / "openb_node_list_gpu_node.csv")
    for trace in options.traces.split(","):
        jobs = read_jobs(options.data / f"openb_pod_list_{trace}.csv")
        found = [bounds(machines, jobs, seed) for seed in range(int(first), int(last or first) + 1)]
        show(f"{trace}: unallocated at least", statistics.fmean(free for free, _ in found), "%")
        show("  where pods that fit are placed", statistics.fmean(ruled for _, ruled in found), "%")


if __name__ == "__main__":
    main()
