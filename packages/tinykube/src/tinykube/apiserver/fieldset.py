"""Sets of fields in the form of `FieldsV1`, and their algebra: who owns what of an object.

A set is the nested dict that managedFields carries: `f:name` for a field, `k:{...}` for an item of a list by its keys,
`v:...` for an item of a set, `.` for the item itself. A leaf is an empty dict. Nothing else is ever built, so that
storing, comparing and sending a set costs no conversion. Source: sigs.k8s.io/structured-merge-diff.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from kubekit.documents import decode_json
from tinykube.apiserver.failure import bad_request
from tinykube.apiserver.schema import Schema

Object = dict[str, Any]
Fields = dict[str, Any]

_encode = msgspec.json.Encoder(order="sorted").encode

_KNOWN_ITEMS: Final = 1024  # keys of items that a schema remembers in their written form

# Never owned by a manager: identity and the server's own fields.
_UNOWNED: Final = frozenset(("apiVersion", "kind"))
_UNOWNED_METADATA: Final = frozenset(
    (
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "managedFields",
    )
)


def owned_part(obj: Object) -> Object:
    """Return the object without the fields that no manager can own."""
    part = {key: value for key, value in obj.items() if key not in _UNOWNED}
    metadata = part.get("metadata")
    if isinstance(metadata, dict):
        rest = {key: value for key, value in metadata.items() if key not in _UNOWNED_METADATA}
        if rest:
            part["metadata"] = rest
        else:
            del part["metadata"]
    return part


def item_key(item: Any, schema: Schema) -> str:
    """`k:{"name":"x"}` for an item of a list of objects, `v:"x"` for one of a set."""
    if schema.list_type == "set":
        return "v:" + _encode(item).decode()
    keys: Object = {}
    for key in schema.keys:
        value = item.get(key, schema.key_defaults.get(key)) if isinstance(item, dict) else None
        if value is not None:
            keys[key] = value
    text = "k:" + _encode(keys).decode()
    if len(schema.keys) == 1 and len(schema.known_items) < _KNOWN_ITEMS:
        name = keys.get(schema.keys[0])
        if isinstance(name, str):
            schema.known_items[name] = text
    return text


def keyed(items: list[Any], schema: Schema) -> dict[str, Any]:
    """The items by their keys. Raises ApiFailure 400 for an item that can have none."""
    if schema.list_type == "map":
        for item in items:
            if not isinstance(item, dict):
                raise bad_request(f"a list told apart by {', '.join(schema.keys)} cannot have the item {item!r}")
        if len(schema.keys) == 1:
            # Condition types, container and volume names: the same few over and over.
            key, known = schema.keys[0], schema.known_items
            return {
                (known.get(name) if isinstance(name := item.get(key), str) else None) or item_key(item, schema): item
                for item in items
            }
    return {item_key(item, schema): item for item in items}


def granular(value: Any, schema: Schema) -> bool:
    """Return whether the parts of a value are owned one by one."""
    if isinstance(value, dict):
        return bool(value) and not schema.atomic
    return isinstance(value, list) and bool(value) and schema.list_type in ("map", "set")


def fields_of(value: Any, schema: Schema) -> Fields:
    """Every leaf of a value."""
    fields: Fields = {}
    if isinstance(value, dict):
        for key, inner in value.items():
            child = schema.child(key)
            fields["f:" + key] = fields_of(inner, child) if granular(inner, child) else {}
    elif schema.list_type == "map":
        for key, item in keyed(value, schema).items():
            fields[key] = {".": {}, **fields_of(item, schema.item())}
    else:
        for item in value:
            fields[item_key(item, schema)] = {}
    return fields


def differences(old: Any, new: Any, schema: Schema) -> tuple[Fields, Fields]:
    """`(changed or added, removed)` leaves between two granular values of the same kind."""
    changed: Fields = {}
    removed: Fields = {}
    if isinstance(new, dict):
        befores = {"f:" + key: value for key, value in old.items()}
        afters = {"f:" + key: value for key, value in new.items()}
    else:
        befores, afters = keyed(old, schema), keyed(new, schema)
    items = schema.list_type == "map"
    for key, after in afters.items():
        child = schema.item() if items else schema.child(key[2:]) if key[0] == "f" else schema
        if key not in befores:
            changed[key] = _whole(key, after, child, items)
            continue
        before = befores[key]
        if before is after or before == after:
            continue
        if granular(before, child) and granular(after, child) and type(before) is type(after):
            more, less = differences(before, after, child)
            if more:
                changed[key] = more
            if less:
                removed[key] = less
        else:
            changed[key] = _whole(key, after, child, False)
            if granular(before, child):
                removed[key] = fields_of(before, child)
    for key, before in befores.items():
        if key not in afters:
            child = schema.item() if items else schema.child(key[2:]) if key[0] == "f" else schema
            removed[key] = _whole(key, before, child, items)
    return changed, removed


def _whole(key: str, value: Any, schema: Schema, item: bool) -> Fields:
    if key[0] == "v" or not granular(value, schema):
        return {".": {}} if item else {}
    inner = fields_of(value, schema)
    return {".": {}, **inner} if item else inner


def union(left: Fields, right: Fields) -> Fields:
    if not left or not right:
        return left or right
    result = dict(left)
    for key, inner in right.items():
        result[key] = union(result[key], inner) if key in result else inner
    return result


def in_order(fields: Fields) -> Fields:
    """Return the fields by their keys, as the real server writes them: clients of Go compare them byte by byte."""
    return {key: in_order(inner) if inner else inner for key, inner in sorted(fields.items())}


def intersection(left: Fields, right: Fields) -> Fields:
    """Return the fields in both. A leaf on one side holds everything below it on the other."""
    result: Fields = {}
    for key, inner in left.items():
        if key not in right:
            continue
        other = right[key]
        if not inner or not other:
            result[key] = inner or other
        elif both := intersection(inner, other):
            result[key] = both
    return result


def difference(left: Fields, right: Fields) -> Fields:
    """Return the fields of `left` that are not in `right`, without empty parents."""
    result: Fields = {}
    for key, inner in left.items():
        if key not in right:
            result[key] = inner
            continue
        other = right[key]
        if not inner or not other:
            continue
        rest = difference(inner, other)
        if rest:
            result[key] = rest
    return result


def paths(fields: Fields, prefix: str = "") -> Iterator[str]:
    """The leaves as Kubernetes prints them: `.spec.containers[name="a"].image`."""
    for key, inner in fields.items():
        if key == ".":
            yield prefix
            continue
        if key[0] == "f":
            path = f"{prefix}.{key[2:]}"
        elif key[0] == "k":
            keys = decode_json(key[2:], dict[str, Any])
            shown = ",".join(f"{name}={_encode(value).decode()}" for name, value in keys.items())
            path = f"{prefix}[{shown}]"
        else:
            path = f"{prefix}[={key[2:]}]"
        if inner:
            yield from paths(inner, path)
        else:
            yield path
