"""CreateFleet of type instant: which of a request's offerings is launched, and the answer. Pure.

moto's own takes the first override, whatever is asked for, applies no security groups, and knows neither missing
capacity nor client tokens. Here a spot or on-demand instance of the least price is launched, of those that can be had;
with a strategy that names priorities that of the first priority.

Source: the API reference of EC2, CreateFleet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gpulab.cloud.query import CloudRefusal
from gpuplane.autoscaler.catalogue import ON_DEMAND

INSTANT: Final = "instant"
_NO_CAPACITY: Final = "InsufficientInstanceCapacity"
_UNSUPPORTED: Final = "Unsupported"
_NOTHING: Final[dict[str, Any]] = {}


class FleetOverride(msgspec.Struct, frozen=True):
    """One way to launch: `template` is the specification of the launch template, `fields` the override's own."""

    template: dict[str, str]
    fields: dict[str, Any]
    machine: str
    subnet: str


class FleetRequest(msgspec.Struct, frozen=True):
    """A request. `tags` are those of the instances. `prioritized`: the priorities of overrides count, not prices."""

    overrides: tuple[FleetOverride, ...]
    capacity_type: str
    count: int
    tags: tuple[tuple[str, str], ...]
    token: str
    prioritized: bool = False


class FleetChoice(msgspec.Struct, frozen=True):
    """The override to launch, None if none can be had; and the errors of those that were left out, for the answer."""

    chosen: FleetOverride | None
    errors: tuple[dict[str, Any], ...]


def read_fleet(parameters: Mapping[str, Any]) -> FleetRequest:
    """Read a request. Raises CloudRefusal as EC2 refuses it."""
    target = parameters.get("TargetCapacitySpecification") or {}
    overrides = []
    for config in parameters.get("LaunchTemplateConfigs") or ():
        template = config.get("LaunchTemplateSpecification") or {}
        if ("LaunchTemplateId" in template) == ("LaunchTemplateName" in template):
            raise CloudRefusal("InvalidRequest", "a launch template is named by its id or by its name")
        overrides += [
            FleetOverride(template, fields, fields.get("InstanceType", ""), fields.get("SubnetId", ""))
            for fields in config.get("Overrides") or [_NOTHING]
        ]
    if not overrides:
        raise CloudRefusal("MissingParameter", "the request must contain the parameter LaunchTemplateConfigs")
    try:
        count = int(target.get("TotalTargetCapacity", ""))
    except ValueError:
        raise CloudRefusal("InvalidParameterValue", "TotalTargetCapacity is not a whole number") from None
    tags: dict[str, str] = {}
    for specification in parameters.get("TagSpecification") or ():
        if specification.get("ResourceType") == "instance":
            tags |= {tag["Key"]: tag.get("Value", "") for tag in specification.get("Tag") or ()}
    return FleetRequest(
        overrides=tuple(overrides),
        capacity_type=target.get("DefaultTargetCapacityType") or ON_DEMAND,
        count=count,
        tags=tuple(sorted(tags.items())),
        token=parameters.get("ClientToken", ""),
        prioritized=any(
            str((parameters.get(name) or {}).get("AllocationStrategy", "")).endswith("prioritized")
            for name in ("SpotOptions", "OnDemandOptions")
        ),
    )


def choose(
    request: FleetRequest,
    zones: Mapping[str, str],
    price: Callable[[str], float | None],
    is_open: Callable[[str, str], bool],
) -> FleetChoice:
    """Choose the cheapest override that can be had; of equal ones the first.

    Args:
        zones: the zone of each subnet.
        price: dollars an hour of a type; None for a type that this cloud does not have.
        is_open: whether there is capacity for a type in a zone.

    Raises CloudRefusal for an unknown subnet.
    """
    found: list[tuple[float, FleetOverride]] = []
    errors: list[dict[str, Any]] = []
    for override in request.overrides:
        zone = zones.get(override.subnet)
        if zone is None:
            raise CloudRefusal("InvalidSubnetID.NotFound", f"The subnet ID '{override.subnet}' does not exist")
        dollars = price(override.machine)
        if dollars is None:
            message = f"this simulated cloud has no instances of type {override.machine or '(none)'}"
            errors.append(_error(request, override, _UNSUPPORTED, message))
        elif not is_open(override.machine, zone):
            message = f"There is no {request.capacity_type} capacity for {override.machine} in {zone}"
            errors.append(_error(request, override, _NO_CAPACITY, message))
        else:
            found.append((_priority(override) if request.prioritized else dollars, override))
    return FleetChoice(min(found, key=lambda one: one[0])[1] if found else None, tuple(errors))


def _priority(override: FleetOverride) -> float:
    """Return the priority, a low number for a high one. Raises CloudRefusal for one that is no number."""
    try:
        return float(override.fields.get("Priority") or "inf")
    except ValueError:
        raise CloudRefusal("InvalidParameterValue", "Priority is not a number") from None


def _error(request: FleetRequest, override: FleetOverride, code: str, message: str) -> dict[str, Any]:
    return {
        "launchTemplateAndOverrides": _described(override),
        "lifecycle": request.capacity_type,
        "errorCode": code,
        "errorMessage": message,
    }


def run_form(request: FleetRequest, override: FleetOverride) -> dict[str, str]:
    """Return the form of RunInstances that launches an override."""
    form = {"MinCount": str(request.count), "MaxCount": str(request.count)}
    form |= {f"LaunchTemplate.{name}": value for name, value in override.template.items()}
    for name in ("InstanceType", "SubnetId", "ImageId"):
        if override.fields.get(name):
            form[name] = override.fields[name]
    if request.capacity_type != ON_DEMAND:
        form["InstanceMarketOptions.MarketType"] = request.capacity_type
    if request.token:
        form["ClientToken"] = request.token
    if request.tags:
        form["TagSpecification.1.ResourceType"] = "instance"
    for number, (key, value) in enumerate(request.tags, 1):
        form |= {f"TagSpecification.1.Tag.{number}.Key": key, f"TagSpecification.1.Tag.{number}.Value": value}
    return form


def fleet_answer(request: FleetRequest, choice: FleetChoice, fleet: str, instances: Sequence[str]) -> dict[str, Any]:
    """Return the content of the answer. Without instances it has errors only, as EC2's has."""
    launched: list[dict[str, Any]] = []
    if choice.chosen is not None:
        launched.append(
            {
                "launchTemplateAndOverrides": _described(choice.chosen),
                "lifecycle": request.capacity_type,
                "instanceIds": list(instances),
                "instanceType": choice.chosen.machine,
            }
        )
    return {"fleetId": fleet, "errorSet": list(choice.errors), "fleetInstanceSet": launched}


def _described(override: FleetOverride) -> dict[str, Any]:
    return {
        "launchTemplateSpecification": {_lower(name): value for name, value in override.template.items()},
        "overrides": {_lower(name): value for name, value in override.fields.items() if isinstance(value, str)},
    }


def _lower(name: str) -> str:
    return name[:1].lower() + name[1:]
