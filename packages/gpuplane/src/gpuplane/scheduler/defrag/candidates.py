"""The pods that may be moved now, by node, and how many stay for which reason. Pure.

`pods.movable` reads what a pod says of itself; here is what depends on the cluster: disruption budgets, when the pod
was moved last, and whether the ledger knows its GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gpuplane.scheduler.pods.movable import OF_ITS_NODE, move_times
from gpuplane.scheduler.pods.objects import ScheduledPod
from kubekit.scheduling.preemption import Budget

LEAVES: Final = "being deleted"
UNKNOWN_GPUS: Final = "GPUs that no annotation names"
BUDGET: Final = "disruption budget"
COOLS_DOWN: Final = "moved a short time ago"
ORDERED: Final = "being moved"


class MoveRules(msgspec.Struct, frozen=True):
    """The limits of moves.

    Args:
        most_moves: of one plan.
        cool_down_seconds: until a pod that was moved may be moved again.
    """

    most_moves: int = 4
    cool_down_seconds: float = 3600.0


class Candidates(msgspec.Struct, frozen=True):
    """The pods that may be moved, by node, and the bound pods of each node that stay. `why` counts those by reason."""

    by_node: dict[str, list[ScheduledPod]]
    staying: Counter[str]  # by node, without pods that belong to their nodes
    why: Counter[str]


def reason_to_stay(pod: ScheduledPod, budgets: Sequence[Budget], now: float, rules: MoveRules) -> str:
    """Return why a bound pod may not be moved now; empty where it may.

    Args:
        now: Unix time in seconds.
    """
    if pod.stays or pod.info is None:
        return pod.stays or UNKNOWN_GPUS
    if pod.info.terminating:
        return LEAVES
    if pod.order is not None:
        return ORDERED
    if pod.request and (pod.assignment is None or not pod.assignment.containers):
        return UNKNOWN_GPUS
    if any(now < time + rules.cool_down_seconds for time in move_times(pod.moved_at)):
        return COOLS_DOWN
    covering = [one for one in budgets if one.covers(pod.info)]
    # NB: the API server evicts no pod that has two budgets.
    return BUDGET if len(covering) > 1 or any(one.allowed < 1 for one in covering) else ""


def candidates(pods: Iterable[ScheduledPod], budgets: Sequence[Budget], now: float, rules: MoveRules) -> Candidates:
    """Return which of the pods may be moved."""
    found = Candidates({}, Counter(), Counter())
    by_namespace: dict[str, list[Budget]] = {}
    for budget in budgets:
        by_namespace.setdefault(budget.namespace, []).append(budget)
    for pod in pods:
        if not pod.spec.node_name:
            continue
        reason = reason_to_stay(pod, by_namespace.get(pod.metadata.namespace, ()), now, rules)
        if not reason:
            found.by_node.setdefault(pod.spec.node_name, []).append(pod)
        elif reason != OF_ITS_NODE:
            found.staying[pod.spec.node_name] += 1
            found.why[reason] += 1
    return found
