"""The paths of objects at the API server, and the data of an object as requests have it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from kubekit.api.kinds import RESOURCES
from kubekit.api.meta import KubeObject, Resource
from kubekit.errors import InvalidInput

_ODD: Final = frozenset(' %?#"<>\\^`{|}')


def object_path(
    resource: Resource, namespace: str | None, name: str | None, subresource: str | None = None, *, default: str
) -> str:
    """Return the path of an object, or of all objects without a name.

    Args:
        default: the namespace of an object that names none.

    Raises InvalidInput for what can be no name.
    """
    for part in (namespace, name):
        if part is not None and (not part or "/" in part or part in (".", "..")):
            raise InvalidInput(f"{part!r} is no name of an object", where=resource.kind)
    if resource.namespaced and name is not None and not namespace:
        namespace = default
    path = resource.path(namespace, name, subresource)
    return path if path.isascii() and path.isprintable() and not _ODD & set(path) else quote(path, safe="/:@")


def object_data(
    obj: KubeObject | Mapping[str, Any], resource: Resource | None, namespace: str | None, default: str
) -> tuple[Resource, dict[str, Any], str | None, str | None]:
    """Return the resource of an object, its JSON data with kind and apiVersion, its namespace and its name.

    Args:
        default: the namespace of an object that has none.

    Raises InvalidInput for an unknown kind without `resource`.
    """
    data: dict[str, Any]
    if isinstance(obj, Mapping):
        data = dict(obj)
        if resource is None:
            resource = RESOURCES.get((data.get("apiVersion", ""), data.get("kind", "")))
    else:
        data = msgspec.to_builtins(obj)
        resource = resource or type(obj).RESOURCE
    if resource is None:
        raise InvalidInput(
            f"where is {data.get('apiVersion')} {data.get('kind')} served?", cure="pass resource=Resource(...)"
        )
    data["apiVersion"] = resource.api_version
    data["kind"] = resource.kind
    meta = data.get("metadata") or {}
    space = namespace or meta.get("namespace") or None
    if resource.namespaced:
        space = space or default
    return resource, data, space, meta.get("name")


def selectors(labels: str, fields: str) -> dict[str, str]:
    """Return the parameters of a list or a watch; those that are empty are left out."""
    chosen = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in chosen.items() if value}
