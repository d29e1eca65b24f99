"""Claims that become larger for a pod, where that costs no more than a new node for the pod alone.

Only claims of one option do, which the linear program proposed: the others have their larger options already. A larger
claim is another claim with the same name: what refused a pod before may take it now.

Invariants: a larger claim is of the offering and in the domains of the claim that it replaces, so that pods stay where
others were placed for their sake; limits of pools are not exceeded.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from gpuplane.autoscaler.asks import PodAsk
from gpuplane.autoscaler.claims import PRICE, ROOM, NodeClaimDraft, OfferingGroup, group_of, has_room
from gpuplane.autoscaler.existing import add_requests
from gpuplane.autoscaler.options import NodeOption, PoolLimits

_EPSILON: Final = 1e-9  # dollars an hour


class EnlargementPrice(msgspec.Struct, frozen=True):
    """The most that a claim may cost more, in dollars an hour, and the least weight of its pool.

    They are those of the new node that the pod would have alone; a claim has any price where there is none.
    """

    most: float
    weight: int


class LargerClaims:
    """Makes claims larger.

    Args:
        keeps: whether pods that depend on others stay where they were placed if a claim becomes an option.
    """

    def __init__(self, limits: PoolLimits, keeps: Callable[[NodeClaimDraft, NodeOption], bool]) -> None:
        self._limits = limits
        self._keeps = keeps
        self._offerings: dict[tuple[int, OfferingGroup], tuple[NodeOption, ...]] = {}  # by pool

    def larger(self, claim: NodeClaimDraft, ask: PodAsk, price: EnlargementPrice) -> NodeClaimDraft | str:
        """Return a copy of a claim with the options that have room for a pod more, or the kind of refusal.

        The claim's own option stays the first of the copy: `state` has the GPUs of that one.
        """
        if claim.pool.pool.weight < price.weight:
            return PRICE
        offering = self._offering(claim)
        self._limits.give_back(claim.reserved)
        options = [
            one
            for one in _larger_options(claim, offering, ask, price.most)
            if not self._limits.lacking(one) and self._keeps(claim, one)
        ]
        self._limits.take(claim.reserved)
        if not options:
            return PRICE if offering[-1].price > claim.option.price + price.most else ROOM
        return msgspec.structs.replace(claim, options=(claim.option, *options), refused={})

    def replace(self, claim: NodeClaimDraft, larger: NodeClaimDraft) -> None:
        """Let the first option of `larger`, which has the pod now, take the place of a claim."""
        claim.replaced = True
        self._limits.give_back(claim.reserved)
        larger.options = larger.reserved = larger.options[:1]
        self._limits.take(larger.reserved)

    def _offering(self, claim: NodeClaimDraft) -> tuple[NodeOption, ...]:
        """Return the options of a claim's pool, zone and capacity type, the cheapest first."""
        group = group_of(claim.option)
        place = (id(claim.pool), group)
        known = self._offerings.get(place)
        if known is None:
            known = self._offerings[place] = tuple(one for one in claim.pool.options if group_of(one) == group)
        return known


def _larger_options(
    claim: NodeClaimDraft, options: Sequence[NodeOption], ask: PodAsk, most: float
) -> Iterator[NodeOption]:
    """Yield the options that have room for a claim and a pod more, and cost at most `most` more than the claim's own.

    Args:
        options: the cheapest first.
    """
    requested = add_requests(claim.requested, ask.info.requests)
    own = claim.option.price
    for at in range(bisect.bisect_left(options, own, key=lambda one: one.price), len(options)):
        option = options[at]
        if option.price > own + most + _EPSILON:
            return
        if option is not claim.option and has_room(option, requested, len(claim.asks) + 1):
            yield option
