"""`gpuplane top` with 8,000 GPUs on 1,000 nodes: what a key costs, and what new facts cost.

    python benchmarks/top.py

A key: rows filtered, sorted and drawn into a window of 80 columns and 24 lines. New facts: the rows of all GPUs from an
overview that is there. Both are CPU of this process; the terminal's own drawing is not in them.
"""

from __future__ import annotations

import functools
import io
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from figures import show
from gpuplane.cli.terminal import Console
from gpuplane.cli.top.rows import gpu_rows, node_rows, pod_rows
from gpuplane.cli.top.text import top_lines
from gpuplane.cli.top.view import SORTS, TopView, shown_rows
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.metering.use import GPUUse
from packages.gpuplane.tests.cli.status_objects import gpunode, overview, share, with_own_uuids

NODES, GPUS, ROUNDS = 1000, 8, 20


def milliseconds(work: Callable[[], object]) -> float:
    """Return the median CPU of a call."""
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        taken.append(1000 * (time.process_time() - began))
    return statistics.median(taken)


def main() -> None:
    nodes = [gpunode(f"gpu-node-{number:04}", gpus=GPUS) for number in range(NODES)]
    pods = [
        share(f"pod-{number}-{at}", f"gpu-node-{number:04}", 100, 1, at)
        for number in range(NODES)
        for at in range(GPUS)
        if (number * at) % 3
    ]
    seen = with_own_uuids(overview(nodes, pods, {node.metadata.name: GPUS for node in nodes}))
    uses = {
        gpu.uuid: GPUUse(node.name, gpu.index, float(gpu.index * 12), idle_seconds=400.0 * (gpu.index == 0))
        for node in seen.nodes
        for gpu in node.gpus
    }
    use = MeasuredUse(uses, "", "exporters")
    rows = gpu_rows(seen, use)
    screen, now = Console(io.StringIO(), io.StringIO(), colour="always"), datetime.now(UTC)

    def key(view: TopView) -> list[str]:
        return top_lines("prod", seen, use, shown_rows(rows, view), view, screen, (80, 24), now)

    views = [TopView(sort=sort, all=True, at=4000) for sort in SORTS]
    worst = max(milliseconds(functools.partial(key, view)) for view in views)
    show("a key, all GPUs, slowest order", worst, "ms", goal=50)
    show("a key with a filter", milliseconds(lambda: key(TopView(filter="node-01 pod", all=True))), "ms", goal=50)
    show("rows of all GPUs", milliseconds(lambda: gpu_rows(seen, use)), "ms")
    show("rows of nodes", milliseconds(lambda: node_rows(rows, seen)), "ms")
    show("rows of pods", milliseconds(lambda: pod_rows(rows, seen)), "ms")


if __name__ == "__main__":
    main()
