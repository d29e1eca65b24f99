"""Filling of nodes, pod by pod: Karpenter's own way, and ours for pods whose place depends on other pods.

A pod goes to an existing node, to the claim with the fewest pods that can take it, else to a new claim, of the pool of
highest weight. What refuses a pod is remembered by what pods have in common (labels and taints, requests, the pods that
they depend on), so that work grows with the kinds of pods more than with their number.

Invariants: every pod of a claim fits each of its options together with the others; limits of pools are never exceeded,
whichever option is taken in the end; a pool's minValues hold for the options of each claim.

Source: the scheduling of Karpenter 1.14, from its documentation and `karpenter.sh` semantics.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gpuplane.api import karpenter
from gpuplane.autoscaler.asks import PodAsk
from gpuplane.autoscaler.claim_queue import ClaimQueue
from gpuplane.autoscaler.claims import (
    MOST_OPTIONS,
    Compatibility,
    NodeClaimDraft,
    OfferingGroup,
    by_offering,
    group_of,
    has_room,
    place_shares,
)
from gpuplane.autoscaler.domains import HOSTNAME, DomainCache, DomainCheck
from gpuplane.autoscaler.existing import ExistingNode, NodeFilling, add_requests, hold_pod
from gpuplane.autoscaler.options import NodeOption, PoolLimits, PoolOptions
from gpuplane.autoscaler.requirements import lacking_values
from gpuplane.sharing.node import NodeState
from kubekit.scheduling import filters
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.podinfo import NodeFacts, PodInfo, Requests

_GROUP_KEYS: Final = (karpenter.ZONE_LABEL, karpenter.CAPACITY_TYPE_LABEL)
_PLACE_KEYS: Final = (*_GROUP_KEYS, HOSTNAME)
_ROOM: Final = "room"  # kinds of refusal: no option has room,
_DOMAIN: Final = "domain"  # the pods that are placed refuse it,
_NEVER: Final = "never"  # no option admits the pod by its labels


class ClaimFilling:
    """Fills existing nodes, then claims, with pods, in the order in which they come.

    `placed` is pod -> existing node.
    """

    def __init__(self, pools: Sequence[PoolOptions], limits: PoolLimits, existing: Iterable[ExistingNode] = ()) -> None:
        self._pools = sorted(pools, key=lambda found: (-found.pool.weight, found.pool.name))
        self._limits = limits
        self._fits = Compatibility()
        self.claims: list[NodeClaimDraft] = []
        self._nodes = NodeFilling(existing)
        self._cache: DomainCache | None = None
        self._keys: set[str] = {HOSTNAME}  # labels by which pods that depend on others are placed
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
        self._prepare(asks)
        return [ask for ask in asks if ask.trouble or not self._nodes.add(ask, self._cache, self._check(ask))]

    def add_all(self, asks: Iterable[PodAsk]) -> list[PodAsk]:
        """Add pods; return those that fit nowhere, in their order.

        Pods that depend on others are tried again as long as that places one of them.
        """
        waiting = list(asks)
        self._prepare(waiting)
        while waiting:
            left = [ask for ask in waiting if not self.add(ask)]
            if len(left) == len(waiting) or all(ask.free for ask in left):
                return left
            waiting = left
        return []

    def add(self, ask: PodAsk) -> bool:
        """Add a pod to an existing node, a claim, or a new claim; False if it fits nowhere."""
        if ask.trouble:
            return False
        check = self._check(ask)
        return self._nodes.add(ask, self._cache, check) or self._join_some(ask, check) or self._open(ask, check)

    def lacks(self, option: NodeOption) -> str:
        """Return the limit that forbids one more node of the option; empty for none."""
        return self._limits.lacking(option)

    def seed(self, pool: PoolOptions, option: NodeOption, asks: Sequence[PodAsk]) -> list[PodAsk]:
        """Open a claim of one option with pods that depend on no others; return the pods that do not fit."""
        self._limits.take((option,))
        claim = self._draft(pool, (option,))
        left = [ask for ask in asks if self._join(claim, ask, None) is not None]
        if claim.asks:
            self.claims.append(claim)
        else:
            self._limits.give_back((option,))
        return left

    def cheapen(self) -> None:
        """Replace each claim's option by the cheapest of the same pool that holds the same pods, if all are free."""
        for claim in self.claims:
            if claim.pool.has_min_values or not all(ask.free for ask in claim.asks):
                continue
            self._limits.give_back(claim.reserved)
            claim.reserved = (claim.option,)
            for option in claim.pool.options:
                if option.price >= claim.option.price:
                    break
                if not self._limits.lacking(option) and self._is_enough(claim, option):
                    claim.options, claim.reserved = (option,), (option,)
                    break
            self._limits.take(claim.reserved)

    def settle(self) -> None:
        """Leave those options of each claim only that hold all of its pods, and no more than a launch names."""
        for claim in self.claims:
            head, *others = claim.options
            enough = (one for one in others if self._is_enough(claim, one))
            claim.options = (head, *(enough if claim.pool.has_min_values else itertools.islice(enough, MOST_OPTIONS)))

    def _is_enough(self, claim: NodeClaimDraft, option: NodeOption) -> bool:
        return not isinstance(self._holds(claim, option, claim.requested, ()), str)

    def _draft(self, pool: PoolOptions, options: tuple[NodeOption, ...]) -> NodeClaimDraft:
        self._opened += 1
        groups = {group_of(option) for option in options}
        group = groups.pop() if len(groups) == 1 else None
        return NodeClaimDraft(f"{pool.pool.name}-{self._opened}", pool, options, options, options[0].gpus, group)

    def _join_some(self, ask: PodAsk, check: DomainCheck | None) -> bool:
        """Add the pod to the claim with the fewest pods that takes it; False if none does."""
        queues = []
        causes: dict[str, object] = {_ROOM: ask.number, _DOMAIN: check.levels if check is not None else ()}
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
            if refusal is None or (refusal == _DOMAIN and check is not None and check.seeks_others):
                again.append((queue, at))
            elif not ask.free and refusal != _NEVER:
                queue.put_aside(at, refusal, causes[refusal])
            if refusal is None:
                break
        else:
            refusal = _NEVER
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
                return _DOMAIN
        options = claim.options
        requested = add_requests(claim.requested, ask.info.requests)
        gpus = claim.places_gpus or bool(ask.request)
        if claim.pool.has_min_values:
            options = tuple(
                one
                for one in options
                if self._fits(ask, one) and not isinstance(self._holds(claim, one, requested, (ask,)), str)
            )
            if options and _lacks(claim.pool, options):
                return _ROOM
        at, after = self._head(claim, options, ask, requested)
        if isinstance(after, str):
            return after
        head = options[at]
        if check is not None and self._cache is not None:
            if not self._takes(self._cache, claim, head, ask, check):
                return _DOMAIN
            if claim.group is None:
                options = tuple(one for one in options[at:] if group_of(one) == group_of(head))
                at, claim.group = 0, group_of(head)
        if self._cache is not None:
            self._place(self._cache, claim, head, ask)
        claim.options, claim.state = options[at:] if at else options, after
        claim.requested, claim.places_gpus = requested, gpus
        claim.asks.append(ask)
        claim.places.setdefault(ask.place, ask)
        return None

    def _head(
        self, claim: NodeClaimDraft, options: Sequence[NodeOption], ask: PodAsk, requested: Requests
    ) -> tuple[int, NodeState | str | None]:
        """Return the first option that holds the pod with the others, and its GPUs then; else the kind of refusal."""
        refusal = _NEVER
        for at, option in enumerate(options):
            if not self._fits(ask, option):
                continue
            refusal = _ROOM
            if option is claim.option:
                after = hold_pod(option, claim.requested, len(claim.asks), claim.state, ask)
            else:
                after = self._holds(claim, option, requested, (ask,))
            if not isinstance(after, str):
                return at, after
        return 0, refusal

    def _holds(
        self, claim: NodeClaimDraft, option: NodeOption, requested: Requests, more: tuple[PodAsk, ...]
    ) -> NodeState | str | None:
        """Return the GPUs of an option with all pods of a claim and some more, or a text if they do not fit.

        Args:
            requested: the sum over all of these pods.
        """
        if not has_room(option, requested, len(claim.asks) + len(more)):
            return _ROOM
        if not all(self._fits(one, option) for one in claim.places.values()):
            return _NEVER
        places_gpus = claim.places_gpus or any(ask.request for ask in more)
        return place_shares(option, (*claim.asks, *more)) if places_gpus else option.gpus

    def _open(self, ask: PodAsk, check: DomainCheck | None) -> bool:
        for found in self._pools:
            for group in self._starting(ask, found):
                options = self._limits.within(group)
                if not options:
                    continue
                claim = self._draft(found, options)
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
            if self._fits.lacking(ask, found) is None:
                admitted = self._fits.admitted(ask, found)
                holding = [one for one in admitted if not isinstance(hold_pod(one, {}, 0, one.gpus, ask), str)]
            known = self._starts[place] = [tuple(holding)] if ask.free else by_offering(holding)
        return known

    # -- pods that depend on others ----------------------------------------------------------------------------------

    def _prepare(self, asks: Iterable[PodAsk]) -> None:
        for ask in asks:
            if not ask.free:
                self._keys |= _keys_of(ask.info)
                if self._cache is None:
                    self._cache = self._with_domains()

    def _check(self, ask: PodAsk) -> DomainCheck | None:
        return None if ask.free or self._cache is None else DomainCheck(ask.info, self._cache)

    def _with_domains(self) -> DomainCache:
        """Return a cache in which every zone of every pool is a domain, though no node is there yet."""
        cache = DomainCache()
        self._nodes.furnish(cache)
        for found in self._pools:
            for number, group in enumerate(by_offering(found.options)):
                facts = group[0].facts
                name = f"domain-{found.pool.name}-{number}"
                labels = {**facts.labels, HOSTNAME: name}
                cache.set_node(NodeFacts(name, labels, {}, facts.taints))
        for claim in self.claims:
            _put_claim(cache, claim.name, claim.option)
            for ask in claim.asks:
                _put(cache, ask.info, claim.name)
        return cache

    @staticmethod
    def _takes(cache: DomainCache, claim: NodeClaimDraft, option: NodeOption, ask: PodAsk, check: DomainCheck) -> bool:
        """Return whether the pods that are placed already admit this one on the claim."""
        node = cache.nodes.get(claim.name)
        if node is not None and ask.info.ports and filters.check_ports(ask.info, node.ports) is not None:
            return False
        if node is None and ask.info.ports:
            taken = {port: 1 for daemon in option.daemons for port in daemon.ports}
            if filters.check_ports(ask.info, taken) is not None:
                return False
        return check.admits({**option.facts.labels, HOSTNAME: claim.name})

    def _place(self, cache: DomainCache, claim: NodeClaimDraft, option: NodeOption, ask: PodAsk) -> None:
        node = cache.nodes.get(claim.name)
        if node is None or node.facts is None or self._differs(option, node.facts):
            _put_claim(cache, claim.name, option)
        _put(cache, ask.info, claim.name)

    def _differs(self, option: NodeOption, facts: NodeFacts) -> bool:
        """Return whether a node of the option is of another domain."""
        labels = option.facts.labels
        return any(labels.get(key) != facts.labels.get(key) for key in self._keys if key != HOSTNAME)


def _keys_of(info: PodInfo) -> set[str]:
    """Return the labels of nodes by which a pod that depends on others is placed."""
    affinity = info.affinity
    keys = {term.topology_key for term in (*affinity.pod_required, *affinity.anti_required)}
    keys |= {constraint.topology_key for constraint in info.spread}
    keys |= {part.key for part in affinity.node_selector}
    return keys | {part.key for term in affinity.node_required or () for part in term.expressions}


def _put_claim(cache: SchedulerCache, name: str, option: NodeOption) -> None:
    labels = {**option.facts.labels, HOSTNAME: name}
    cache.set_node(msgspec.structs.replace(option.facts, name=name, labels=labels))
    for daemon in option.daemons:
        _put(cache, daemon, name, daemon.name)


def _put(cache: SchedulerCache, info: PodInfo, node: str, daemon: str = "") -> None:
    name = f"{daemon}-{node}" if daemon else info.name
    cache.place(msgspec.structs.replace(info, node_name=node, name=name))


def _lacks(pool: PoolOptions, options: Sequence[NodeOption]) -> str:
    return lacking_values(pool.conditions, [option.facts.labels for option in options])
