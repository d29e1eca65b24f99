"""The offers of a pool as far as they are known without the cloud: types, region and zones.

The built-in list has the on-demand prices of one region. A spot price is at most that of on-demand, so each type has a
spot offering at that bound, and the page says so. In another region the types count as offered, at an unknown
price. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from gpuplane.api import karpenter
from gpuplane.api.karpenter import DeclaredPool
from gpuplane.autoscaler.asks import PodAsk, selected_values
from gpuplane.autoscaler.catalogue import (
    MEMORY_OVERHEAD,
    ON_DEMAND,
    REGION_LABEL,
    SPOT,
    InstanceType,
    aws_catalogue,
    with_overhead,
)
from gpuplane.autoscaler.providers import aws_types
from gpuplane.autoscaler.requirements import NodeConditions, pool_conditions


class PoolMarket(msgspec.Struct, frozen=True):
    """The offers of one pool. `region` is empty while it is unknown; `types` have spot at the price of on-demand."""

    types: Sequence[InstanceType]
    region: str
    zones: tuple[str, ...]


def pool_market(
    pool: DeclaredPool, asks: Sequence[PodAsk], region: str, overhead: float = MEMORY_OVERHEAD
) -> PoolMarket:
    """Return the market of a pool.

    Args:
        region: that of the autoscaler or of the cluster's nodes; empty for an unknown region.
        overhead: the part of a type's memory that no kubelet sees.
    """
    conditions = pool_conditions(pool.requirements, pool.labels)
    own_zones = _listed(conditions, karpenter.ZONE_LABEL)
    selected = selected_values(asks)
    wanted = {*own_zones, *selected.get(karpenter.ZONE_LABEL, ()), *_zones_of_volumes(asks)}
    guesses = [
        *sorted(_listed(conditions, REGION_LABEL)),
        *_regions_of(own_zones),
        *sorted(selected.get(REGION_LABEL, ())),
        *_regions_of(wanted),
    ]
    place = region or next(iter(guesses), "")
    zones = {zone for zone in wanted if place and zone.startswith(place)}
    if place == aws_types.REGION:
        zones |= set(aws_types.ZONES)
    elif place and not zones:
        zones = {f"{place}{letter}" for letter in "abc"}
    return PoolMarket(with_overhead(_with_spot(), overhead), place, tuple(sorted(zones)))


def _with_spot() -> tuple[InstanceType, ...]:
    prices = {machine.name: dict(machine.prices)[ON_DEMAND] for machine in aws_catalogue()}
    return tuple(
        msgspec.structs.replace(machine, prices=((ON_DEMAND, prices[machine.name]), (SPOT, prices[machine.name])))
        for machine in aws_catalogue()
    )


def _listed(conditions: NodeConditions, key: str) -> frozenset[str]:
    condition = conditions.get(key)
    return condition.values if condition is not None and not condition.complement else frozenset()


def _zones_of_volumes(asks: Iterable[PodAsk]) -> Iterator[str]:
    for ask in asks:
        for term in (term for terms in ask.volumes for term in terms):
            for one in term.expressions:
                if one.key == karpenter.ZONE_LABEL and one.operator == "In":
                    yield from one.values


def _regions_of(zones: Iterable[str]) -> list[str]:
    """Return the regions of zones such as us-east-1a, without those of another form."""
    return sorted({zone[:-1] for zone in zones if zone[-1:].isalpha() and zone[-2:-1].isdigit()})
