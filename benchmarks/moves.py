"""Seconds to find the fewest moves on 1,000 nodes with 8 GPUs: `python benchmarks/moves.py [NODES]`.

Each GPU holds a share of 50 to 70%, and every third one another of 30%; half of the large shares may be moved. The
search is the scheduler's. Other work waits while a step of it lasts.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpuplane.scheduler.defrag.candidates import MoveRules, candidates
from gpuplane.scheduler.defrag.search import MovePlan, MoveSearch
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.simulation.offline import OfflineCluster
from tests.support.fragmented import bound_pod, fragmented, read, waiting_pod

GPUS, MOST = 8, 4


def main(nodes: int) -> None:
    dice = random.Random(1)
    cluster = fragmented({f"n{at}": GPUS for at in range(nodes)})
    count = 0
    for node in range(nodes):
        for gpu in range(GPUS):
            shares = [(dice.choice([50, 60, 70]), dice.random() < 0.5), *[(30, True)] * (dice.random() < 0.3)]
            for core, allows in shares:
                count += 1
                cluster.add_pod(bound_pod(f"p{count}", core, f"n{node}", gpu, movable=allows))
    print(f"{nodes} nodes, {nodes * GPUS} GPUs, {count} pods")
    search = MoveSearch(cluster.cache, cluster.cluster, cluster.filtering, cluster.policies)
    for core in (80, 100, 200, 400):
        cluster.add_pod(waiting_pod(f"w{core}", core))
        movable = candidates(cluster.known_pods(), (), 0.0, MoveRules()).by_node
        steps, plan = timed(search, cluster, f"w{core}", movable)
        moves = len(plan.moves) if plan is not None else "no"
        print(f"a pod with {core}%: {moves} moves, {sum(steps):.2f} s, longest step {max(steps):.2f} s")


def timed(
    search: MoveSearch, cluster: OfflineCluster, name: str, movable: dict[str, list[ScheduledPod]]
) -> tuple[list[float], MovePlan | None]:
    """Return the seconds of each step, and the plan."""
    steps: list[float] = []
    running = search.room_for(read(cluster, name), movable, MOST)
    while True:
        began = time.perf_counter()
        try:
            next(running)
        except StopIteration as end:
            plan: MovePlan | None = end.value
            return steps, plan
        finally:
            steps.append(time.perf_counter() - began)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
