"""Rules for what containers and pods request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from tinykube.apiserver.failure import (
    Cause,
    duplicate,
    forbidden_value,
    invalid_value,
    not_found_value,
    not_supported,
    required,
)
from tinykube.apiserver.validation.names import dns_label, qualified, qualified_name
from tinykube.apiserver.validation.tables import Object, amount

_OF_CONTAINERS: Final = ("cpu", "memory", "ephemeral-storage")
_HUGE: Final = "hugepages-"
_STANDARD: Final = (*_OF_CONTAINERS, "storage", "pods")


def resource_name(name: str, where: str) -> Iterator[Cause]:
    """A name of a resource that a container may request."""
    yield from qualified_name(name, where)
    if "/" not in name:
        if name not in _STANDARD and not name.startswith(_HUGE):
            yield invalid_value(where, name, "must be a standard resource type or fully qualified")
        if name not in _OF_CONTAINERS and not name.startswith(_HUGE):
            yield invalid_value(where, name, "must be a standard resource for containers")
    elif not is_extended(name) and not _is_native(name):
        yield invalid_value(where, name, "doesn't follow extended resource name standard")


def is_extended(name: str) -> bool:
    """Return whether it is a resource of a device plugin or the like: counted in whole units, never overcommitted."""
    return (
        "/" in name and not _is_native(name) and not name.startswith("requests.") and not qualified(f"requests.{name}")
    )


def _is_native(name: str) -> bool:
    return "/" not in name or name.partition("/")[0].endswith("kubernetes.io")


def resource_amount(name: str, value: Any, where: str) -> Iterator[Cause]:
    """An amount that is not negative, and a whole one of what comes in pieces."""
    if amount(value) < 0:
        yield invalid_value(where, value, "must be greater than or equal to 0")
    if (is_extended(name) or name == "pods") and amount(value) % 1:
        yield invalid_value(where, value, "must be an integer")


def validate_resources(resources: Object, where: str, claims: Iterable[str]) -> Iterator[Cause]:
    """The requests and limits of a container; `claims` are the names of its pod's resource claims."""
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name, value in amounts.items():
            here = f"{where}.{kind}[{name}]"
            yield from resource_name(name, here)
            yield from resource_amount(name, value, here)
            if name.startswith(_HUGE):
                yield from _whole_pages(name, value, here)
            if kind == "requests":
                yield from _within(name, value, limits, where)
    huge = any(name.startswith(_HUGE) for name in (*requests, *limits))
    if huge and not {"cpu", "memory"} & {*requests, *limits}:
        yield forbidden_value(where, "HugePages require cpu or memory")
    known = list(claims)
    for index, claim in enumerate(resources.get("claims") or ()):
        if claim.get("name") not in known:
            text = "must be one of the names in pod.spec.resourceClaims"
            yield not_found_value(
                f"{where}.claims[{index}]", claim.get("name"), text if known else f"{text} which is empty"
            )
            continue
        name, request = claim["name"], claim.get("request") or ""
        if request:
            yield from dns_label(request, f"{where}.claims[{index}].request")
        earlier = [one.get("request") or "" for one in resources["claims"][:index] if one.get("name") == name]
        if "" in earlier or (earlier and not request):
            yield duplicate(f"{where}.claims[{index}]", name)  # all of its requests, or some, are there before
        elif request in earlier:
            yield duplicate(f"{where}.claims[{index}]", f"{name}/{request}")


def _whole_pages(name: str, value: Any, where: str) -> Iterator[Cause]:
    size = amount(name.removeprefix(_HUGE))
    if amount(value) <= 0 or amount(value) % size:
        yield invalid_value(where, value, f"{value} is not positive integer multiple of {name}")


def _within(name: str, value: Any, limits: Object, where: str) -> Iterator[Cause]:
    limit = limits.get(name)
    strict = is_extended(name) or name.startswith(_HUGE)
    if limit is None:
        if strict:
            yield required(f"{where}.limits", "Limit must be set for non overcommitable resources")
    elif strict and amount(value) != amount(limit):
        yield invalid_value(f"{where}.requests", value, f"must be equal to {name} limit of {limit}")
    elif amount(value) > amount(limit):
        yield invalid_value(f"{where}.requests", value, f"must be less than or equal to {name} limit of {limit}")


_OF_PODS: Final = ("cpu", "hugepages-", "memory")


def validate_pod_resources(resources: Object, where: str, containers: list[Object]) -> Iterator[Cause]:
    """Requests and limits of a pod as a whole: at least what its containers request together."""
    for kind in ("limits", "requests"):
        for name, value in (resources.get(kind) or {}).items():
            here = f"{where}.{kind}[{name}]"
            if name not in ("cpu", "memory") and not name.startswith(_HUGE):
                yield not_supported(here, name, _OF_PODS)
                continue
            if kind == "requests":
                total = sum(amount(_requests(one).get(name, "0")) for one in containers)
                if total > amount(value):
                    text = f"must be greater than or equal to aggregate container requests of {_spelled(name, total)}"
                    yield invalid_value(here, value, text)
                yield from _within(name, value, resources.get("limits") or {}, where)


def _requests(container: Object) -> Object:
    return (container.get("resources") or {}).get("requests") or {}


def _spelled(name: str, total: Any) -> str:
    """Return a total as the real server writes it: thousandths of CPU, else the number."""
    return f"{int(total * 1000)}m" if name == "cpu" and total % 1 else str(int(total))
