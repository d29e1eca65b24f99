"""The subresource `scale`: the replicas of an object as a Scale of `autoscaling/v1`, read and written."""

from __future__ import annotations

from typing import Any, Final

from tinykube.apiserver import failure
from tinykube.apiserver.kinds import Kind

Object = dict[str, Any]
#: Group, version and kind.
SCALE: Final = ("autoscaling", "v1", "Scale")


def _at(obj: Object, path: tuple[str, ...]) -> Any:
    value: Any = obj
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def scale_of(kind: Kind, obj: Object) -> Object:
    """The `autoscaling/v1` Scale of an object."""
    paths = kind.rules.scale
    if paths is None:
        raise failure.no_such_resource()
    metadata = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    scale: Object = {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": {"replicas": _at(obj, paths.replicas) or 0},
        "status": {"replicas": _at(obj, paths.status_replicas) or 0},
    }
    selector = _at(obj, paths.selector) if paths.selector else None
    if isinstance(selector, dict):
        scale["status"]["selector"] = _selector_text(selector)
    elif isinstance(selector, str):
        scale["status"]["selector"] = selector
    return scale


def _selector_text(selector: Object) -> str:
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))  # a ReplicationController's
    words = {"In": "in", "NotIn": "notin"}
    terms = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or ():
        operator = term["operator"]
        if operator in words:
            terms.append(f"{term['key']} {words[operator]} ({','.join(sorted(term['values']))})")
        else:
            terms.append(term["key"] if operator == "Exists" else f"!{term['key']}")
    return ",".join(terms)


def with_scale(kind: Kind, obj: Object, scale: Object) -> Object:
    """`obj` with the replicas that a Scale asks for. Raises ApiFailure 422 for a number that cannot be."""
    paths = kind.rules.scale
    if paths is None:
        raise failure.no_such_resource()
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        cause = failure.invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
        raise failure.invalid(kind.info, obj["metadata"]["name"], (cause,))
    new = {**obj, "metadata": {**obj["metadata"]}}
    version = (scale.get("metadata") or {}).get("resourceVersion")
    if version:
        new["metadata"]["resourceVersion"] = version
    else:
        new["metadata"].pop("resourceVersion", None)
    box = new
    for name in paths.replicas[:-1]:
        box[name] = {**(box.get(name) or {})}
        box = box[name]
    box[paths.replicas[-1]] = replicas
    return new
