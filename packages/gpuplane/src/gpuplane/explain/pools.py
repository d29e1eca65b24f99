"""The purchase that each node pool would make for a pod that waits, or the rules of the pool that say no. Pure.

The decision is the autoscaler's own. Types and prices are those of the built-in list (`pool_market`), so the decision
does not know of offerings that the cloud has closed. Where no pool buys, changes of the pod and of the pools are tried,
and those with which the decision buys a node are cures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane.api.karpenter import DeclaredClass, DeclaredPool
from gpuplane.api.nodeoverlay import NodeOverlay
from gpuplane.autoscaler.asks import PodAsk, admits_ask, read_asks, selected_values
from gpuplane.autoscaler.catalogue import MEMORY_OVERHEAD, REGION_LABEL, SPOT
from gpuplane.autoscaler.options import PoolOptions, SharingSettings, make_options
from gpuplane.autoscaler.overlays import apply_overlays
from gpuplane.autoscaler.preferences import RESPECTED, PreferenceRules, preference_rules
from gpuplane.autoscaler.purchase import BoughtNode, decide_purchase
from gpuplane.autoscaler.volumes import VolumeFacts
from gpuplane.explain.answer import PoolAnswer
from gpuplane.explain.pod_cures import made_again
from gpuplane.explain.pool_changes import PoolChange, changes
from gpuplane.explain.pool_market import pool_market
from gpuplane.explain.pool_trouble import PoolTrouble
from gpuplane.explain.proving import Cure
from kubekit.scheduling.podinfo import PodInfo, compile_pod

_MOST_CHANGES: Final = 4  # together in one cure
_MOST_CURES: Final = 2  # of one pool
_MOST_DECISIONS: Final = 40  # for the cures of one pool


class PoolFacts(msgspec.Struct, frozen=True):
    """The pools of the cluster, and what makes their nodes. `daemons` are a pod of each DaemonSet.

    `region` is that of the autoscaler, or of the cluster's nodes; empty for an unknown region. `troubles` is pool ->
    why nothing is bought for it at all. `overlays` are the NodeOverlays that count.
    `respect_preferences` and `memory_overhead` are the autoscaler's settings. `volumes` are those that pods claim,
    `unread_volumes` the kinds of their objects that the user may not read.
    """

    pools: Sequence[DeclaredPool] = ()
    classes: Sequence[DeclaredClass] = ()
    sharing: SharingSettings = SharingSettings()
    daemons: Sequence[Mapping[str, Any]] = ()
    region: str = ""
    troubles: Mapping[str, PoolTrouble] = {}
    overlays: Sequence[NodeOverlay] = ()
    respect_preferences: bool = True
    memory_overhead: float = MEMORY_OVERHEAD
    volumes: VolumeFacts = VolumeFacts(complete=False)
    unread_volumes: tuple[str, ...] = ()


def pool_answers(pod: Mapping[str, Any], facts: PoolFacts) -> tuple[PoolAnswer, ...]:
    """Return the answer of each pool: those that buy first, of higher weight and then cheaper first.

    Raises InvalidInput for a pod that cannot be read.
    """
    asker = _Asker(facts)
    weights = {pool.name: pool.weight for pool in facts.pools}
    troubles = facts.troubles
    sound = [pool for pool in facts.pools if pool.name not in troubles or troubles[pool.name].read]
    found = [asker.answer(dict(pod), pool) for pool in sound]
    if not any(answer.type for answer in found if answer.pool not in troubles):
        found = [asker.cured(dict(pod), pool, answer) for pool, answer in zip(sound, found, strict=True)]
    known = {answer.pool: answer for answer in found}
    found = [
        _in_trouble(known.get(pool.name, PoolAnswer(pool.name)), troubles[pool.name])
        if pool.name in troubles
        else known[pool.name]
        for pool in facts.pools
    ]
    found.sort(key=lambda answer: (bool(answer.why_not), -weights[answer.pool], answer.price, answer.pool))
    return tuple(found)


def _in_trouble(answer: PoolAnswer, trouble: PoolTrouble) -> PoolAnswer:
    """Return the answer of a pool that buys nothing at all: `answer` is what it were without its trouble."""
    cures = answer.cures
    if answer.type:
        cures = (Cure("", _place(answer.type, answer.capacity_type, answer.price)),)
    elif not trouble.read:
        cures = (Cure("", ""),)
    return PoolAnswer(
        answer.pool,
        why_not=trouble.rule,
        region=answer.region,
        also_not=tuple(filter(None, (answer.why_not, *answer.also_not))),
        cures=tuple(
            msgspec.structs.replace(cure, change="; ".join(filter(None, (trouble.cure, cure.change)))) for cure in cures
        ),
    )


def _place(machine: str, capacity_type: str, price: float) -> str:
    return f"{machine} {capacity_type}, {'at most ' * (capacity_type == SPOT)}{price:.3f} $/h"


class _Asker:
    """Makes the autoscaler's decision for one pod and one pool."""

    def __init__(self, facts: PoolFacts) -> None:
        self._facts = facts
        self._daemons: list[PodInfo] = [compile_pod(one) for one in facts.daemons]

    def answer(self, pod: dict[str, Any], pool: DeclaredPool) -> PoolAnswer:
        offers, why, node = self._decide(pod, pool)
        region = pool_market(pool, self._read(pod), self._facts.region, self._facts.memory_overhead).region
        if node is None:
            return PoolAnswer(pool.name, why_not=why, region=region)
        option = node.option
        [ask] = self._asks(pod, pool)
        ask = ask.relaxed(len(node.given_up.get(ask.key, ())))
        alike = [one for one in offers.options if one.machine.name == option.machine.name]
        kinds = {one.capacity_type for one in alike if admits_ask(ask, one.facts)}
        return PoolAnswer(
            pool.name,
            option.machine.name,
            option.capacity_type,
            option.price,
            spot=SPOT in kinds,
            region=region,
            given_up=node.given_up.get(ask.key, ()),
        )

    def cured(self, pod: dict[str, Any], pool: DeclaredPool, answer: PoolAnswer) -> PoolAnswer:
        """Return the answer of a pool that does not buy with the further rules that say no, and with cures."""
        if answer.type:
            return answer
        rules: list[str] = []
        cures: list[Cure] = []
        left = _MOST_DECISIONS
        waiting: list[tuple[tuple[PoolChange, ...], bool]] = [((), True)]
        # Breadth first: few changes are found before many. Rules are those on the way of the first changes, since an
        # alternative meets the same rule in other words.
        while waiting and left and len(cures) < _MOST_CURES:
            left -= 1
            done, first = waiting.pop(0)
            now, changed = (done[-1].pod, done[-1].pool) if done else (pod, pool)
            offers, why, node = self._decide(now, changed)
            if node is not None:
                cures.append(_cure(pod, done, node))
                continue
            if first and why != answer.why_not and why not in rules:
                rules.append(why)
            if len(done) < _MOST_CHANGES:
                [ask] = self._read(now)
                again = changes(now, ask, offers, lambda other, now=now: self._offers(now, other))  # type: ignore[misc]
                waiting += [((*done, change), first and not at) for at, change in enumerate(again)]
        return msgspec.structs.replace(answer, also_not=tuple(rules), cures=tuple(cures))

    def _decide(self, pod: dict[str, Any], pool: DeclaredPool) -> tuple[PoolOptions, str, BoughtNode | None]:
        """Return the offers of a pool, why it does not buy for the pod, and the node that it would buy."""
        offers = self._offers(pod, pool)
        if not offers.options:
            return offers, self._excluding(pod, offers), None
        purchase = decide_purchase(self._asks(pod, pool), [offers])
        if purchase.nodes:
            return offers, "", purchase.nodes[0]
        reasons = (reason.removeprefix(f"{pool.name}: ") for some in purchase.waiting.values() for reason in some)
        return offers, "; ".join(reasons), None

    def _asks(self, pod: dict[str, Any], pool: DeclaredPool) -> list[PodAsk]:
        return self._read(pod, preference_rules(self._facts.respect_preferences, [pool]))

    def _read(self, pod: dict[str, Any], rules: PreferenceRules = RESPECTED) -> list[PodAsk]:
        return read_asks([pod], rules, self._facts.volumes)

    def _excluding(self, pod: dict[str, Any], offers: PoolOptions) -> str:
        """Return the requirement of a pool without which it had options, as words; else its trouble."""
        pool = offers.pool
        for at, one in enumerate(pool.requirements):
            others = msgspec.structs.replace(pool, requirements=pool.requirements[:at] + pool.requirements[at + 1 :])
            if self._offers(pod, others).options:
                wanted = f"the pool has {one.operator} {', '.join(one.values)}".rstrip()
                if one.key == REGION_LABEL:
                    return f"{one.key}: {wanted}, and nodes are bought in {self._facts.region}"
                return f"{one.key}: {wanted}, and no known type satisfies that together with its other requirements"
        return offers.trouble

    def _offers(self, pod: dict[str, Any], pool: DeclaredPool) -> PoolOptions:
        asks = self._read(pod)
        market = pool_market(pool, asks, self._facts.region, self._facts.memory_overhead)
        found = make_options(
            pool,
            self._facts.classes,
            market.types,
            self._facts.sharing,
            self._daemons,
            region=market.region,
            zones=market.zones,
            asked=selected_values(asks),
        )
        return apply_overlays(found, self._facts.overlays)


def _cure(pod: dict[str, Any], done: Sequence[PoolChange], node: BoughtNode) -> Cure:
    """Return the changes as one cure; `place` is the node that is bought then."""
    place = _place(node.option.machine.name, node.option.capacity_type, node.option.price)
    effect = made_again(pod) if any(change.of_pod for change in done) else ""
    return Cure("; ".join(change.words for change in done), place, effect)
