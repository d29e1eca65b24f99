"""The claims that pods are offered, one after the other: those with the fewest pods first.

Refusals are remembered by what pods have in common, in a queue for each company and offering, so that work
grows with the kinds of pods more than with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpuplane.api import karpenter
from gpuplane.autoscaler.asks import PodAsk
from gpuplane.autoscaler.claim_queue import ClaimQueue
from gpuplane.autoscaler.claims import DOMAIN, NEVER, PRICE, ROOM, NodeClaimDraft, OfferingGroup
from gpuplane.autoscaler.domain_check import DomainCheck
from gpuplane.autoscaler.options import NodeOption

GROUP_KEYS: Final = (karpenter.ZONE_LABEL, karpenter.CAPACITY_TYPE_LABEL)


class ClaimOffers:
    """Offers claims to pods.

    Args:
        groups: an option of each group, for its labels.
    """

    def __init__(self, groups: Mapping[OfferingGroup, NodeOption]) -> None:
        self._groups = groups
        self._claims: list[NodeClaimDraft] = []
        self._queues: dict[tuple[int, OfferingGroup | None], ClaimQueue] = {}

    def append(self, claim: NodeClaimDraft) -> None:
        """Offer a claim to the next pods."""
        self._claims.append(claim)

    def offer(
        self, ask: PodAsk, check: DomainCheck | None, take: Callable[[NodeClaimDraft], str | None], cost: object = None
    ) -> bool:
        """Offer claims until one takes the pod; False if none does.

        Args:
            take: adds the pod to a claim and returns None, or returns the kind of refusal.
            cost: what the pod may cost; claims that refused it for the price are offered again once this differs.
        """
        if not self._claims:
            return False
        queues = []
        causes: dict[str, object] = {
            ROOM: ask.number,
            DOMAIN: check.levels if check is not None else (),
            PRICE: (ask.number, cost),
        }
        for place in self._places(ask, check):
            queue = self._queues.get(place)
            if queue is None:
                queue = self._queues[place] = ClaimQueue(self._claims, place[1])
            queue.refresh(causes)
            queues.append(queue)
        again: list[tuple[ClaimQueue, int]] = []
        while offered := [(*first, at) for at, queue in enumerate(queues) if (first := queue.first()) is not None]:
            queue = queues[min(offered)[2]]
            at = queue.pop()
            refusal = take(self._claims[at])
            if refusal is None or (refusal == DOMAIN and check is not None and check.seeks_others):
                again.append((queue, at))
            elif refusal == PRICE or (not ask.free and refusal != NEVER):
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
            if check.admits(option.facts.labels, GROUP_KEYS)
        ]
