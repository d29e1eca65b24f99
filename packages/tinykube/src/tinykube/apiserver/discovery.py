"""Serves discovery: /api, /apis, group versions, and all of it at once (aggregated).

Everything is a pure function of the resources served at this moment, so a CRD appears and goes with the request after
it. Clients of 1.26 and later ask for the aggregated form by Accept header; older ones for a list for each version.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from tinykube.apiserver.builtin import ResourceInfo

#: The Kubernetes release whose behaviour is followed, as `kubectl version` prints it.
VERSION_MINOR = "34"
VERSION = {
    "major": "1",
    "minor": VERSION_MINOR,
    "gitVersion": f"v1.{VERSION_MINOR}.1+tinykube",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}

#: The subresources that connect to a pod or node, and the kinds of their options by resource.
CONNECT_KINDS: dict[str, dict[str, str]] = {
    "exec": {"pods": "PodExecOptions"},
    "attach": {"pods": "PodAttachOptions"},
    "portforward": {"pods": "PodPortForwardOptions"},
    "proxy": {"pods": "PodProxyOptions", "services": "ServiceProxyOptions", "nodes": "NodeProxyOptions"},
}
_READ_WRITE = ("get", "patch", "update")
# subresource -> (group, version, kind or "" for that of the resource, verbs)
_SUBRESOURCES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "status": ("", "", "", _READ_WRITE),
    "scale": ("autoscaling", "v1", "Scale", _READ_WRITE),
    "binding": ("", "v1", "Binding", ("create",)),
    "eviction": ("policy", "v1", "Eviction", ("create",)),
    "token": ("authentication.k8s.io", "v1", "TokenRequest", ("create",)),
    "log": ("", "", "", ("get",)),
    **{name: ("", "v1", kinds["pods"], ("create", "get")) for name, kinds in CONNECT_KINDS.items() if name != "proxy"},
    "ephemeralcontainers": ("", "", "", _READ_WRITE),
    "resize": ("", "", "", _READ_WRITE),
    "approval": ("", "", "", _READ_WRITE),
    "finalize": ("", "", "", ("update",)),
}


class DiscoveryAnswer(NamedTuple):
    """An HTTP answer: the body is JSON unless `content_type` says otherwise."""

    body: bytes
    content_type: str = "application/json"
    etag: str = ""


def respond(path: str, accept: str, resources: Sequence[ResourceInfo], *, address: str = "") -> DiscoveryAnswer | None:
    """The answer to a discovery path, None when nothing of that name is served.

    `address` is `host:port` of the server as clients reach it.
    """
    parts = path.strip("/").split("/")
    if parts == ["api"] or parts == ["apis"]:
        core = parts == ["api"]
        wanted = _aggregated_version(accept)
        if wanted:
            body = aggregated(resources, wanted, core=core)
            encoded = msgspec.json.encode(body)
            etag = hashlib.sha256(encoded).hexdigest().upper()
            kind = f"application/json;g=apidiscovery.k8s.io;v={wanted};as=APIGroupDiscoveryList"
            return DiscoveryAnswer(encoded, kind, f'"{etag}"')
        return _json(core_versions(address) if core else group_list(resources))
    if parts == ["version"]:
        return _json(VERSION)
    if parts[0] == "api" and len(parts) == 2:
        return _resources("", parts[1], resources)
    if parts[0] == "apis" and len(parts) == 2:
        served = [group for group in groups(resources) if group["name"] == parts[1]]
        return _json({"kind": "APIGroup", "apiVersion": "v1", **served[0]}) if served else None
    if parts[0] == "apis" and len(parts) == 3:
        return _resources(parts[1], parts[2], resources)
    return None


def _json(body: Any) -> DiscoveryAnswer:
    return DiscoveryAnswer(msgspec.json.encode(body))


def _resources(group: str, version: str, resources: Iterable[ResourceInfo]) -> DiscoveryAnswer | None:
    served = [info for info in resources if info.group == group and info.version == version]
    return _json(resource_list(group, version, served)) if served else None


def _aggregated_version(accept: str) -> str | None:
    for offer in accept.split(","):
        parameters = [part.strip() for part in offer.split(";")[1:]]
        options = dict(p.split("=", 1) for p in parameters if "=" in p)
        if options.get("g") == "apidiscovery.k8s.io" and options.get("as") == "APIGroupDiscoveryList":
            version = options.get("v", "")
            if version in ("v2", "v2beta1"):
                return version
        elif offer.strip() in ("application/json", "*/*"):
            return None
    return None


def version_priority(version: str) -> tuple[int, int, int, str]:
    """A sort key that puts v2 before v1 before v1beta2 before v1alpha1 before anything else."""
    match = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    if match is None:
        return (3, 0, 0, version)
    stage = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return (stage, -int(match[1]), -int(match[3] or 0), "")


def _versions(resources: Iterable[ResourceInfo]) -> dict[str, list[str]]:
    """Versions by group; built-in groups in table order, those of CRDs after them by name."""
    found: dict[str, list[str]] = {}
    extensions: dict[str, list[str]] = {}
    for info in resources:
        versions = (found if info.model else extensions).setdefault(info.group, [])
        if info.version not in versions:
            versions.append(info.version)
    for group in sorted(extensions):
        found[group] = list(dict.fromkeys(found.get(group, []) + extensions[group]))
    for versions in found.values():
        versions.sort(key=version_priority)
    return found


def core_versions(address: str) -> dict[str, Any]:
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def groups(resources: Iterable[ResourceInfo]) -> list[dict[str, Any]]:
    made = []
    for group, versions in _versions(resources).items():
        if not group:
            continue
        entries = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
        made.append({"name": group, "versions": entries, "preferredVersion": entries[0]})
    return made


def group_list(resources: Iterable[ResourceInfo]) -> dict[str, Any]:
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups(resources)}


def _subresource(info: ResourceInfo, name: str) -> tuple[str, str, str, tuple[str, ...]]:
    """(group, version, kind, verbs) of a subresource."""
    if name == "proxy":
        every = ("create", "delete", "get", "patch", "update")
        return "", "v1", CONNECT_KINDS[name].get(info.plural, info.kind), every
    group, version, kind, verbs = _SUBRESOURCES.get(name, ("", "", "", _READ_WRITE))
    if not kind:
        return info.group, info.version, info.kind, verbs
    return group, version, kind, verbs


def resource_list(group: str, version: str, resources: Iterable[ResourceInfo]) -> dict[str, Any]:
    """An APIResourceList of one group version; subresources are entries of their own, `pods/log`."""
    entries: list[dict[str, Any]] = []
    listed = sorted(resources, key=lambda info: info.plural)
    for info in listed:
        entry: dict[str, Any] = {
            "name": info.plural,
            "singularName": info.singular,
            "namespaced": info.namespaced,
            "kind": info.kind,
            "verbs": list(info.verbs),
        }
        if info.short_names:
            entry["shortNames"] = list(info.short_names)
        if info.categories:
            entry["categories"] = list(info.categories)
        entries.append(entry)
        for name in info.subresources:
            sub_group, sub_version, kind, verbs = _subresource(info, name)
            sub: dict[str, Any] = {
                "name": f"{info.plural}/{name}",
                "singularName": "",
                "namespaced": info.namespaced,
                "kind": kind,
                "verbs": list(verbs),
            }
            if (sub_group, sub_version) != (group, version):
                sub |= {"group": sub_group, "version": sub_version}
            entries.append(sub)
    # NB: the list of the core group says no version of its own, and custom resources name theirs as they were made.
    head = {"kind": "APIResourceList"} | ({"apiVersion": "v1"} if group else {})
    if all(info.model for info in listed):
        entries.sort(key=lambda entry: str(entry["name"]))
    return {**head, "groupVersion": f"{group}/{version}" if group else version, "resources": entries}


def aggregated(resources: Sequence[ResourceInfo], version: str, *, core: bool) -> dict[str, Any]:
    """An APIGroupDiscoveryList: of the core group for /api, of all others for /apis."""
    items = []
    for group, versions in _versions(resources).items():
        if (group == "") != core:
            continue
        entries = []
        for served in versions:
            infos = [info for info in resources if info.group == group and info.version == served]
            entries.append(
                {
                    "version": served,
                    "resources": [_aggregated(info) for info in sorted(infos, key=lambda i: i.plural)],
                    "freshness": "Current",
                }
            )
        items.append({"metadata": {"name": group} if group else {}, "versions": entries})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }


def _response_kind(group: str, version: str, kind: str) -> dict[str, str]:
    """NB: kinds of the core group have no version here."""
    return {"group": group, "version": version if group else "", "kind": kind}


def _aggregated(info: ResourceInfo) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "resource": info.plural,
        "responseKind": _response_kind(info.group, info.version, info.kind),
        "scope": "Namespaced" if info.namespaced else "Cluster",
        "singularResource": info.singular,
        "verbs": list(info.verbs),
    }
    if info.short_names:
        entry["shortNames"] = list(info.short_names)
    if info.categories:
        entry["categories"] = list(info.categories)
    subresources = []
    for name in info.subresources:
        group, version, kind, verbs = _subresource(info, name)
        kind_of = _response_kind(group, version, kind)
        subresources.append({"subresource": name, "responseKind": kind_of, "verbs": list(verbs)})
    if subresources:
        entry["subresources"] = subresources
    return entry
