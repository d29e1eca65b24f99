"""A quick answer for most nodes that cannot go: no purchase is decided where none could save. Pure.

The pods of a node are placed on the free places of the other nodes, as a purchase does first. The rest needs one
cheaper offer with room for its sums, or several that cost less at the least price at which offers sell its sums. Where
neither can be, the node stays; where one may be, the purchase is asked.

Places are looked up once for each kind of pods, so a full cluster costs little for each node.

Invariant (packages/gpuplane/tests/autoscaler/disruption/test_screening.py): no node that could go is screened out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from gpuplane.autoscaler.asks import PodAsk
from gpuplane.autoscaler.claims import Compatibility, has_room
from gpuplane.autoscaler.disruption.facts import DisruptableNode
from gpuplane.autoscaler.disruption.replacement import LEAST_SAVED_BY_MORE, TOO_DEAR, price_limits
from gpuplane.autoscaler.disruption.supply import PurchaseQuestion
from gpuplane.autoscaler.existing import ExistingNode, NodeFilling, add_requests
from gpuplane.autoscaler.options import NodeOption, PoolOptions
from kubekit.scheduling.podinfo import Requests

_STEPS: Final = 8  # of the weights of two resources against each other
_SLACK: Final = 1e-9  # of sums of prices


class RemovalScreen:
    """Answers for the nodes of one moment.

    Args:
        ask: the question about nodes that are gone. The numbers of its pods' kinds are the same in every question.
    """

    def __init__(self, ask: Callable[[Collection[str]], PurchaseQuestion]) -> None:
        self._ask = ask

    @cached_property
    def _whole(self) -> tuple[FreePlaces, OfferFloor]:
        question = self._ask(())
        return FreePlaces(question.nodes), OfferFloor(question.offers)

    def __call__(self, node: DisruptableNode) -> str:
        """Return why a node surely cannot go alone; empty if it has to be asked for."""
        question = self._ask([node.node])
        places, offers = self._whole
        rest = places.left(question.asks, node.node)
        if rest is None:
            return ""
        left = [ask for ask in rest if ask.key in question.displaced]
        return TOO_DEAR if left and not offers.may_hold(left, node) else ""


class FreePlaces:
    """The nodes that are there, as places for pods that depend on no others."""

    def __init__(self, nodes: Sequence[ExistingNode]) -> None:
        self._nodes = nodes
        self._holders: dict[int, list[ExistingNode]] = {}

    def left(self, asks: Sequence[PodAsk], without: str) -> list[PodAsk] | None:
        """Return the pods that the nodes but one do not hold; None if pods depend on others or have preferences.

        The answer is the one of a `NodeFilling` of all nodes: one that does not hold a pod alone never takes it.
        """
        if not all(ask.free and not ask.later for ask in asks):
            return None
        holders = {id(node): node for ask in asks for node in self._holding(ask) if node.name != without}
        filling = NodeFilling(holders.values())
        return [ask for ask in asks if ask.trouble or not filling.add(ask, None, None)]

    def _holding(self, ask: PodAsk) -> list[ExistingNode]:
        """Return the nodes that hold one pod of a kind."""
        known = self._holders.get(ask.number)
        if known is None:
            roomy = self._nodes
            for name, amount in ask.info.requests.items():
                if amount:
                    roomy = [node for node in roomy if node.free.get(name, 0) >= amount]
            known = [node for node in roomy if not ask.trouble and NodeFilling((node,)).add(ask, None, None)]
            self._holders[ask.number] = known
        return known


class OfferFloor:
    """The offers, by what they hold and by the least price of what they hold."""

    def __init__(self, offers: Sequence[PoolOptions]) -> None:
        options = sorted((one for found in offers for one in found.options), key=lambda one: one.price)
        shapes: dict[tuple[tuple[str, int], ...], list[NodeOption]] = {}
        for option in options:
            shapes.setdefault(tuple(sorted(option.free.items())), []).append(option)
        self._shapes = list(shapes.values())  # each the cheapest first, and so are they
        self._fits = Compatibility()
        self._rates: dict[tuple[str, ...], list[dict[str, float]]] = {}

    def may_hold(self, asks: Sequence[PodAsk], node: DisruptableNode) -> bool:
        """Return whether offers may hold pods for less than the node that they are on."""
        requested: Requests = {}
        places = {ask.place: ask for ask in asks}
        for ask in asks:
            requested = add_requests(requested, ask.info.requests)
        if self.least_price(requested) <= (node.price or 0.0) * (1 - LEAST_SAVED_BY_MORE) + _SLACK:
            return True
        limit, own = price_limits([node])
        for options in self._shapes:
            if options[0].price >= limit:
                return False
            if has_room(options[0], requested, len(asks)) and any(
                one.price < own.get(one.machine.name, limit) and all(self._fits(ask, one) for ask in places.values())
                for one in options
            ):
                return True
        return False

    def least_price(self, requested: Requests) -> float:
        """Return a price below which no offers hold the sums together.

        It is the most that the sums cost by any of some prices of single resources by which no offer is worth more than
        it costs.
        """
        wanted = tuple(sorted(name for name, amount in requested.items() if amount))
        if wanted not in self._rates:
            self._rates[wanted] = list(self._rates_of(wanted))
        return max(
            (sum(rate * requested[name] for name, rate in rates.items()) for rates in self._rates[wanted]), default=0.0
        )

    def _rates_of(self, wanted: Sequence[str]) -> Iterator[dict[str, float]]:
        """Yield prices of resources: of each alone, and of each two in several weights."""
        alone = {name: self._scaled({name: 1.0}).get(name, 0.0) for name in wanted}
        yield from ({name: rate} for name, rate in alone.items() if rate)
        for one, other in itertools.combinations([name for name in wanted if alone[name]], 2):
            for step in range(1, _STEPS):
                part = step / _STEPS
                yield self._scaled({one: part * alone[one], other: (1 - part) * alone[other]})

    def _scaled(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return prices in the proportion of weights, the highest by which no offer is worth more than it costs."""
        rates = []
        for options in self._shapes:
            worth = sum(weight * options[0].free.get(name, 0) for name, weight in weights.items())
            if worth > 0:
                rates.append(options[0].price / worth)
        return {name: weight * min(rates) for name, weight in weights.items()} if rates else {}
