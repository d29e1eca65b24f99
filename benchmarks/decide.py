"""The operator's decision for one node: bare, on its way and settled, in microseconds of CPU.

    python benchmarks/decide.py [ROUNDS]

`decide` is pure, so this needs no cluster. A settled node has all stages done and all gates open: then the plan is
empty, and that is the case which an operator of thousands of nodes computes most often.
"""

from __future__ import annotations

import sys
import time

import msgspec

from figures import show
from gpuplane import names
from gpuplane.api.gpunode import STAGES, GPUNodeStatus, Stage, StageState
from gpuplane.operator.decide import NodePlan, decide
from gpuplane.operator.observed import ObservedNode
from gpuplane.operator.stages import OPERANDS

NOW = "2026-11-20T10:00:00.000000Z"
LABELS = {names.PCI_PRESENT_LABELS[0]: "true", names.OS_ID_LABEL: "ubuntu", names.OS_VERSION_LABEL: "22.04"}
# One operator has a second of CPU for a round of 5,000 nodes; the rest is for reading and writing them.
GOAL_MICROSECONDS = 200.0


def bare() -> ObservedNode:
    return ObservedNode(
        name="n1",
        labels=LABELS | {f"feature.node.kubernetes.io/cpu-cpuid.F{number}": "true" for number in range(60)},
        offered=800,
        held=0,
        os="ubuntu22.04",
        kernel="6.8.0",
        runtime="containerd",
        arch="amd64",
        tainted=False,
        status=None,
        pods={},
        enabled=frozenset(operand.gate for operand in OPERANDS),
    )


def applied(seen: ObservedNode, plan: NodePlan) -> ObservedNode:
    """Return the node after the plan was carried out."""
    labels = {name: value for name, value in {**seen.labels, **plan.labels}.items() if value is not None}
    return msgspec.structs.replace(seen, labels=labels, status=plan.status or seen.status)


def settled() -> ObservedNode:
    done = Stage(state=StageState.DONE, since=NOW)
    seen = msgspec.structs.replace(bare(), status=GPUNodeStatus(stages={stage.value: done for stage in STAGES}))
    for _ in range(len(STAGES)):
        plan = decide(seen, NOW)
        if plan.empty:
            return seen
        seen = applied(seen, plan)
    raise SystemExit("the node does not settle")


def microseconds(seen: ObservedNode, rounds: int) -> float:
    """Return the CPU of one decision, the best of ten series: other programs only make it slower."""
    best = float("inf")
    for _ in range(10):
        began = time.thread_time()
        for _ in range(rounds):
            decide(seen, NOW)
        best = min(best, (time.thread_time() - began) / rounds * 1e6)
    return best


def main(rounds: int) -> None:
    on_its_way = applied(bare(), decide(bare(), NOW))
    for what, seen in (("bare", bare()), ("discovered", on_its_way), ("settled", settled())):
        show(f"decide, {what} node", microseconds(seen, rounds), "us", goal=GOAL_MICROSECONDS)


if __name__ == "__main__":
    main(int(dict(enumerate(sys.argv)).get(1, 500)))
