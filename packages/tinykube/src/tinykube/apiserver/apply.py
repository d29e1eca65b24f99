"""Server-side apply and the book of field managers (`metadata.managedFields`).

Invariants:

- A manager that applies owns exactly the fields it sent; those it no longer sends are removed unless another owns them.
- A field that an apply would change and another manager owns is a conflict (409 with one cause a field), unless forced.
- Any other write takes over what it changes.
- An entry keeps its time while its fields stay the same, so that applying the same again changes nothing. An apply that
  changes no field gives no time.
- Writes without a manager (the embedded controllers, kubelets of light nodes) are not recorded.

Source: sigs.k8s.io/structured-merge-diff and the messages of k8s.io/apimachinery/pkg/util/managedfields.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.fieldset import (
    Fields,
    difference,
    differences,
    fields_of,
    granular,
    in_order,
    intersection,
    item_key,
    keyed,
    owned_part,
    paths,
    union,
)
from tinykube.apiserver.schema import Schema

Object = dict[str, Any]


class Manager(msgspec.Struct, frozen=True):
    """The writer and its operation. `operation` is Apply or Update."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""

    def owns(self, entry: Object) -> bool:
        return (
            entry.get("manager") == self.name
            and entry.get("operation") == self.operation
            and entry.get("subresource", "") == self.subresource
        )

    def entry(self, fields: Fields, now: str) -> Object:
        entry: Object = {
            "manager": self.name,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": in_order(fields),
        }
        if now:
            entry["time"] = now
        if self.subresource:
            entry["subresource"] = self.subresource
        return entry


def record(old: Object | None, new: Object, schema: Schema, manager: Manager, now: str) -> None:
    """Note in `new` (whose metadata the caller owns) that `manager` made it from `old`."""
    before = (old["metadata"].get("managedFields") if old else None) or []
    given = new["metadata"].get("managedFields")
    if given is not None and (not given or given == [{}]):
        before = []  # a client that sends an empty list resets the book
    changed, removed = differences(owned_part(old) if old else {}, owned_part(new), schema)
    touched = union(changed, removed)
    book: list[Object] = []
    mine: Fields = {}
    kept: Object | None = None
    for entry in before:
        if manager.owns(entry):
            kept, mine = entry, entry.get("fieldsV1") or {}
            continue
        rest = difference(entry.get("fieldsV1") or {}, touched) if touched else entry.get("fieldsV1")
        if rest:
            book.append(entry if rest == entry["fieldsV1"] else {**entry, "fieldsV1": rest})
    fields = union(difference(mine, removed), changed)
    _close(new, book, kept, manager, fields, now)


def _close(new: Object, book: list[Object], kept: Object | None, manager: Manager, fields: Fields, now: str) -> None:
    if fields:
        same = kept is not None and kept["fieldsV1"] == fields and kept["apiVersion"] == manager.api_version
        book.append(kept if same and kept is not None else manager.entry(fields, now))
    # Appliers first, then by time, as Kubernetes keeps them.
    book.sort(key=lambda entry: (entry["operation"] != "Apply", entry.get("time", ""), entry.get("manager", "")))
    if book:
        new["metadata"]["managedFields"] = book
    else:
        new["metadata"].pop("managedFields", None)


def apply(live: Object, config: Object, schema: Schema, manager: Manager, *, force: bool, now: str) -> Object:
    """The new version of `live` with `config` applied. Raises ApiFailure 409 on conflicts that are not forced."""
    wanted = owned_part(config)
    sent = fields_of(wanted, schema)
    book: list[Object] = list(live["metadata"].get("managedFields") or ())
    kept = next((entry for entry in book if manager.owns(entry)), None)
    others = [entry for entry in book if entry is not kept]
    base = owned_part(live)
    merged = merge(base, wanted, schema)
    if kept is not None:
        given_up = _given_up(kept.get("fieldsV1") or {}, sent, wanted, schema)
        for entry in others:
            if given_up:
                given_up = difference(given_up, entry.get("fieldsV1") or {})
        if given_up:
            # Removal takes emptied objects along; one that is applied as empty comes back.
            merged = merge(remove(merged, given_up, schema), wanted, schema)
    same = merged == base
    changed: Fields = {} if same else differences(base, merged, schema)[0]
    conflicts = [(entry, both) for entry in others if (both := intersection(entry.get("fieldsV1") or {}, changed))]
    if conflicts and not force:
        raise conflict_of_fields(conflicts)
    for entry, both in conflicts:
        index = next(i for i, other in enumerate(others) if other is entry)
        others[index] = {**entry, "fieldsV1": difference(entry["fieldsV1"], both)}
    new = {key: value for key, value in live.items() if key in ("apiVersion", "kind")}
    new.update(merged)
    # Identity and the server's own fields come back as they were.
    new["metadata"] = {
        **{key: value for key, value in live["metadata"].items() if key not in base.get("metadata", {})},
        **merged.get("metadata", {}),
    }
    rest = [entry for entry in others if entry.get("fieldsV1")]
    if same:
        _close(new, rest, kept, manager, sent, kept.get("time", "") if kept is not None else "")
    else:
        _close(new, rest, None, manager, sent, now)
    return new


