"""The subresource `scale`: the replicas of an object as a Scale of `autoscaling/v1`, read and written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tinykube.apiserver import failure
from tinykube.apiserver.apply import Manager, conflict_of_fields
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.fieldset import Fields, difference, intersection
from tinykube.apiserver.kinds import Kind

Object = dict[str, Any]
#: Group, version and kind.
SCALE: Final = ("autoscaling", "v1", "Scale")
_SCALE: Final = ResourceInfo(
    group="autoscaling", version="v1", plural="scales", singular="scale", kind="Scale", namespaced=True
)


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
    replicas = _at(obj, paths.replicas)
    scale: Object = {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": {"replicas": replicas} if replicas else {},
        "status": {"replicas": _at(obj, paths.status_replicas) or 0},
    }
    selector = _at(obj, paths.selector) if paths.selector else None
    if isinstance(selector, dict):
        scale["status"]["selector"] = selector_text(selector)
    elif isinstance(selector, str):
        scale["status"]["selector"] = selector
    return scale


def selector_text(selector: Object) -> str:
    """Return a label selector as URLs carry it: that of most kinds, or the plain labels of a ReplicationController."""
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
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
        raise failure.invalid(_SCALE, obj["metadata"]["name"], (cause,))
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


def with_applied_scale(kind: Kind, obj: Object, scale: Object, manager: Manager, *, force: bool, now: str) -> Object:
    """`obj` with an applied Scale. Its replicas belong to `manager`, in an entry of the subresource.

    Raises ApiFailure 409 where another manager owns the replicas and they change, unless that is forced.
    """
    live, sent = scale_of(kind, obj), scale.get("spec") or {}
    assert kind.rules.scale is not None, "scale_of refuses kinds without a scale"
    owned = _fields(kind.rules.scale.replicas)
    new = with_scale(kind, obj, {"metadata": scale.get("metadata") or {}, "spec": sent or live["spec"]})
    others = [entry for entry in obj["metadata"].get("managedFields") or () if not manager.owns(entry)]
    # NB: a Scale has no replicas where they are zero, so that applying zero changes them.
    if "replicas" in sent and sent["replicas"] != live["spec"].get("replicas"):
        owners = [entry for entry in others if intersection(entry.get("fieldsV1") or {}, owned)]
        if owners and not force:
            raise conflict_of_fields([(entry, _fields(("spec", "replicas"))) for entry in owners])
        others = [{**entry, "fieldsV1": difference(entry.get("fieldsV1") or {}, owned)} for entry in others]
    mine = [manager.entry(owned, now)] if "replicas" in sent else []
    new["metadata"]["managedFields"] = [*mine, *(entry for entry in others if entry.get("fieldsV1"))]
    return new


def _fields(path: tuple[str, ...]) -> Fields:
    fields: Fields = {}
    for name in reversed(path):
        fields = {f"f:{name}": fields}
    return fields


_MOST_REPLICAS: Final = 2**31 - 1
_GO_TYPES: Final = {
    str: "string",
    float: "float64",
    bool: "bool",
    dict: "map[string]interface {}",
    list: "[]interface {}",
}


def replica_findings(obj: Object, field: str) -> Iterator[failure.Cause]:
    """The findings of a field with a number of replicas, which is named as the definition names it."""
    value: Any = obj
    for name in field.split(".")[1:]:
        value = value.get(name) if isinstance(value, dict) else None
    if value is None:
        return
    if type(value) is not int:
        text = f"{field} accessor error: {value} is of the type {_GO_TYPES[type(value)]}, expected int64"
        yield failure.Cause("FieldValueInvalid", f"Invalid value: 0: {text}", field)
    elif value < 0:
        yield failure.invalid_value(field, value, "should be a non-negative integer")
    elif value > _MOST_REPLICAS:
        yield failure.invalid_value(field, value, f"should be less than or equal to {_MOST_REPLICAS}")
