"""The nodes to buy for the pods that wait: the decision as a whole, and the reason for each pod that gets none.

1. Nodes that exist or are on their way take the pods that they hold (`existing`).
2. Pods whose place depends on no other pod are covered by whole sets of nodes, priced together, one weight of pools
   after the other (`covering`).
3. What is proposed is placed pod by pod with the scheduler's code; pods that remain, and those that depend on others,
   fill the nodes and open new ones (`filling`).
4. Each node becomes the cheapest type that holds the same pods.

Few pods are also filled in Karpenter's way, with the knowledge of shares, and the cheaper answer is taken. Pure: the
same question has the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from gpuplane.autoscaler.asks import IGNORED, PodAsk, pod_conditions
from gpuplane.autoscaler.claims import Compatibility
from gpuplane.autoscaler.covering import cover
from gpuplane.autoscaler.existing import ExistingNode, hold_pod
from gpuplane.autoscaler.filling import ClaimFilling
from gpuplane.autoscaler.options import NodeOption, PoolLimits, PoolOptions
from gpuplane.autoscaler.patterns import PatternKind, PatternMachine, kind_of_ask
from gpuplane.autoscaler.requirements import first_conflict
from kubekit.scheduling import filters
from kubekit.scheduling.podinfo import Requests

_FEW: Final = 200  # pods up to which both ways are tried


class BoughtNode(msgspec.Struct, frozen=True):
    """A node to buy, with the pods that it is for, as namespace/name.

    `options` hold these pods as well, of the same pool, the cheapest first: `option` and what may be bought in its
    place if the cloud has none of it. `requests` is the sum over the pods.
    """

    option: NodeOption
    pods: tuple[str, ...]
    options: tuple[NodeOption, ...] = ()
    requests: Requests = {}


class NodePurchase(msgspec.Struct, frozen=True):
    """The nodes to buy, and why each other pod (by namespace/name) waits: the reasons of each pool.

    `placed` is pod -> the node that exists, or is on its way, and holds it.
    """

    nodes: tuple[BoughtNode, ...]
    waiting: dict[str, tuple[str, ...]]
    placed: dict[str, str] = {}

    @property
    def price(self) -> float:
        """Return the dollars an hour of all nodes."""
        return sum(node.option.price for node in self.nodes)


def decide_purchase(
    asks: Sequence[PodAsk], pools: Sequence[PoolOptions], existing: Sequence[ExistingNode] = ()
) -> NodePurchase:
    """Return the nodes to buy by the price of the whole set, for the pods that no existing node holds."""
    covered = _by_covering(asks, pools, existing)
    if len(asks) > _FEW:
        return covered
    filled = _by_filling(asks, pools, existing, cheapest=True)
    return min(covered, filled, key=lambda answer: (len(answer.waiting), answer.price))


def decide_as_karpenter(asks: Sequence[PodAsk], pools: Sequence[PoolOptions]) -> NodePurchase:
    """Return the nodes that Karpenter would buy: pod by pod, the price only at the end."""
    return _by_filling(asks, pools, (), cheapest=False)


def _by_filling(
    asks: Sequence[PodAsk], pools: Sequence[PoolOptions], existing: Sequence[ExistingNode], *, cheapest: bool
) -> NodePurchase:
    limits = PoolLimits(found.pool for found in pools)
    filling = ClaimFilling(pools, limits, existing)
    left = filling.add_all(asks)
    if cheapest:
        filling.cheapen()
    return _answer(filling, left, pools, limits)


def _by_covering(
    asks: Sequence[PodAsk], pools: Sequence[PoolOptions], existing: Sequence[ExistingNode]
) -> NodePurchase:
    limits = PoolLimits(found.pool for found in pools)
    filling = ClaimFilling(pools, limits, existing)
    fits = Compatibility()
    coverable = [found for found in pools if not found.has_min_values]
    kinds: dict[int, tuple[PatternKind, PodAsk]] = {}
    waiting: dict[int, list[PodAsk]] = {}
    rest: list[PodAsk] = []
    for ask in filling.fill_nodes(asks):
        kind = kinds[ask.number][0] if ask.number in kinds else kind_of_ask(ask)
        if kind is None:
            rest.append(ask)
        else:
            kinds.setdefault(ask.number, (kind, ask))
            waiting.setdefault(ask.number, []).append(ask)
    for weight in sorted({found.pool.weight for found in coverable}, reverse=True):
        some = [found for found in coverable if found.pool.weight == weight]
        _cover(filling, some, kinds, waiting, fits)
    rest += [ask for some in waiting.values() for ask in some]
    order = {ask.key: at for at, ask in enumerate(asks)}
    left = filling.add_all(sorted(rest, key=lambda ask: order[ask.key]))
    filling.cheapen()
    return _answer(filling, left, pools, limits)


def _cover(
    filling: ClaimFilling,
    pools: Sequence[PoolOptions],
    kinds: dict[int, tuple[PatternKind, PodAsk]],
    waiting: dict[int, list[PodAsk]],
    fits: Compatibility,
) -> None:
    """Buy for the waiting pods from pools of one weight; pods that get a node leave `waiting`."""
    owners: dict[PatternMachine, PoolOptions] = {}
    seen: set[object] = set()
    for found in pools:
        possible = [number for number in waiting if fits.lacking(kinds[number][1], found) is None]
        for option in found.options:
            admitted = {number: kinds[number] for number in possible if fits(kinds[number][1], option)}
            # Offerings that differ in nothing that matters to these pods, such as the zone, are one: the cheapest.
            alike = (option.machine.name, id(found), tuple(sorted(option.free.items())), tuple(admitted))
            if admitted and alike not in seen:
                seen.add(alike)
                owners[PatternMachine(option, admitted)] = found
    demand = {number: len(some) for number, some in waiting.items()}
    for machine, pattern, count in cover(list(owners), demand):
        for _ in range(count):
            if filling.lacks(machine.option):
                break
            chosen = [waiting[number].pop(0) for number, each in pattern.items() for _ in range(each)]
            for ask in filling.seed(owners[machine], machine.option, chosen):
                waiting[ask.number].append(ask)


def _answer(
    filling: ClaimFilling, left: Sequence[PodAsk], pools: Sequence[PoolOptions], limits: PoolLimits
) -> NodePurchase:
    filling.settle()
    nodes = [
        BoughtNode(claim.option, tuple(ask.key for ask in claim.asks), claim.options, claim.requested)
        for claim in filling.claims
    ]
    nodes.sort(key=lambda node: (node.option.pool.name, node.option.price, node.option.machine.name, node.pods))
    waiting: dict[str, tuple[str, ...]] = {}
    known: dict[int, tuple[str, ...]] = {}
    fits = Compatibility()
    for ask in left:
        if ask.number not in known:
            known[ask.number] = why_not(ask, pools, limits, fits)
        waiting[ask.key] = known[ask.number]
    return NodePurchase(tuple(nodes), waiting, filling.placed)


def why_not(
    ask: PodAsk, pools: Sequence[PoolOptions], limits: PoolLimits, fits: Compatibility | None = None
) -> tuple[str, ...]:
    """Return why a pod gets no node: a line for each pool, with the first rule that excludes the pod."""
    if ask.trouble:
        return (ask.trouble,)
    if not pools:
        return ("there is no node pool",)
    return tuple(f"{found.pool.name}: {_why_not(ask, found, limits, fits or Compatibility())}" for found in pools)


def _why_not(ask: PodAsk, found: PoolOptions, limits: PoolLimits, fits: Compatibility) -> str:
    if found.trouble:
        return found.trouble
    taint = filters.untolerated(found.options[0].facts.taints, ask.info.tolerations)
    if taint is not None:
        return f"the pod does not tolerate the taint {taint.key}{f'={taint.value}' * bool(taint.value)}:{taint.effect}"
    wanted = pod_conditions(ask.info)
    if conflict := first_conflict(found.conditions, wanted):
        return conflict
    admitted = fits.admitted(ask, found)
    if not admitted:
        for key, condition in sorted(wanted.items()):
            if not any(condition.admits(one.facts.labels.get(key)) for one in found.options):
                return f"{key}: the pod wants {condition}, and no node of the pool would have it"
        return "no node of the pool would satisfy the pod's node affinity"
    if (nearest := fits.lacking(ask, found)) is not None:
        refusal = hold_pod(nearest, {}, 0, nearest.gpus, ask)
        return f"no type holds the pod; the nearest is {nearest.machine.name}: {refusal}"
    refusals = {one.machine.name: hold_pod(one, {}, 0, one.gpus, ask) for one in admitted}
    if roomy := [one for one in admitted if not isinstance(refusals[one.machine.name], str)]:
        if all(limits.lacking(one) for one in roomy):
            return limits.lacking(roomy[0])
        if found.has_min_values:
            return "minValues would not be left after the types that cannot hold the pod"
        return "no zone satisfies its pod affinity and topology spread together with the pods placed before"
    largest = max(admitted, key=lambda one: (_held(one, ask), one.price))
    return f"no type holds the pod; the nearest is {largest.machine.name}: {refusals[largest.machine.name]}"


def _held(option: NodeOption, ask: PodAsk) -> int:
    """Return how many of the pod's resources the option has enough of."""
    asked = ask.info.requests.items()
    return sum(option.free.get(name, 0) >= amount for name, amount in asked if name not in IGNORED)
