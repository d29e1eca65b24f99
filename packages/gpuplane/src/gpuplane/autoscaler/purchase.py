"""The nodes to buy for the pods that wait: the decision as a whole, and the reason for each pod that gets none.

1. Nodes that exist or are on their way take the pods that they hold (`existing`).
2. Pods whose place depends on no other pod are covered by whole sets of nodes, priced together, one weight of pools
   after the other (`covering`).
3. The proposal is placed pod by pod with the scheduler's code; pods that remain, and those that depend on others,
   fill the nodes, make them larger or open new ones, whichever costs less (`filling`).
4. Each node becomes the cheapest type that holds the same pods.

A pod that gets no node gives up a preference, with all of its kind, and these steps begin again with the pods that are
left. Few pods are also filled in Karpenter's way, with the knowledge of shares. Of many pods, those that change nothing
for the others are also placed last, in the room that the others leave. The cheaper answer is taken. Pure: the same
question has the same answer.

Invariant: preferences leave no more pods without a node than there would be without them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from gpuplane.autoscaler.asks import PodAsk
from gpuplane.autoscaler.claim_domains import pods_that_count
from gpuplane.autoscaler.claims import Compatibility
from gpuplane.autoscaler.covering import cover
from gpuplane.autoscaler.existing import ExistingNode
from gpuplane.autoscaler.filling import ClaimFilling
from gpuplane.autoscaler.options import NodeOption, PoolLimits, PoolOptions
from gpuplane.autoscaler.patterns import PatternKind, PatternMachine, kind_of_ask
from gpuplane.autoscaler.placed_pods import PlacedPods
from gpuplane.autoscaler.volume_limits import too_many
from gpuplane.autoscaler.why_waiting import why_not
from kubekit.scheduling.podinfo import Requests

_FEW: Final = 200  # pods up to which Karpenter's way is tried too


class BoughtNode(msgspec.Struct, frozen=True):
    """A node to buy, with the pods that it is for, as namespace/name.

    `options` hold these pods as well, of the same pool, the cheapest first: `option` and what may be bought in its
    place if the cloud has none of it. `requests` is the sum over the pods. `given_up` is pod -> preferences that the
    node does not keep.
    """

    option: NodeOption
    pods: tuple[str, ...]
    options: tuple[NodeOption, ...] = ()
    requests: Requests = {}
    given_up: dict[str, tuple[str, ...]] = {}


class NodePurchase(msgspec.Struct, frozen=True):
    """The nodes to buy, and why each other pod (by namespace/name) waits: the reasons of each pool.

    `placed` is pod -> the node that exists, or is on its way, and holds it. `given_up` is pod -> the preferences, in
    words, without which it was placed or a node is bought for it.
    """

    nodes: tuple[BoughtNode, ...]
    waiting: dict[str, tuple[str, ...]]
    placed: dict[str, str] = {}
    given_up: dict[str, tuple[str, ...]] = {}

    @property
    def price(self) -> float:
        """Return the dollars an hour of all nodes."""
        return sum(node.option.price for node in self.nodes)


def decide_purchase(
    asks: Sequence[PodAsk],
    pools: Sequence[PoolOptions],
    existing: Sequence[ExistingNode] = (),
    placed: PlacedPods | None = None,
) -> NodePurchase:
    """Return the nodes to buy by the price of the whole set, for the pods that no existing node holds.

    Args:
        placed: the pods of at least these nodes, for a caller with several questions; read of `existing` without it.
    """
    placed = placed or PlacedPods(existing)
    answer = _cheapest(asks, pools, existing, placed)
    if answer.waiting and any(ask.later for ask in asks):
        # Pods that are kept apart may use up a limit that all of them would have kept together.
        careless = _cheapest([ask.relaxed(len(ask.later)) for ask in asks], pools, existing, placed)
        if len(careless.waiting) < len(answer.waiting):
            return careless
    return answer


def decide_as_karpenter(asks: Sequence[PodAsk], pools: Sequence[PoolOptions]) -> NodePurchase:
    """Return the nodes that Karpenter would buy: pod by pod, the price only at the end."""
    return _by_filling(asks, pools, (), PlacedPods(()), cheapest=False)


def _cheapest(
    asks: Sequence[PodAsk], pools: Sequence[PoolOptions], existing: Sequence[ExistingNode], placed: PlacedPods
) -> NodePurchase:
    answers = [_by_covering(asks, pools, existing, placed)]
    if len(asks) <= _FEW:
        answers.append(_by_filling(asks, pools, existing, placed, cheapest=True))
    elif last := _may_be_last(asks):
        answers.append(_by_covering(asks, pools, existing, placed, last))
    return min(answers, key=lambda answer: (len(answer.waiting), _relaxations(answer), answer.price))


def _may_be_last(asks: Sequence[PodAsk]) -> frozenset[str]:
    """Return the free pods that change nothing for pods that depend on others; empty if no pod depends on others."""
    if all(ask.free for ask in asks):
        return frozenset()
    counting = pods_that_count(asks)
    return frozenset(ask.key for ask in asks if ask.free and ask.key not in counting)


def _relaxations(answer: NodePurchase) -> int:
    return sum(len(given_up) for given_up in answer.given_up.values())


def _by_filling(
    asks: Sequence[PodAsk],
    pools: Sequence[PoolOptions],
    existing: Sequence[ExistingNode],
    placed: PlacedPods,
    *,
    cheapest: bool,
) -> NodePurchase:
    limits = PoolLimits(found.pool for found in pools)
    filling = ClaimFilling(pools, limits, existing, placed)
    left = _relaxing(asks, filling.add_all)
    if cheapest:
        filling.cheapen()
    return _answer(filling, left, pools, limits)


def _by_covering(
    asks: Sequence[PodAsk],
    pools: Sequence[PoolOptions],
    existing: Sequence[ExistingNode],
    placed: PlacedPods,
    last: Collection[str] = (),
) -> NodePurchase:
    """Return an answer of the linear program.

    Args:
        last: free pods, by namespace/name, that are placed after all others: in the room that those leave, then by the
            program.
    """
    limits = PoolLimits(found.pool for found in pools)
    filling = ClaimFilling(pools, limits, existing, placed)
    fits = Compatibility()
    coverable = [found for found in pools if not found.has_min_values]
    weights = sorted({found.pool.weight for found in coverable}, reverse=True)
    order = {ask.key: at for at, ask in enumerate(asks)}

    def cover_then_fill(some: Sequence[PodAsk]) -> list[PodAsk]:
        kinds: dict[int, tuple[PatternKind, PodAsk]] = {}
        waiting: dict[int, list[PodAsk]] = {}
        rest: list[PodAsk] = []
        for ask in some:
            kind = kinds[ask.number][0] if ask.number in kinds else kind_of_ask(ask)
            if kind is None:
                rest.append(ask)
            else:
                kinds.setdefault(ask.number, (kind, ask))
                waiting.setdefault(ask.number, []).append(ask)
        for weight in weights:
            _cover(filling, [found for found in coverable if found.pool.weight == weight], kinds, waiting, fits)
        rest += [ask for left in waiting.values() for ask in left]
        return filling.add_all(sorted(rest, key=lambda ask: order[ask.key]))

    def place(some: Sequence[PodAsk]) -> list[PodAsk]:
        some = filling.fill_nodes(some)
        left = cover_then_fill([ask for ask in some if ask.key not in last])
        if last:
            left += cover_then_fill(filling.fill_claims([ask for ask in some if ask.key in last]))
        return left

    left = _relaxing(asks, place)
    filling.cheapen()
    return _answer(filling, left, pools, limits)


def _relaxing(asks: Sequence[PodAsk], place: Callable[[Sequence[PodAsk]], list[PodAsk]]) -> list[PodAsk]:
    """Place pods; those that are left give up a preference, and are placed again, until none has another one.

    Args:
        place: places pods, and returns those that it did not place.

    Returns: the pods that fit nowhere, in the order of `asks`.
    """
    left = place(asks)
    hopeless: list[PodAsk] = []
    while any(ask.later for ask in left):
        # Pods that seek others may find them in a later round; pods that do not have been refused for good.
        hopeless += [ask for ask in left if not ask.later and (ask.free or ask.trouble)]
        again = [ask for ask in left if ask.later or not (ask.free or ask.trouble)]
        left = place([ask.relaxed() if ask.later else ask for ask in again])
    order = {ask.key: at for at, ask in enumerate(asks)}
    return sorted([*hopeless, *left], key=lambda ask: order[ask.key])


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
        possible = [number for number in waiting if _may_be_held(kinds[number][1], found, fits)]
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


def _may_be_held(ask: PodAsk, found: PoolOptions, fits: Compatibility) -> bool:
    return fits.lacking(ask, found) is None and not too_many(ask.attached, found.volume_limits)


def _answer(
    filling: ClaimFilling, left: Sequence[PodAsk], pools: Sequence[PoolOptions], limits: PoolLimits
) -> NodePurchase:
    filling.settle()
    nodes = []
    for claim in filling.claims:
        given_up = {ask.key: ask.given_up for ask in claim.asks if ask.given_up}
        keys = tuple(ask.key for ask in claim.asks)
        nodes.append(BoughtNode(claim.option, keys, claim.options, claim.requested, given_up))
    nodes.sort(key=lambda node: (node.option.pool.name, node.option.price, node.option.machine.name, node.pods))
    waiting: dict[str, tuple[str, ...]] = {}
    known: dict[int, tuple[str, ...]] = {}
    fits = Compatibility()
    for ask in left:
        if ask.number not in known:
            known[ask.number] = why_not(ask, pools, limits, fits)
        waiting[ask.key] = known[ask.number]
    return NodePurchase(tuple(nodes), waiting, filling.placed, filling.given_up)