def _given_up(mine: Fields, sent: Fields, wanted: Any, schema: Schema) -> Fields:
    """Return the fields that this manager owned and no longer sends. An object that it now sends empty gives up all its
    fields.
    """
    result: Fields = {}
    items = schema.list_type == "map"
    values = keyed(wanted, schema) if items else {f"f:{name}": value for name, value in wanted.items()}
    for key, inner in mine.items():
        if key not in sent:
            result[key] = inner
        elif inner and isinstance(values.get(key), (dict, list)):
            child = schema.item() if items else schema.child(key[2:])
            if not values[key]:
                result[key] = inner
            elif granular(values[key], child) and child.list_type != "set" and sent[key]:
                rest = _given_up(inner, sent[key], values[key], child)
                if rest:
                    result[key] = rest
            elif sent[key] and (rest := difference(inner, sent[key])):
                result[key] = rest
    return result


def conflict_of_fields(conflicts: list[tuple[Object, Fields]]) -> ApiFailure:
    """The 409 of an apply: the entries of other managers, each with the fields that both want."""
    causes: list[Object] = []
    lines: list[str] = []
    for entry, fields in conflicts:
        who = f'"{entry["manager"]}"'
        if entry.get("subresource"):
            who += f' with subresource "{entry["subresource"]}"'
        if entry["operation"] == "Update":
            who += f" using {entry['apiVersion']}"
        found = sorted(paths(fields))
        causes += [
            {"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": path} for path in found
        ]
        lines += [f"conflicts with {who}:", *(f"- {path}" for path in found)]
    if len(causes) == 1:
        text = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        text = f"Apply failed with {len(causes)} conflicts: " + "\n".join(lines)
    return ApiFailure(409, "Conflict", text, {"causes": causes})


def merge(live: Any, wanted: Any, schema: Schema) -> Any:
    """`live` with everything that `wanted` says; atomic values are replaced."""
    if not granular(wanted, schema) or type(live) is not type(wanted) or not live:
        return live if isinstance(wanted, dict) and not wanted and isinstance(live, dict) else wanted
    if isinstance(wanted, dict):
        result = dict(live)
        for key, value in wanted.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merge(live[key], value, schema.child(key)) if key in live else value
        return result
    before = keyed(live, schema)
    after = dict(before)
    for key, item in keyed(wanted, schema).items():
        after[key] = merge(before[key], item, schema.item()) if key in before else item
    return [after[key] for key in _interleaved(list(before), [item_key(item, schema) for item in wanted])]


def _interleaved(live: list[str], wanted: list[str]) -> list[str]:
    """The keys of both in one order: that of `wanted` where they share keys, each other key after what precedes it."""
    asked = set(wanted)
    result: dict[str, None] = {}
    left, right = 0, 0
    while left < len(live) or right < len(wanted):
        if left < len(live) and (live[left] not in asked or live[left] in result):
            result[live[left]] = None
            left += 1
        elif right < len(wanted):
            result[wanted[right]] = None
            right += 1
        else:
            left += 1
    return list(result)


def remove(value: Any, fields: Fields, schema: Schema) -> Any:
    """`value` without the leaves in `fields`; objects and lists that become empty go too."""
    if isinstance(value, dict):
        result: Object = {}
        for key, inner in value.items():
            gone = fields.get("f:" + key)
            if gone is None:
                result[key] = inner
            elif gone:
                rest = remove(inner, gone, schema.child(key))
                if rest or not inner:
                    result[key] = rest
            # NB: a leaf names the whole value only where no manager owns parts of it: an applied empty object that
            # others have filled stays.
            elif isinstance(inner, dict) and inner and granular(inner, schema.child(key)):
                result[key] = inner
        return result
    items: list[Any] = []
    for item in value:
        gone = fields.get(item_key(item, schema))
        if gone is None:
            items.append(item)
        elif gone and "." not in gone:
            items.append(remove(item, gone, schema.item()))
    return items
