"""Filling of nodes, pod by pod: Karpenter's own way, and ours for pods whose place depends on other pods.

A pod goes to an existing node, to the claim with the fewest pods that can take it, else to a new claim, of the pool of
highest weight. What refuses a pod is remembered by what pods have in common (labels and taints, requests, the pods that
they depend on), so that work grows with the kinds of pods more than with their number.

Invariants: every pod of a claim fits each of its options together with the others; limits of pools are never exceeded,
whichever option is taken in the end; a pool's minValues hold for the options of each claim.

Source: the scheduling of Karpenter 1.14, from its documentation and `karpenter.sh` semantics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gpuplane.api import karpenter
from gpuplane.autoscaler.asks import PodAsk
from gpuplane.autoscaler.claim_domains import ClaimDomains
from gpuplane.autoscaler.claim_queue import ClaimQueue
from gpuplane.autoscaler.claims import (
    DOMAIN,
    NEVER,
    ROOM,
    Compatibility,
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
from gpuplane.autoscaler.options import NodeOption, PoolLimits, PoolOptions
from gpuplane.autoscaler.placed_pods import PlacedPods
from gpuplane.autoscaler.requirements import lacking_values
from gpuplane.autoscaler.volume_limits import VolumeRoom, too_many

_GROUP_KEYS: Final = (karpenter.ZONE_LABEL, karpenter.CAPACITY_TYPE_LABEL)
_PLACE_KEYS: Final = (*_GROUP_KEYS, HOSTNAME)


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
        self.claims: list[NodeClaimDraft] = []
        self._nodes = NodeFilling(existing)
        self._domains = ClaimDomains(self._pools, self._nodes, self.claims, placed or PlacedPods(existing))
        self._groups: dict[OfferingGroup, NodeOption] = {}
        self._queues: dict[tuple[int, OfferingGroup | None], ClaimQueue] = {}
        self._starts: dict[tuple[int, int], list[tuple[NodeOption, ...]]] = {}  # kind, pool -> options of a new claim
        self._opened = 0
        for found in self._pools:
            for option in found.options:
                self._groups.setdefault(group_of(option), option)

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
        return self._use_node(ask, check) or self._join_some(ask, check) or self._open(ask, check)

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
            self.claims.append(claim)
        else:
            self._limits.give_back((option,))
        return left

    def cheapen(self) -> None:
        """Replace each claim's option by the cheapest of the same pool that holds the same pods, if all are free."""
        for claim in self.claims:
            if not claim.pool.has_min_values and all(ask.free for ask in claim.asks):
                cheapen(claim, self._limits, self._fits)

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

    def _join_some(self, ask: PodAsk, check: DomainCheck | None) -> bool:
        """Add the pod to the claim with the fewest pods that takes it; False if none does."""
        queues = []
        causes: dict[str, object] = {ROOM: ask.number, DOMAIN: check.levels if check is not None else ()}
        for place in self._places(ask, check):
            queue = self._queues.get(place)
            if queue is None:
                queue = self._queues[place] = ClaimQueue(self.claims, place[1])
            queue.refresh(causes)
            queues.append(queue)
        again: list[tuple[ClaimQueue, int]] = []
        while offered := [(*first, at) for at, queue in enumerate(queues) if (first := queue.first()) is not None]:
            queue = queues[min(offered)[2]]
            at = queue.pop()
            refusal = self._join(self.claims[at], ask, check)
            if refusal is None or (refusal == DOMAIN and check is not None and check.seeks_others):
                again.append((queue, at))
            elif not ask.free and refusal != NEVER:
                queue.put_aside(at, refusal, causes[refusal])
            if refusal is None:
                break
        else:
            refusal = NEVER
        for queue, at in again:
            queue.push(at)
        return refusal is None

    def _places(self, ask: PodAsk, check: DomainCheck | None) -> list[tuple[int, OfferingGroup | None]]:
        """Return the queues that may have a claim for the pod."""
        if check is None:
            return [(-1 - ask.number, None)]  # NB: pods of a company have positive numbers
        return [
            (ask.company, group)
            for group, option in self._groups.items()
            if check.admits(option.facts.labels, _GROUP_KEYS)
        ]

    def _join(self, claim: NodeClaimDraft, ask: PodAsk, check: DomainCheck | None) -> str | None:
        """Add the pod if an option of the claim can hold it next to its pods; else return the kind of refusal."""
        if check is not None and claim.group is not None:
            labels = {**claim.option.facts.labels, HOSTNAME: claim.name}
            if not check.admits(labels, _PLACE_KEYS):
                return DOMAIN
        volumes = claim.volumes.after(ask.attached) if ask.attached else claim.volumes
        if volumes is None:
            return ROOM
        options = claim.options
        requested = add_requests(claim.requested, ask.info.requests)
        gpus = claim.places_gpus or bool(ask.request)
        if claim.pool.has_min_values:
            options = tuple(
                one
                for one in options
                if self._fits(ask, one) and not isinstance(holds_claim(self._fits, claim, one, requested, (ask,)), str)
            )
            if options and _lacks(claim.pool, options):
                return ROOM
        at, after = first_holding(self._fits, claim, options, ask, requested)
        if isinstance(after, str):
            return after
        head = options[at]
        if check is not None:
            if not self._domains.takes(claim, head, ask, check):
                return DOMAIN
            if claim.group is None:
                options = tuple(one for one in options[at:] if group_of(one) == group_of(head))
                at, claim.group = 0, group_of(head)
        self._domains.place(claim, head, ask)
        claim.options, claim.state = options[at:] if at else options, after
        claim.requested, claim.places_gpus, claim.volumes = requested, gpus, volumes
        claim.asks.append(ask)
        claim.places.setdefault(ask.place, ask)
        return None

    def _open(self, ask: PodAsk, check: DomainCheck | None) -> bool:
        for found in self._pools:
            for group in self._starting(ask, found):
                options = self._limits.within(group)
                if not options:
                    continue
                claim = self._draft(found, options, one_group=not ask.free)
                if self._join(claim, ask, check) is None:
                    if found.has_min_values:
                        claim.reserved = claim.options
                    self._limits.take(claim.reserved)
                    self.claims.append(claim)
                    return True
        return False

    def _starting(self, ask: PodAsk, found: PoolOptions) -> list[tuple[NodeOption, ...]]:
        """Return the options of a pool that hold the pod alone: together, or by offering if it depends on others."""
        place = (ask.number, id(found))
        known = self._starts.get(place)
        if known is None:
            holding: list[NodeOption] = []
            if self._fits.lacking(ask, found) is None and not too_many(ask.attached, found.volume_limits):
                admitted = self._fits.admitted(ask, found)
                holding = [one for one in admitted if not isinstance(hold_pod(one, {}, 0, one.gpus, ask), str)]
            known = self._starts[place] = [tuple(holding)] if ask.free else by_offering(holding)
        return known


def _lacks(pool: PoolOptions, options: Sequence[NodeOption]) -> str:
    return lacking_values(pool.conditions, [option.facts.labels for option in options])
