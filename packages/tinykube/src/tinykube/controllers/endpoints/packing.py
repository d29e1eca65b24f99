"""Decides how endpoints are spread over EndpointSlices, 100 to each, with few writes. Pure.

An endpoint stays in the slice that it is in, new ones fill slices that have room: a pod that starts or ends changes one
slice, however many a Service has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from tinykube.controllers.endpoints.decide import EndpointGroup

Object = Mapping[str, Any]
MOST: Final = 100  # of a slice, as --max-endpoints-per-slice has it


class SlicePlan(msgspec.Struct):
    """The writes: bodies of new slices, slices with their new bodies, and slices to delete."""

    create: list[EndpointGroup] = []
    update: list[tuple[Object, EndpointGroup]] = []
    delete: list[Object] = []


def plan_slices(groups: list[EndpointGroup], standing: Iterable[Object]) -> SlicePlan:
    """Return the writes that make the standing slices of a Service hold the groups.

    A slice without endpoints is left or made where there are none at all: it says that there are none.
    """
    plan = SlicePlan()
    free = sorted(standing, key=lambda one: str(one["metadata"]["name"]))
    for group in groups:
        own = [one for one in free if (one.get("ports") or []) == group.ports]
        free = [one for one in free if one not in own]
        _plan_group(plan, group, own)
    if not groups and free:
        plan.update.append((free.pop(0), EndpointGroup([], [])))
    elif not groups:
        plan.create.append(EndpointGroup([], []))
    for one in free:  # slices of ports that are gone: new ones take them over before others are made
        if plan.create:
            plan.update.append((one, plan.create.pop(0)))
        else:
            plan.delete.append(one)
    return plan


def _plan_group(plan: SlicePlan, group: EndpointGroup, own: list[Object]) -> None:
    wanted = {_key(endpoint): endpoint for endpoint in group.endpoints}
    stays = []
    for one in own:
        keys = [key for endpoint in one.get("endpoints") or () if (key := _key(endpoint)) in wanted]
        stays.append((one, [wanted.pop(key) for key in dict.fromkeys(keys)][:MOST]))
    rest = list(wanted.values())
    for one, listed in stays:
        room = MOST - len(listed)
        listed += rest[:room]
        rest = rest[room:]
        if listed:
            plan.update.append((one, EndpointGroup(group.ports, listed)))
        else:
            plan.delete.append(one)
    while rest:
        plan.create.append(EndpointGroup(group.ports, rest[:MOST]))
        rest = rest[MOST:]


def _key(endpoint: Object) -> tuple[object, ...]:
    return *endpoint["addresses"], (endpoint.get("targetRef") or {}).get("uid")
