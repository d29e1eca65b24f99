"""Filling of nodes, pod by pod: Karpenter's own way, and ours for pods whose place depends on other pods.

A pod goes to an existing node, to the claim with the fewest pods that can take it, to a claim that becomes larger if
that costs no more than a new one (`larger_claims`), else to a new claim, of the pool of highest weight. Refusals are
remembered by what pods have in common (labels and taints, requests, the pods that they depend on), so that work grows
with the kinds of pods more than with their number.

Invariants: every pod of a claim fits each of its options together with the others; limits of pools are never exceeded,
whichever option is taken in the end; a pool's minValues hold for the options of each claim.

Source: the scheduling of Karpenter 1.14, from its documentation and `karpenter.sh` semantics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, ValuesView
from typing import Final

from gpuplane.autoscaler.asks import PodAsk
from gpuplane.autoscaler.claim_domains import ClaimDomains
from gpuplane.autoscaler.claim_offers import GROUP_KEYS, ClaimOffers
from gpuplane.autoscaler.claims import (
    DOMAIN,
    ROOM,
    Compatibility,
    JoinedClaim,
    NodeClaimDraft,
    OfferingGroup,
    by_offering,
    cheapen,
    first_holding,
    group_of,
    holds_claim,
    settle,
)
from gpuplane.autoscaler.domain_check import DomainCheck
from gpuplane.autoscaler.domains import HOSTNAME
from gpuplane.autoscaler.existing import ExistingNode, NodeFilling, add_requests, hold_pod
from gpuplane.autoscaler.larger_claims import EnlargementPrice, LargerClaims
from gpuplane.autoscaler.options import NodeOption, PoolLimits, PoolOptions
from gpuplane.autoscaler.placed_pods import PlacedPods
from gpuplane.autoscaler.requirements import lacking_values
from gpuplane.autoscaler.volume_limits import VolumeRoom, too_many

_PLACE_KEYS: Final = (*GROUP_KEYS, HOSTNAME)


class ClaimFilling:
    """Fills existing nodes, then claims, with pods, in the order in which they come.

    `placed` is pod -> existing node. `given_up` is pod -> preferences, of the pods that were placed without them.
    """

    def __init__(
        self,
        pools: Sequence[PoolOptions],
        limits: PoolLimits,
        existing: Sequence[ExistingNode] = (),
        placed: PlacedPods | None = None,
    ) -> None:
        self.given_up: dict[str, tuple[str, ...]] = {}
        self._pools = sorted(pools, key=lambda found: (-found.pool.weight, found.pool.name))
        self._limits = limits
        self._fits = Compatibility()
        self._claims: dict[str, NodeClaimDraft] = {}
        self._nodes = NodeFilling(existing)
        self._domains = ClaimDomains(self._pools, self._nodes, self.claims, placed or PlacedPods(existing))
        self._groups: dict[OfferingGroup, NodeOption] = {}
        self._offers = ClaimOffers(self._groups)
        self._seeded = ClaimOffers(self._groups)
        self._larger = LargerClaims(limits, self._domains.keeps)
        self._starts: dict[tuple[int, bool, int], list[tuple[NodeOption, ...]]] = {}  # room, free, pool -> new claims
        self._opened = 0
        for found in self._pools:
            for option in found.options:
                self._groups.setdefault(group_of(option), option)

    @property
    def claims(self) -> ValuesView[NodeClaimDraft]:
        return self._claims.values()

    @property
    def placed(self) -> dict[str, str]:
        return self._nodes.placed

    def fill_nodes(self, asks: Sequence[PodAsk]) -> list[PodAsk]:
        """Place pods on existing nodes only; return those that none of them takes, in their order."""
        self._domains.prepare(asks)
        refused: set[int] = set()
        return [ask for ask in asks if not self._add_unless_refused(ask, refused, self._use_node)]

    def add_all(self, asks: Iterable[PodAsk]) -> list[PodAsk]:
        """Add pods; return those that fit nowhere, in their order.

        Pods that depend on others are tried again as long as that places one of them.
        """
        waiting = list(asks)
        self._domains.prepare(waiting)
        while waiting:
            refused: set[int] = set()
            left = [ask for ask in waiting if not self._add_unless_refused(ask, refused, self._use_any)]
            if len(left) == len(waiting) or all(ask.free for ask in left):
                return left
            waiting = left
        return []

    def fill_claims(self, asks: Sequence[PodAsk]) -> list[PodAsk]:
        """Place free pods in the room that claims have at their price; return those that find none, in their order."""
        offers = ClaimOffers(self._groups)
        for claim in self.claims:
            offers.append(claim)
        refused: set[int] = set()

        def use_room(ask: PodAsk, check: DomainCheck | None) -> bool:
            return offers.offer(ask, check, lambda claim: self._join(claim, ask, check, stays=True))

        return [ask for ask in asks if not self._add_unless_refused(ask, refused, use_room)]

    def _add_unless_refused(
        self, ask: PodAsk, refused: set[int], add: Callable[[PodAsk, DomainCheck | None], bool]
    ) -> bool:
        """Add a pod, unless one of its kind was refused that has a preference to give up: kinds give up together."""
        if ask.trouble or ask.number in refused:
            return False
        if add(ask, self._domains.check(ask)):
            if ask.given_up:
                self.given_up[ask.key] = ask.given_up
            return True
        if ask.later:
            refused.add(ask.number)
        return False

    def _use_node(self, ask: PodAsk, check: DomainCheck | None) -> bool:
        return self._nodes.add(ask, self._domains.cache, check)

    def _use_any(self, ask: PodAsk, check: DomainCheck | None) -> bool:
        """Add a pod to an existing node, a claim, or a new claim; False if it fits nowhere."""
        if self._use_node(ask, check):
            return True
        return self._offers.offer(ask, check, lambda claim: self._join(claim, ask, check)) or self._use_new(ask, check)

    def lacks(self, option: NodeOption) -> str:
        """Return the limit that forbids one more node of the option; empty for none."""
        return self._limits.lacking(option)

    def seed(self, pool: PoolOptions, option: NodeOption, asks: Sequence[PodAsk]) -> list[PodAsk]:
        """Open a claim of one option with pods that depend on no others; return the pods that do not fit."""
        self._limits.take((option,))
        claim = self._draft(pool, (option,))
        left = [ask for ask in asks if self._join(claim, ask, None) is not None]
        self.given_up |= {ask.key: ask.given_up for ask in claim.asks if ask.given_up}
        if claim.asks:
            self._buy(claim)
            self._seeded.append(claim)
        else:
            self._limits.give_back((option,))
        return left

    def cheapen(self) -> None:
        """Replace each claim's option by the cheapest of the same pool that holds the same pods, if all are free.

        A pod that is placed next to others stays there, so the option is of the same domains if any pod depends on
        others.
        """
        for claim in self.claims:
            if not claim.pool.has_min_values and all(ask.free for ask in claim.asks):
                cheapen(claim, self._limits, self._fits, self._domains.keeps)

    def settle(self) -> None:
        """Leave those options of each claim only that hold all of its pods, and no more than a launch names."""
        for claim in self.claims:
            settle(claim, self._fits)

    def _draft(self, pool: PoolOptions, options: tuple[NodeOption, ...], *, one_group: bool = False) -> NodeClaimDraft:
        self._opened += 1
        groups = {group_of(option) for option in (options[:1] if one_group else options)}
        group = groups.pop() if len(groups) == 1 else None
        name, volumes = f"{pool.pool.name}-{self._opened}", VolumeRoom(pool.volume_limits)
        return NodeClaimDraft(name, pool, options, options, options[0].gpus, group, volumes)

    def _join(
        self, claim: NodeClaimDraft, ask: PodAsk, check: DomainCheck | None, *, stays: bool = False
    ) -> str | None:
        """Add the pod if an option of the claim can hold it next to its pods; else return the kind of refusal.

        Args:
            stays: only if the first option can, which is the one that is bought.
        """
        after = self._joined(claim, ask, check)
        if isinstance(after, str):
            return after
        if stays and after.options[0] is not claim.option:
            return ROOM
        self._add(claim, ask, after)
        return None

    def _joined(self, claim: NodeClaimDraft, ask: PodAsk, check: DomainCheck | None) -> JoinedClaim | str:
        """Return what the claim becomes with the pod, or the kind of refusal."""
        refusal = claim.refused.get(ask.room)
        if refusal is not None:
            return refusal
        if check is not None and claim.group is not None:
            labels = {**claim.option.facts.labels, HOSTNAME: claim.name}
            if not check.admits(labels, _PLACE_KEYS):
                return DOMAIN
        volumes = claim.volumes.after(ask.attached) if ask.attached else claim.volumes
        if volumes is None:
            return claim.refused.setdefault(ask.room, ROOM)
        options = claim.options
        requested = add_requests(claim.requested, ask.info.requests)
        if claim.pool.has_min_values:
            options = tuple(
                one
                for one in options
                if self._fits(ask, one) and not isinstance(holds_claim(self._fits, claim, one, requested, (ask,)), str)
            )
            if options and _lacks(claim.pool, options):
                return claim.refused.setdefault(ask.room, ROOM)
        at, after = first_holding(self._fits, claim, options, ask, requested)
        if isinstance(after, str):
            return claim.refused.setdefault(ask.room, after)
        head, group = options[at], claim.group
        options = options[at:] if at else options
        if check is not None:
            if not self._domains.takes(claim, head, ask, check):
                return DOMAIN
            if group is None:
                group = group_of(head)
                options = tuple(one for one in options if group_of(one) == group)
                if claim.pool.has_min_values and _lacks(claim.pool, options):
                    return ROOM
        return JoinedClaim(options, after, group, volumes, requested)

    def _add(self, claim: NodeClaimDraft, ask: PodAsk, after: JoinedClaim) -> None:
        claim.options, claim.state, claim.group, claim.volumes, claim.requested = after
        claim.places_gpus = claim.places_gpus or bool(ask.request)
        self._domains.place(claim, claim.option, ask)
        claim.asks.append(ask)
        claim.places.setdefault(ask.place, ask)

    def _use_new(self, ask: PodAsk, check: DomainCheck | None) -> bool:
        """Add the pod to a claim that becomes larger, if that costs no more than a new claim, else to a new claim."""
        opening = self._opening(ask, check)
        price = EnlargementPrice(math.inf, 0)
        if opening is not None:
            price = EnlargementPrice(opening[1].options[0].price, opening[0].pool.pool.weight)
        if self._seeded.offer(ask, check, lambda claim: self._enlarge(claim, ask, check, price), price):
            return True
        if opening is None:
            return False
        claim, after = opening
        self._add(claim, ask, after)
        if claim.pool.has_min_values:
            claim.reserved = claim.options
        self._limits.take(claim.reserved)
        self._buy(claim)
        return True

    def _enlarge(
        self, claim: NodeClaimDraft, ask: PodAsk, check: DomainCheck | None, price: EnlargementPrice
    ) -> str | None:
        """Add the pod to a claim that becomes larger; else return the kind of refusal."""
        larger = self._larger.larger(claim, ask, price)
        if isinstance(larger, str):
            return larger
        refusal = self._join(larger, ask, check)
        if refusal is None:
            self._larger.replace(claim, larger)
            self._buy(larger)
            self._seeded.append(larger)
        return refusal

    def _buy(self, claim: NodeClaimDraft) -> None:
        self._claims[claim.name] = claim
        self._offers.append(claim)

    def _opening(self, ask: PodAsk, check: DomainCheck | None) -> tuple[NodeClaimDraft, JoinedClaim] | None:
        """Return a claim without pods, and what it becomes with the pod; None if no pool has a node for it."""
        for found in self._pools:
            for group in self._starting(ask, found):
                options = self._limits.within(group)
                if not options:
                    continue
                claim = self._draft(found, options, one_group=not ask.free)
                after = self._joined(claim, ask, check)
                if not isinstance(after, str):
                    return claim, after
        return None

    def _starting(self, ask: PodAsk, found: PoolOptions) -> list[tuple[NodeOption, ...]]:
        """Return the options of a pool that hold the pod alone: together, or by offering if it depends on others."""
        place = (ask.room, ask.free, id(found))
        known = self._starts.get(place)
        if known is None:
            holding: list[NodeOption] = []
            if self._fits.lacking(ask, found) is None and not too_many(ask.attached, found.volume_limits):
                admitted = self._fits.admitted(ask, found)
                holding = [one for one in admitted if not isinstance(hold_pod(one, {}, 0, one.gpus, ask), str)]
            known = self._starts[place] = [tuple(holding)] if ask.free else by_offering(holding)
        return known


def _lacks(pool: PoolOptions, options: Sequence[NodeOption]) -> str:
    if pool.pool.relaxes_min_values:
        return ""
    return lacking_values(pool.conditions, [option.facts.labels for option in options])
