"""The bill of `simulate nodes` for a growing part of the pods: the curves of its page. Pure.

Each workload grows with the others: a quarter of the pods is a quarter of each workload, in the order of the files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from gpuplane.autoscaler.asks import PodAsk
from gpuplane.autoscaler.purchase import NodePurchase
from gpuplane.cli.nodes_drawn import workload_of

PARTS: Final = 8


def parts_of(asks: Sequence[PodAsk], parts: int = PARTS) -> list[list[int]]:
    """Return the numbers of the pods of each part, from the smallest to all of them; equal parts are one."""
    found: list[list[int]] = []
    workloads = [workload_of(ask) for ask in asks]
    totals = Counter(workloads)
    for part in range(1, parts + 1):
        # Rounded up: a workload of one pod is in every part.
        left = {name: -(-total * part // parts) for name, total in totals.items()}
        chosen = []
        for number, name in enumerate(workloads):
            if left[name]:
                left[name] -= 1
                chosen.append(number)
        if not found or len(chosen) > len(found[-1]):
            found.append(chosen)
    return found


def price_curve(
    asks: Sequence[PodAsk],
    parts: Sequence[Sequence[int]],
    whole: NodePurchase,
    decide: Callable[[Sequence[PodAsk]], NodePurchase],
) -> list[tuple[float, float]]:
    """Return (pods, dollars an hour) of each part.

    Args:
        whole: the decision for all pods, which is the last part.
    """
    smaller = [(float(len(part)), decide([asks[number] for number in part]).price) for part in parts[:-1]]
    return [*smaller, (float(len(parts[-1])), whole.price)]
