"""Nodes as they are filled, pod by pod: Karpenter's own way, and ours for pods whose place depends on other pods.

A claim is a set of options that can still hold all of its pods; the price decides at the end, when the cheapest is
taken. A pod goes to the claim with the fewest pods that can take it, else to a new one, of the pool of highest weight.
The filters of `kubekit.scheduling` and the placement of `gpuplane.sharing` decide what fits.

Invariants: every pod of a claim fits each of its options together with the others; limits of pools are never exceeded,
whichever option is taken in the end; a pool's minValues hold for the options of each claim.

Source: the scheduling of Karpenter 1.14, from its documentation and `karpenter.sh` semantics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from gpuplane.autoscaler.asks import IGNORED, PodAsk
from gpuplane.autoscaler.existing import HOSTNAME, ExistingNode, NodeFilling, add_requests, hold_pod
from gpuplane.autoscaler.options import NodeOption, PoolLimits, PoolOptions, admits_pod
from gpuplane.autoscaler.requirements import lacking_values
from gpuplane.sharing.node import NodeState
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.podinfo import NodeFacts, PodInfo, Requests


class NodeClaimDraft(msgspec.Struct, eq=False):
    """A node to buy, while it is filled. `options` are the cheapest first; `states` are their GPUs with the pods."""

    name: str
    pool: PoolOptions
    options: tuple[NodeOption, ...]
    reserved: tuple[NodeOption, ...]  # the largest of these counts against the limits
    asks: list[PodAsk] = []
    requested: Requests = {}
    states: tuple[NodeState | None, ...] = ()
    refused: set[int] = set()  # kinds of pods that do not fit any more; a claim only gets fuller

    @property
    def option(self) -> NodeOption:
        """Return the option that is bought."""
        return self.options[0]


class Compatibility:
    """Decides whether taints and labels of an option admit a kind of pods; each pair once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}

    def __call__(self, ask: PodAsk, option: NodeOption) -> bool:
        pair = (ask.number, id(option))
        known = self._known.get(pair)
        if known is None:
            known = self._known[pair] = admits_pod(ask.info, option.facts)
        return known


