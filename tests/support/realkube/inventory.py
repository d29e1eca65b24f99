"""Everything that an API server stores, so that two moments can be compared.

Left out is what changes by itself: leases, events, resource versions and managed fields, the status that controllers
write into objects of the system, and the kubelet's report of its Node: it lists images that it has seen, and resources
whose device plugin is gone with 0, until it is started again.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from kubekit.kube import Client

Objects = dict[str, dict[str, Any]]
"""`apiGroup/kind namespace/name` -> the object."""

UNSTORED: Final = {"componentstatuses", "nodes.metrics.k8s.io", "pods.metrics.k8s.io"}
RESTLESS: Final = {"events", "leases", "leasecandidates", "endpoints", "endpointslices"}
_VOLATILE: Final = ("resourceVersion", "managedFields", "generation", "uid", "creationTimestamp")


async def inventory(client: Client) -> Objects:
    """All objects of all resources that are served and can be listed, each kind in its preferred version."""
    found: Objects = {}
    async for group, path, resource in _served(client):
        answer = json.loads(await client.request("GET", f"{path}/{resource['name']}"))
        for obj in answer["items"]:
            meta = obj["metadata"]
            place = "/".join(part for part in (meta.get("namespace"), meta["name"]) if part)
            found[f"{group or 'core'}/{resource['kind']} {place}"] = settled(obj, resource["kind"])
    return found


def settled(obj: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The object without what changes by itself."""
    kept = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
    if kind == "Node":
        kept.pop("status", None)
    kept["metadata"] = {key: value for key, value in obj["metadata"].items() if key not in _VOLATILE}
    status = kept.get("status")
    if isinstance(status, dict):
        kept["status"] = {
            key: [_without(condition, "lastHeartbeatTime") for condition in value] if key == "conditions" else value
            for key, value in status.items()
            if key != "observedGeneration"
        }
    return kept


def difference(before: Objects, after: Objects) -> str:
    """A unified diff in YAML, object by object; empty when nothing differs."""
    pieces: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            old, new = (_lines(objects.get(name)) for objects in (before, after))
            pieces += difflib.unified_diff(old, new, f"before: {name}", f"after:  {name}", lineterm="")
    return "\n".join(pieces)


def _lines(obj: Mapping[str, Any] | None) -> list[str]:
    return yaml.safe_dump(obj, sort_keys=True, width=120).splitlines() if obj is not None else []


def _without(value: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: inner for key, inner in value.items() if key not in keys}


async def _served(client: Client) -> Any:
    """(group, path of the version, resource) of what can be listed."""
    versions = [("", "/api/v1")]
    groups = json.loads(await client.request("GET", "/apis"))["groups"]
    versions += [(group["name"], f"/apis/{group['preferredVersion']['groupVersion']}") for group in groups]
    for group, path in versions:
        for resource in _listed(json.loads(await client.request("GET", path))["resources"]):
            name = resource["name"]
            if name in RESTLESS or {name, f"{name}.{group}"} & UNSTORED:
                continue
            yield group, path, resource


def _listed(resources: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (resource for resource in resources if "list" in resource["verbs"] and "/" not in resource["name"])
