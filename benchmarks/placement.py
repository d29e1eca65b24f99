"""Measures placement at scale, without HTTP: 5,000 nodes with 8 GPUs each, 60,000 pods.

    python benchmarks/placement.py [--nodes 5000] [--pods 60000]

Pods of 60 kinds arrive until the cluster is nearly full. Then, with one pod ending and one arriving at a time: the
best of all nodes, the pod's reservation, and how long the policy learns. At last a request of a new kind on 20,000
nodes: two of three are filled one after the other, or hold pods by chance, each in another state. One
process, one core.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import time
from collections.abc import Callable

from figures import show
from gpuplane.sharing import Ask, Ledger, LedgerGPU, Request, violations
from gpuplane.sharing.placement import Placement, place
from gpuplane.sharing.placement.mix import Mix
from gpuplane.sharing.placement.opportunity import learn
from gpuplane.sharing.placement.ranking import Ranking

GPUS, MEMORY = 8, 81_920
ROUNDS = 2_000
MANY = 20_000  # nodes
FILLING = 40  # pods that come to a node until it is full
CORES = (5, 10, 10, 15, 20, 20, 25, 30, 30, 40, 50, 50, 60, 75, 100, 100, 100, 200)


def requests(chance: random.Random) -> list[Request]:
    """Kinds of pods, the small ones the most common."""
    found = []
    for _ in range(60):
        core = chance.choice(CORES)
        memory = 0 if core >= 100 else max(256, MEMORY * core // 100 // 256 * 256 + chance.choice((-512, 0, 0, 512)))
        found.append(Request((Ask("main", core, memory),)))
    return found


def empty_nodes(count: int) -> Ledger:
    ledger = Ledger()
    for number in range(count):
        name = f"node-{number:05}"
        models = "NVIDIA H100 80GB HBM3" if number % 3 else "NVIDIA A100-SXM4-80GB"
        ledger.set_node(
            name,
            tuple(
                LedgerGPU(index=at, uuid=f"GPU-{number:05}-{at}", model=models, memory_mib=MEMORY) for at in range(GPUS)
            ),
        )
    return ledger


def new_kind(nodes: int, tries: Callable[[], int]) -> float:
    """Return the milliseconds of CPU for the first request of a kind; `tries` are the pods that come to a node."""
    chance = random.Random(2)
    ledger = empty_nodes(nodes)
    mix, kinds = Mix(), requests(chance)
    for request in kinds * 20:
        mix.seen(request)
    names = [node.name for node in ledger.nodes()]
    policy = learn(mix, [node.gpus for node in ledger.nodes()])
    for number, name in enumerate(chance.sample(names, 2 * nodes // 3)):
        for pod in range(tries()):
            state = ledger.node(name)
            assert state is not None
            placed = place(state, chance.choice(kinds), policy)
            if isinstance(placed, Placement):
                ledger.hold(f"{number}/{pod}", name, placed.assignment)
    ranking = Ranking(ledger, names, policy)
    ranking.best(kinds[0])
    began = time.process_time()
    ranking.best(Request((Ask("main", 33, 33 * MEMORY // 100),)))
    return (time.process_time() - began) * 1000


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=60_000)
    options = parser.parse_args()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chance = random.Random(1)
    ledger = empty_nodes(options.nodes)
    mix = Mix()
    kinds = requests(chance)
    for request in kinds * 20:
        mix.seen(request)
    began = time.perf_counter()
    policy = learn(mix, [node.gpus for node in ledger.nodes()])
    show("a lesson: prices from 1,200 pods seen", (time.perf_counter() - began) * 1000, "ms")
    ranking = Ranking(ledger, [node.name for node in ledger.nodes()], policy)

    began, pods = time.perf_counter(), []
    for number in range(options.pods):
        request = chance.choice(kinds)
        placed = ranking.best(request)
        if placed is not None:
            ledger.reserve(str(number), placed.assignment.node, placed.assignment)
            ledger.commit(str(number))
            pods.append(str(number))
    seconds = time.perf_counter() - began
    show(f"{options.pods:,} pods on {options.nodes:,} nodes, each", seconds / options.pods * 1e6, "us")

    gc.collect()
    took, reserved = [], []
    for number in range(ROUNDS):
        gone = chance.randrange(len(pods))
        ledger.release(pods[gone])
        request = chance.choice(kinds)
        began = time.perf_counter()
        placed = ranking.best(request)
        took.append((time.perf_counter() - began) * 1000)
        if placed is None:
            pods.pop(gone)
            continue
        began = time.perf_counter()
        ledger.reserve(f"r{number}", placed.assignment.node, placed.assignment)
        ledger.commit(f"r{number}")
        reserved.append((time.perf_counter() - began) * 1000)
        pods[gone] = f"r{number}"
    show("the best of all nodes, median", percentile(took, 0.5), "ms")
    show("  p99", percentile(took, 0.99), "ms", goal=5.0, peer="all nodes x all pods: gpu-admission")
    show("a reservation and its end, p99", percentile(reserved, 0.99), "ms", goal=1.0)
    new = Request((Ask("main", 33, 33 * MEMORY // 100),))
    began = time.process_time()
    ranking.best(new)
    show("the first request of a new kind, CPU", (time.process_time() - began) * 1000, "ms", goal=20.0)
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    show(f"memory of {len(pods):,} pods and {options.nodes:,} nodes", memory, "MiB", goal=300.0)
    for state, tries in (("filled", lambda: FILLING), ("by chance", lambda: chance.randrange(1, 8))):
        what = f"a request never seen, {MANY:,} nodes {state}, CPU"
        show(what, new_kind(MANY, tries), "ms", goal=20.0, peer="169 node by node")
    wrong = violations(ledger)
    assert not wrong, wrong[:3]


if __name__ == "__main__":
    main()
