"""CreateFleet for one instance: the request, and the meaning of its answer. Pure.

A fleet of type instant has all offerings of one capacity type as overrides, and EC2 takes the first that it has: the
cheapest for on-demand, and for spot the best of price and depth. By prices of the user's own it takes the first in the
order of overrides, for spot as far as there is depth. Spot and on-demand are two fleets, one after the
other, each with a client token of its own.
The tokens are numbered: a launch that is repeated with other offerings has the first token again, and EC2 refuses it.

Source: the API reference of EC2, CreateFleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuplane.autoscaler.catalogue import ON_DEMAND, SPOT
from gpuplane.autoscaler.providers.aws.errors import NO_CAPACITY, WHOLE_CAPACITY_TYPE, WHOLE_ZONE, from_code
from gpuplane.autoscaler.providers.aws.instances import tag_list
from gpuplane.autoscaler.providers.aws.lookup import FoundSubnet
from gpuplane.autoscaler.providers.provider import NoCapacity, Offering
from kubekit.errors import KubekitError

_MOST_TYPES: Final = 60
_MOST_OVERRIDES: Final = 300  # EC2's own limit for one fleet


class LaunchOverride(msgspec.Struct, frozen=True):
    """One override: an offering in one subnet."""

    offering: Offering
    subnet: FoundSubnet
    image: str = ""


class FleetInstance(msgspec.Struct, frozen=True):
    """The instance that a fleet has launched."""

    id: str
    choice: LaunchOverride


def by_capacity_type(offerings: Iterable[Offering]) -> list[tuple[Offering, ...]]:
    """Return offerings by capacity type in the order of launches: spot first, as far as it is the cheaper one."""
    found = sorted(offerings)
    regular = [offering for offering in found if offering.capacity_type == ON_DEMAND]
    limit = min((offering.price for offering in regular), default=float("inf"))
    spot = [offering for offering in found if offering.capacity_type == SPOT and offering.price < limit]
    return [tuple(group) for group in (spot, regular) if group]


def choices(
    offerings: Sequence[Offering],
    subnets: Iterable[FoundSubnet],
    images: Mapping[str, str],
) -> tuple[LaunchOverride, ...]:
    """Return the overrides for offerings of one capacity type, the cheapest first.

    Args:
        subnets: those with the most free addresses first; each zone's first is taken.
        images: type -> image, for types whose image the template does not say; a type without one is left out.
    """
    places: dict[str, FoundSubnet] = {}
    for subnet in subnets:
        places.setdefault(subnet.zone, subnet)
    types: dict[str, None] = {}
    found = []
    for offering in sorted(offerings):
        if offering.zone not in places or (images and not images.get(offering.machine)):
            continue
        if offering.machine not in types and len(types) == _MOST_TYPES:
            continue
        types[offering.machine] = None
        found.append(LaunchOverride(offering, places[offering.zone], images.get(offering.machine, "")))
    return tuple(found[:_MOST_OVERRIDES])


def fleet_request(
    chosen: Sequence[LaunchOverride],
    template: str,
    version: str,
    *,
    token: str,
    tags: Mapping[str, str],
    context: str = "",
    own_prices: bool = False,
) -> dict[str, Any]:
    """Return the parameters of CreateFleet. `chosen` are of one capacity type, at least one, the cheapest first."""
    capacity_type = chosen[0].offering.capacity_type
    overrides = []
    for priority, choice in enumerate(chosen):
        override: dict[str, Any] = {
            "InstanceType": choice.offering.machine,
            "SubnetId": choice.subnet.id,
            "AvailabilityZone": choice.offering.zone,
            "Priority": float(priority),
        }
        overrides.append(override | ({"ImageId": choice.image} if choice.image else {}))
    request: dict[str, Any] = {
        "Type": "instant",
        "ClientToken": token,
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": version},
                "Overrides": overrides,
            }
        ],
        "TargetCapacitySpecification": {"DefaultTargetCapacityType": capacity_type, "TotalTargetCapacity": 1},
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tag_list(tags)} for kind in ("instance", "volume", "fleet")
        ],
    }
    if capacity_type == SPOT:
        strategy = "capacity-optimized-prioritized" if own_prices else "price-capacity-optimized"
        request["SpotOptions"] = {"AllocationStrategy": strategy}
    else:
        request["OnDemandOptions"] = {"AllocationStrategy": "prioritized" if own_prices else "lowest-price"}
    return request | ({"Context": context} if context else {})


def read_fleet(answer: Mapping[str, Any], chosen: Sequence[LaunchOverride]) -> FleetInstance:
    """Return the instance of an answer.

    Raises NoCapacity with the offerings that EC2 refused; Terminal where EC2 refused the request for another reason.
    """
    for launched in answer.get("Instances") or ():
        for identity in launched.get("InstanceIds") or ():
            found = _chosen(launched, chosen) or chosen[0]
            return FleetInstance(identity, found)
    raise _refusal(answer.get("Errors") or (), chosen)


def _refusal(errors: Sequence[Mapping[str, Any]], chosen: Sequence[LaunchOverride]) -> KubekitError:
    closed: dict[Offering, None] = {}
    texts: dict[str, None] = {}
    other: KubekitError | None = None
    for error in errors:
        code, message = str(error.get("ErrorCode", "")), str(error.get("ErrorMessage", ""))
        if code not in NO_CAPACITY:
            other = from_code(code, message, "create_fleet")
            continue
        texts[code] = None
        hit = _chosen(error, chosen)
        for choice in chosen:
            same_zone = hit is not None and choice.subnet.id == hit.subnet.id
            if code in WHOLE_CAPACITY_TYPE or choice is hit or (code in WHOLE_ZONE and same_zone):
                closed[choice.offering] = None
    if other is not None and not closed:
        return other
    what = f"no capacity: {', '.join(texts) or 'EC2 launched nothing and gave no reason'}"
    # Without a reason every offering is closed, else the same request would be repeated at once.
    return NoCapacity(
        what, closed=tuple(closed) or tuple(choice.offering for choice in chosen), where="AWS create_fleet"
    )


def _chosen(part: Mapping[str, Any], chosen: Sequence[LaunchOverride]) -> LaunchOverride | None:
    """Return the override that a part of an answer is about."""
    override = (part.get("LaunchTemplateAndOverrides") or {}).get("Overrides") or {}
    machine = override.get("InstanceType") or part.get("InstanceType")
    for choice in chosen:
        if choice.offering.machine == machine and override.get("SubnetId", choice.subnet.id) == choice.subnet.id:
            return choice
    return None
