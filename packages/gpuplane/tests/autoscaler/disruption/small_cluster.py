"""A few nodes with pods, for the tests of consolidation: facts about nodes, and answers by the production purchase."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from gpuplane import names
from gpuplane.api.karpenter import CAPACITY_TYPE_LABEL, TYPE_LABEL, DeclaredPool, PoolDisruption
from gpuplane.autoscaler.asks import read_asks
from gpuplane.autoscaler.catalogue import InstanceType
from gpuplane.autoscaler.disruption.consolidation import ConsolidationMove, ConsolidationRound
from gpuplane.autoscaler.disruption.facts import DisruptableNode, PodWeight
from gpuplane.autoscaler.disruption.removal import RemovalOutcome, removal_outcome
from gpuplane.autoscaler.disruption.screening import RemovalScreen
from gpuplane.autoscaler.disruption.supply import PurchaseQuestion
from gpuplane.autoscaler.existing import ExistingNode
from gpuplane.autoscaler.overhead import allocatable
from gpuplane.autoscaler.purchase import decide_purchase
from kubekit.scheduling.podinfo import NodeFacts, compile_pod
from packages.gpuplane.tests.autoscaler.worlds import AWS, options_of, pod, pool

EVERYTHING = PoolDisruption(consolidate_after=0.0, policy="WhenEmptyOrUnderutilized")


class SmallCluster:
    """`rules` are those of the pools; `waiting` are pods that wait anyway; `spot` prices are those of the catalogue."""

    def __init__(self, *pools: DeclaredPool, catalogue: list[InstanceType] | None = None) -> None:
        self.pools = pools or (pool(),)
        self.rules = {one.name: EVERYTHING for one in self.pools}
        self.room: dict[str, float] = {one.name: 100.0 for one in self.pools}
        self.catalogue = catalogue or list(AWS.values())
        self.waiting: list[dict[str, Any]] = []
        self.nodes: dict[str, DisruptableNode] = {}
        self.unready: set[str] = set()
        self.spot_to_spot = False
        self._pods: dict[str, list[dict[str, Any]]] = {}

    def add(self, name: str, machine: str, *pods: dict[str, Any], kind: str = "on-demand", **more: Any) -> None:
        """Add a node of a type with its pods; `more` are fields of DisruptableNode."""
        prices = {one.name: dict(one.prices) for one in self.catalogue}
        fields = {"initialized": 1.0, "consolidatable": True, "price": prices[machine][kind], **more}
        weights = tuple(PodWeight(f"ml/{one['metadata']['name']}") for one in pods)
        seen = DisruptableNode(name, name, self.pools[0].name, machine=machine, capacity_type=kind, pods=weights)
        self.nodes[name] = msgspec.structs.replace(seen, **fields)
        self._pods[name] = list(pods)

    def take(self, move: ConsolidationMove) -> None:
        """Carry out a move: its pods go where the production purchase places them."""
        plan, bought = move
        gone = [one.node for one in plan.nodes]
        question = self.question(gone)
        offers = question.offers if bought else [msgspec.structs.replace(one, options=()) for one in question.offers]
        answer = decide_purchase(question.asks, offers, question.nodes)
        objects = {f"ml/{one['metadata']['name']}": one for name in gone for one in self._pods[name]}
        for name in gone:
            del self.nodes[name], self._pods[name]
        places: dict[str, list[dict[str, Any]]] = {}
        for key, place in answer.placed.items():
            places.setdefault(place, []).append(objects[key])
        for number, one in enumerate(bought):
            name = f"new-{len(self.nodes)}-{number}-{gone[0]}"
            some = [objects[key] for key in one.pods]
            self.add(name, one.option.machine.name, *some, kind=one.option.capacity_type)
        for place, more in places.items():
            every = [*self._pods[place], *more]
            old = self.nodes[place]
            self.add(place, old.machine, *every, kind=old.capacity_type)

    def price(self) -> float:
        return sum(node.price or 0.0 for node in self.nodes.values())

    def pods(self) -> list[str]:
        return sorted(one["metadata"]["name"] for some in self._pods.values() for one in some)

    def fits(self) -> bool:
        """Return whether no node holds more than it has."""
        return all(amount >= 0 for name in self.nodes for amount in self._existing(name).free.values())

    def _existing(self, name: str) -> ExistingNode:
        machine = AWS.get(self.nodes[name].machine) or next(
            one for one in self.catalogue if one.name == self.nodes[name].machine
        )
        offers = {**allocatable(machine), names.GPU_RESOURCE: machine.gpus}
        free = dict(offers)
        for one in self._pods[name]:
            for resource, amount in compile_pod(one).requests.items():
                free[resource] = free.get(resource, 0) - amount
            free["pods"] -= 1
        labels = {**machine.labels(), CAPACITY_TYPE_LABEL: self.nodes[name].capacity_type, TYPE_LABEL: machine.name}
        facts = NodeFacts(name, labels, offers)
        return ExistingNode(name, self.pools[0].name, facts, free, initialized=name not in self.unready)

    def question(self, without: Collection[str]) -> PurchaseQuestion:
        """Return the needs of pods without some nodes; kinds of pods have the same number in every question."""
        displaced = {f"ml/{one['metadata']['name']}" for name in without for one in self._pods[name]}
        wanted = displaced.union(f"ml/{one['metadata']['name']}" for one in self.waiting)
        every = [one for pods in (self.waiting, *self._pods.values()) for one in pods]
        asks = [ask for ask in read_asks(every) if ask.key in wanted]
        return PurchaseQuestion(
            asks=asks,
            displaced=frozenset(displaced),
            offers=options_of(asks, *self.pools, catalogue=self.catalogue),
            nodes=[self._existing(name) for name in self.nodes if name not in without],
        )

    def ask(self, without: Collection[str]) -> RemovalOutcome:
        return removal_outcome(self.question(without))

    def round(self) -> ConsolidationRound:
        """Return the facts of one try."""
        nodes, screen = list(self.nodes.values()), RemovalScreen(self.question)
        return ConsolidationRound(nodes, self.rules, self.room, self.ask, set(), {}, screen, self.spot_to_spot)


def work(name: str, gpus: int = 1, **more: Any) -> dict[str, Any]:
    return pod(name, gpus, **more)
