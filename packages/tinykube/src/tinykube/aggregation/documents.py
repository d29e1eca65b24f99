"""Discovery of aggregated groups: merged into the documents of the embedded API server. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

Object = dict[str, Any]


class AggregatedVersion(msgspec.Struct, frozen=True):
    """One version of a group of another API server; `resources` as an APIResourceList has them."""

    group: str
    version: str
    group_priority: int
    version_priority: int
    available: bool
    resources: tuple[Object, ...] = ()


def groups(versions: Iterable[AggregatedVersion]) -> list[Object]:
    """Return the groups as an APIGroupList has them, the most important first."""
    made: dict[str, list[Object]] = {}
    for one in _ordered(versions):
        made.setdefault(one.group, []).append({"groupVersion": f"{one.group}/{one.version}", "version": one.version})
    return [{"name": name, "versions": listed, "preferredVersion": listed[0]} for name, listed in made.items()]


def aggregated(versions: Iterable[AggregatedVersion]) -> list[Object]:
    """Return the items of an APIGroupDiscoveryList."""
    made: dict[str, list[Object]] = {}
    for one in _ordered(versions):
        entry = {
            "version": one.version,
            "resources": _discovered(one),
            "freshness": "Current" if one.available else "Stale",
        }
        made.setdefault(one.group, []).append(entry)
    return [{"metadata": {"name": name}, "versions": listed} for name, listed in made.items()]


def merged(document: Object, versions: Sequence[AggregatedVersion]) -> Object:
    """Return the document of /apis, in any of its forms, with further groups."""
    if document.get("kind") == "APIGroupDiscoveryList":
        return {**document, "items": _joined(document["items"], aggregated(versions), lambda one: one["metadata"])}
    return {**document, "groups": _joined(document["groups"], groups(versions), lambda one: one)}


def _joined(local: Sequence[Object], others: Sequence[Object], named: Any) -> list[Object]:
    known = {named(one).get("name") for one in local}
    return [*local, *(one for one in others if named(one)["name"] not in known)]


def _ordered(versions: Iterable[AggregatedVersion]) -> list[AggregatedVersion]:
    return sorted(versions, key=lambda one: (-one.group_priority, one.group, -one.version_priority, one.version))


def _discovered(version: AggregatedVersion) -> list[Object]:
    found: dict[str, Object] = {}
    for one in version.resources:
        name, _, sub = one["name"].partition("/")
        kind = {
            "group": one.get("group") or version.group,
            "version": one.get("version") or version.version,
            "kind": one.get("kind") or "",
        }
        if sub:
            if name in found:
                entry = {"subresource": sub, "responseKind": kind, "verbs": one.get("verbs") or []}
                found[name].setdefault("subresources", []).append(entry)
            continue
        found[name] = {
            "resource": name,
            "responseKind": kind,
            "scope": "Namespaced" if one.get("namespaced") else "Cluster",
            "singularResource": one.get("singularName") or "",
            "verbs": one.get("verbs") or [],
        }
        for key in ("shortNames", "categories"):
            if one.get(key):
                found[name][key] = one[key]
    return list(found.values())
