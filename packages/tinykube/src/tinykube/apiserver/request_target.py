"""Takes a request apart: which resource its path names, and which verb it is."""

from __future__ import annotations

import msgspec

from tinykube.apiserver import failure
from tinykube.apiserver.asgi import HttpRequest
from tinykube.apiserver.hooks import Attributes


class Target(msgspec.Struct, frozen=True):
    """The object or list that a path names."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_path(parts: list[str]) -> Target | None:
    """The resource that a path names, None for a path that names none."""
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if rest[0] == "namespaces" and not namespace and name:
        namespace = name  # access to a namespace is granted inside it as well
    return Target(group, version, rest[0], namespace, name, subresource)


def attributes_of(verb: str, target: Target, name: str, selected_node: str = "") -> Attributes:
    return Attributes(
        verb=verb,
        group=target.group,
        version=target.version,
        resource=target.plural,
        subresource=target.subresource,
        namespace=target.namespace,
        name=name,
        selected_node=selected_node,
    )


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


def verb_of(request: HttpRequest, target: Target) -> str:
    method = request.method
    if method in ("GET", "HEAD"):
        if target.subresource:
            return "get"
        if not target.name and request.query.get("watch") in ("true", "1"):
            return "watch"
        return "get" if target.name else "list"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    if method == "OPTIONS" and target.subresource == "proxy":
        return ""  # as the real server has it: only the right to every verb allows it
    verb = _VERBS.get(method)
    if verb is None or (not target.name and verb in ("update", "patch")):
        raise failure.method_not_allowed()
    if verb == "create" and target.name and not target.subresource:
        raise failure.method_not_allowed()
    return verb


def only_value(selector: str, wanted: str) -> str:
    """The only value that a field selector allows for the field `wanted`, "" when it allows several."""
    for part in selector.split(","):
        field, _, value = part.partition("=")
        if field == wanted:
            return value.removeprefix("=")
    return ""