def holds_all(
    option: NodeOption, asks: Iterable[PodAsk], fits: Callable[[PodAsk, NodeOption], bool] | None = None
) -> bool:
    """Return whether a node of the option holds all these pods, none of which depends on others."""
    requested: Requests = {}
    state: NodeState | str | None = option.gpus
    for count, ask in enumerate(asks):
        admitted = fits(ask, option) if fits is not None else admits_pod(ask.info, option.facts)
        if isinstance(state, str) or not admitted:
            return False
        state = hold_pod(option, requested, count, state, ask)
        requested = add_requests(requested, ask.info.requests)
    return not isinstance(state, str)


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
        self._cache: SchedulerCache | None = None
        self._opened = 0

    @property
    def placed(self) -> dict[str, str]:
        return self._nodes.placed

    def fill_nodes(self, asks: Sequence[PodAsk]) -> list[PodAsk]:
        """Place pods on existing nodes only; return those that none of them takes, in their order."""
        self._prepare(asks)
        return [ask for ask in asks if ask.trouble or not self._nodes.add(ask, self._cache)]

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
        if self._nodes.add(ask, self._cache):
            return True
        for claim in sorted(self.claims, key=lambda claim: len(claim.asks)):
            if ask.number not in claim.refused:
                if self._join(claim, ask):
                    return True
                if ask.free:
                    claim.refused.add(ask.number)
        return self._open(ask)

    def lacks(self, option: NodeOption) -> str:
        """Return the limit that forbids one more node of the option; empty for none."""
        return self._limits.lacking(option)

    def seed(self, pool: PoolOptions, option: NodeOption, asks: Sequence[PodAsk]) -> list[PodAsk]:
        """Open a claim of one option with pods that depend on no others; return the pods that do not fit."""
        self._limits.take((option,))
        claim = self._draft(pool, (option,), (option,))
        left = [ask for ask in asks if not self._join(claim, ask)]
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
                if not self._limits.lacking(option) and holds_all(option, claim.asks, self._fits):
                    claim.options, claim.reserved = (option,), (option,)
                    break
            self._limits.take(claim.reserved)

    def _draft(
        self, pool: PoolOptions, options: tuple[NodeOption, ...], reserved: tuple[NodeOption, ...]
    ) -> NodeClaimDraft:
        self._opened += 1
        states = tuple(option.gpus for option in options)
        return NodeClaimDraft(f"{pool.pool.name}-{self._opened}", pool, options, reserved, states=states)

    def _join(self, claim: NodeClaimDraft, ask: PodAsk) -> bool:
        """Add the pod if some options of the claim can hold it next to its pods, and narrow the claim to these."""
        options, states = [], []
        for option, state in zip(claim.options, claim.states, strict=True):
            if self._fits(ask, option):
                after = hold_pod(option, claim.requested, len(claim.asks), state, ask)
                if not isinstance(after, str):
                    options.append(option)
                    states.append(after)
        if not options or (claim.pool.has_min_values and _lacks(claim.pool, options)):
            return False
        if self._cache is not None and not self._admits(self._cache, claim, options[0], ask):
            return False
        claim.options, claim.states = tuple(options), tuple(states)
        claim.requested = add_requests(claim.requested, ask.info.requests)
        claim.asks.append(ask)
        return True

    def _open(self, ask: PodAsk) -> bool:
        for found in self._pools:
            allowed = [one for one in found.options if self._fits(ask, one) and not self._limits.lacking(one)]
            for group in _offerings(allowed) if not ask.free else (tuple(allowed),):
                if not group:
                    continue
                claim = self._draft(found, group, ())
                if self._join(claim, ask):
                    claim.reserved = claim.options
                    self._limits.take(claim.reserved)
                    self.claims.append(claim)
                    return True
                if self._cache is not None:
                    self._cache.remove_node(claim.name)
        return False

    # -- pods that depend on others ----------------------------------------------------------------------------------

    def _prepare(self, asks: Iterable[PodAsk]) -> None:
        if self._cache is None and not all(ask.free for ask in asks):
            self._cache = self._with_domains()

    def _with_domains(self) -> SchedulerCache:
        """Return a cache in which every zone of every pool is a domain, though no node is there yet."""
        cache = SchedulerCache()
        self._nodes.furnish(cache)
        for found in self._pools:
            for number, group in enumerate(_offerings(found.options)):
                facts = group[0].facts
                name = f"domain-{found.pool.name}-{number}"
                labels = {**facts.labels, HOSTNAME: name}
                cache.set_node(NodeFacts(name, labels, {}, facts.taints))
        for claim in self.claims:
            _put_claim(cache, claim.name, claim.option)
            for ask in claim.asks:
                _put(cache, ask.info, claim.name)
        return cache

    def _admits(self, cache: SchedulerCache, claim: NodeClaimDraft, option: NodeOption, ask: PodAsk) -> bool:
        """Return whether the pods that are placed already admit this one, and place it then."""
        known = claim.name in cache.nodes and cache.nodes[claim.name].facts is not None
        if not known or option is not claim.option:
            _put_claim(cache, claim.name, option)
        if not ask.free and FilterCheck(ask.info, cache, IGNORED)(cache.nodes[claim.name]) is not None:
            if known:
                _put_claim(cache, claim.name, claim.option)
            return False
        _put(cache, ask.info, claim.name)
        return True


def _put_claim(cache: SchedulerCache, name: str, option: NodeOption) -> None:
    labels = {**option.facts.labels, HOSTNAME: name}
    cache.set_node(msgspec.structs.replace(option.facts, name=name, labels=labels))
    for daemon in option.daemons:
        _put(cache, daemon, name, daemon.name)


def _put(cache: SchedulerCache, info: PodInfo, node: str, daemon: str = "") -> None:
    name = f"{daemon}-{node}" if daemon else info.name
    cache.place(msgspec.structs.replace(info, node_name=node, name=name))


def _offerings(options: Sequence[NodeOption]) -> list[tuple[NodeOption, ...]]:
    """Return options by zone and capacity type: a claim of pods that depend on others is of one offering."""
    groups: dict[tuple[str, str], list[NodeOption]] = {}
    for option in options:
        groups.setdefault((option.zone, option.capacity_type), []).append(option)
    return [tuple(group) for group in groups.values()]


def _lacks(pool: PoolOptions, options: Sequence[NodeOption]) -> str:
    return lacking_values(pool.conditions, [option.facts.labels for option in options])
