"""The merge rules of a kind's fields, for strategic merge patches and server-side apply only.

A `Schema` describes one place of an object. It is built from `builtin.FIELDS` for built-in kinds and from the
structural schema for CRDs, so that both patch engines know one interface only. A missing schema means the default:
objects and maps merge key by key, lists are atomic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tinykube.apiserver.builtin import FIELDS, KEY_DEFAULTS


class Schema:
    """One place: an object or map (`fields`, `values`) or a list (`list_type`, `keys`, `items`).

    `list_type` is `atomic`, `set` or `map`, and empty where the place is no list. `atomic` objects are replaced as a
    whole by server-side apply. `merge_set` sets are merged by strategic merge patches also. `key_defaults` are the
    values that a missing key of an item counts as.
    """

    __slots__ = ("atomic", "fields", "items", "key_defaults", "keys", "known_items", "list_type", "merge_set", "values")

    def __init__(
        self,
        *,
        atomic: bool = False,
        list_type: str = "",
        keys: tuple[str, ...] = (),
        merge_set: bool = False,
        key_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.atomic = atomic
        self.list_type = list_type
        self.keys = keys
        self.merge_set = merge_set
        self.key_defaults: Mapping[str, Any] = key_defaults or {}
        self.known_items: dict[Any, str] = {}  # a memo of `fieldset`
        self.fields: dict[str, Schema] = {}
        self.items: Schema | None = None
        self.values: Schema | None = None

    def child(self, name: str) -> Schema:
        """The schema of a field or map entry; PLAIN without one."""
        found = self.fields.get(name)
        if found is not None:
            return found
        return self.values or PLAIN

    def item(self) -> Schema:
        return self.items or PLAIN


PLAIN: Final = Schema()

_types: dict[str, Schema] = {}


def builtin_schema(kind: str) -> Schema:
    """The schema of a built-in kind, with its metadata."""
    schema = _type(kind)
    schema.fields.setdefault("metadata", _type("ObjectMeta"))
    return schema


def _type(name: str) -> Schema:
    known = _types.get(name)
    if known is not None:
        return known
    fields = FIELDS.get(name, {})
    schema = _types[name] = Schema(atomic=fields.get("") == "=")
    for field, how in fields.items():
        if field:
            schema.fields[field] = _parse(how)
    return schema


def _parse(how: str) -> Schema:
    if how == "=":
        return Schema(atomic=True)
    if how in ("<set>", "<merge>"):
        return Schema(list_type="set", merge_set=how == "<merge>")
    if how.startswith("["):
        words, _, item = how[1:].partition("]")
        keys = tuple(words.split())
        defaults = {key: KEY_DEFAULTS[key] for key in keys if key in KEY_DEFAULTS}
        schema = Schema(list_type="map", keys=keys, key_defaults=defaults)
        schema.items = _type(item)
        return schema
    return _type(how)


def openapi_schema(node: Mapping[str, Any], *, root: bool = True) -> Schema:
    """The schema of a structural OpenAPI v3 schema (a CRD's `openAPIV3Schema`); `root` adds the metadata."""
    schema = Schema(
        atomic=node.get("x-kubernetes-map-type") == "atomic",
        list_type=str(node.get("x-kubernetes-list-type", "atomic")) if node.get("type") == "array" else "",
        keys=tuple(node.get("x-kubernetes-list-map-keys", ())),
    )
    for name, child in node.get("properties", {}).items():
        schema.fields[name] = openapi_schema(child, root=False)
    extra = node.get("additionalProperties")
    if isinstance(extra, Mapping):
        schema.values = openapi_schema(extra, root=False)
    items = node.get("items")
    if isinstance(items, Mapping):
        schema.items = openapi_schema(items, root=False)
        properties = items.get("properties", {})
        schema.key_defaults = {
            key: properties[key]["default"] for key in schema.keys if "default" in properties.get(key, {})
        }
    if root:
        schema.fields["metadata"] = _type("ObjectMeta")
    return schema
