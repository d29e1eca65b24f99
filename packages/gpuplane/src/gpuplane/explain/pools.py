"""The purchase that each node pool would make for a pod that waits, or the rule of the pool that says no. Pure.

The decision is the autoscaler's own; types and prices are those of the built-in list, so offerings that the cloud has
closed, spot prices and the price of another region are not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpuplane.api.karpenter import DeclaredClass, DeclaredPool
from gpuplane.autoscaler.asks import read_asks, selected_values
from gpuplane.autoscaler.catalogue import aws_catalogue
from gpuplane.autoscaler.options import SharingSettings, make_options
from gpuplane.autoscaler.purchase import decide_purchase
from gpuplane.explain.answer import PoolAnswer
from kubekit.scheduling.podinfo import compile_pod


class PoolFacts(msgspec.Struct, frozen=True):
    """The pools of the cluster, and what makes their nodes. `daemons` are a pod of each DaemonSet."""

    pools: Sequence[DeclaredPool] = ()
    classes: Sequence[DeclaredClass] = ()
    sharing: SharingSettings = SharingSettings()
    daemons: Sequence[Mapping[str, Any]] = ()


def pool_answers(pod: Mapping[str, Any], facts: PoolFacts) -> tuple[PoolAnswer, ...]:
    """Return the answer of each pool: those that buy first, of higher weight and then cheaper first.

    Raises InvalidInput for a pod that cannot be read.
    """
    asks = read_asks([pod])
    daemons = [compile_pod(one) for one in facts.daemons]
    catalogue = aws_catalogue()
    found: list[tuple[tuple[bool, int, float, str], PoolAnswer]] = []
    for pool in facts.pools:
        offers = make_options(pool, facts.classes, catalogue, facts.sharing, daemons, asked=selected_values(asks))
        purchase = decide_purchase(asks, [offers])
        if purchase.nodes:
            option = purchase.nodes[0].option
            answer = PoolAnswer(pool.name, option.machine.name, option.capacity_type, option.price)
        else:
            reasons = (
                reason.removeprefix(f"{pool.name}: ") for reasons in purchase.waiting.values() for reason in reasons
            )
            answer = PoolAnswer(pool.name, why_not="; ".join(reasons))
        found.append(((bool(answer.why_not), -pool.weight, answer.price, pool.name), answer))
    return tuple(answer for _, answer in sorted(found, key=lambda pair: pair[0]))
