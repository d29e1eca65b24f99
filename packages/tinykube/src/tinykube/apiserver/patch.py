"""The three patch types besides server-side apply: JSON patch, JSON merge patch, strategic merge patch.

All are functions from an object and a patch to a new object; the old one is never changed, and what a patch leaves
alone is shared. Sources: RFC 6902, RFC 7386, and for the strategic merge patch the directives `$patch`, `$retainKeys`,
`$deleteFromPrimitiveList` and `$setElementOrder` as k8s.io/apimachinery/pkg/util/strategicpatch gives them meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

from kubekit.documents import DocumentError, check_value
from tinykube.apiserver.asgi import MAX_BODY_BYTES
from tinykube.apiserver.failure import ApiFailure, bad_request
from tinykube.apiserver.schema import Schema
from tinykube.apiserver.tables import go_text

Object = dict[str, Any]

MOST_OPERATIONS: Final = 10_000  # of one JSON patch, as the real server limits them
_DELETE_FROM: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"


# -- JSON merge patch --------------------------------------------------------------------------------------------
def merge_patch(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merge_patch(result.get(key), value)
        else:
            result[key] = value
    return result


# -- JSON patch --------------------------------------------------------------------------------------------------
def json_patch(target: Any, operations: Any) -> Any:
    """Raises ApiFailure 400 for a malformed patch, 422 for one that does not fit the object."""
    if not isinstance(operations, list):
        text = "json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        raise bad_request(f"error decoding patch: {text}")
    if len(operations) > MOST_OPERATIONS:
        text = f"The allowed maximum operations in a JSON patch is {MOST_OPERATIONS}, got {len(operations)}"
        raise ApiFailure(413, "RequestEntityTooLarge", text)
    try:
        for operation in operations:
            if not isinstance(operation, dict) or "op" not in operation or "path" not in operation:
                raise bad_request("an operation of a JSON patch needs op and path")
            target = _operate(target, operation)
        check_value(target, limit=MAX_BODY_BYTES)
    except DocumentError as error:
        raise bad_request(f"the patched object {error.problem}") from error
    except RecursionError as error:
        raise bad_request("the patched object is nested too deep") from error
    return target


def _operate(target: Any, operation: Object) -> Any:
    kind, path = operation["op"], _pointer(operation["path"])
    if kind in ("add", "replace", "test") and "value" not in operation:
        raise bad_request(f"a JSON patch's {kind} needs a value")
    if kind == "add":
        return _edit(target, path, lambda box, last: _insert(box, last, operation["value"]))
    if kind == "remove":
        return _edit(target, path, _remove)
    if kind == "replace":
        return (
            _edit(target, path, lambda box, last: _set(box, last, operation["value"])) if path else operation["value"]
        )
    if kind == "test":
        if _lookup(target, path) != operation["value"]:
            raise _unfit()
        return target
    if kind in ("move", "copy"):
        source = _pointer(operation.get("from", ""))
        value = _lookup(target, source)
        if kind == "move":
            target = _edit(target, source, _remove)
        return _edit(target, path, lambda box, last: _insert(box, last, value))
    raise _unfit()


def _unfit() -> ApiFailure:
    """The real server does not say what does not fit."""
    return ApiFailure(422, "Invalid", "the server rejected our request due to an error in our request", {})


def _pointer(text: str) -> list[str]:
    if text == "":
        return []
    if not text.startswith("/"):
        raise bad_request(f"{text!r} is not a JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _lookup(target: Any, path: list[str]) -> Any:
    for part in path:
        target = _step(target, part, path)
    return target


def _step(box: Any, part: str, path: list[str]) -> Any:
    if isinstance(box, dict) and part in box:
        return box[part]
    if isinstance(box, list):
        index = _index(box, part)
        if index < len(box):
            return box[index]
    raise _unfit()


def _index(box: list[Any], part: str) -> int:
    if part == "-":
        return len(box)
    if not part.isdigit() or int(part) > len(box):
        raise _unfit()
    return int(part)


def _edit(target: Any, path: list[str], change: Callable[[Any, str], Any]) -> Any:
    """A copy of `target` along `path` with the last container replaced by `change(container, last)`."""
    if not path:
        raise _unfit()
    if len(path) == 1:
        return change(target, path[0])
    inner = _edit(_step(target, path[0], path), path[1:], change)
    return _set(target, path[0], inner)


def _set(box: Any, part: str, value: Any) -> Any:
    if isinstance(box, dict):
        return {**box, part: value}
    index = _index(box, part)
    return [*box[:index], value, *box[index + 1 :]]


def _insert(box: Any, part: str, value: Any) -> Any:
    if isinstance(box, dict):
        return {**box, part: value}
    if isinstance(box, list):
        index = _index(box, part)
        return [*box[:index], value, *box[index:]]
    raise _unfit()


def _remove(box: Any, part: str) -> Any:
    _step(box, part, [part])
    if isinstance(box, dict):
        return {key: value for key, value in box.items() if key != part}
    index = _index(box, part)
    return [*box[:index], *box[index + 1 :]]


# -- strategic merge patch ---------------------------------------------------------------------------------------
def strategic_patch(target: Object, patch: Object, schema: Schema) -> Object:
    """Raises ApiFailure 400 for directives that cannot be understood."""
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: _plain(value) for key, value in patch.items() if not key.startswith("$") and value is not None}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"Unknown patch type: {directive}")
    result = dict(target)
    retain = patch.get("$retainKeys")
    if retain is not None:
        result = {key: value for key, value in result.items() if key in retain}
    for key, value in patch.items():
        if key.startswith(_DELETE_FROM):
            name = key[len(_DELETE_FROM) :]
            if name in result:
                result[name] = [item for item in result[name] if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        else:
            order = patch.get(_ORDER + key)
            result[key] = _strategic_value(result.get(key), value, schema.child(key), order)
    for key, order in patch.items():
        # An order without a patch of the list itself: only the order changes.
        if key.startswith(_ORDER) and (name := key[len(_ORDER) :]) not in patch and name in result:
            result[name] = _strategic_value(result[name], [], schema.child(name), order)
    return result


def _strategic_value(old: Any, value: Any, schema: Schema, order: list[Any] | None) -> Any:
    if isinstance(value, dict):
        return strategic_patch(old if isinstance(old, dict) else {}, value, schema)
    if isinstance(value, list):
        if schema.list_type == "map":
            for item in value:
                name = item.get(schema.keys[0]) if isinstance(item, dict) else None
                if not isinstance(item, dict) or isinstance(name, dict | list):
                    raise bad_request(f"a list merged by {schema.keys[0]} cannot have the item {item!r}")
            return _merge_items(old or [], value, schema, order)
        if schema.merge_set:
            if any(isinstance(item, dict | list) for item in value):
                raise bad_request("a set can have scalars only")
            merged = list(dict.fromkeys([*(old or []), *value]))
            return arrange(old or [], merged, value if order is None else order, lambda item: item)
    return _plain(value)


def _merge_items(old: list[Any], patch: list[Any], schema: Schema, order: list[Any] | None) -> list[Any]:
    key = schema.keys[0]
    if any(item.get("$patch") == "replace" for item in patch):
        return [_plain(item) for item in patch if "$patch" not in item]
    merged: dict[Hashable, Object] = {item.get(key): item for item in old}
    for item in patch:
        if key not in item:
            raise ApiFailure(500, "", f"map: {go_text(item)} does not contain declared merge key: {key}")
        name = item[key]
        if item.get("$patch") == "delete":
            merged.pop(name, None)
        else:
            merged[name] = strategic_patch(merged.get(name, {}), item, schema.item())
    items = list(merged.values())
    # Without an order of its own the patch's items are one: what is new comes first.
    wanted = [entry[key] if isinstance(entry, dict) else entry for entry in (patch if order is None else order)]
    return arrange([item.get(key) for item in old], items, wanted, lambda item: item.get(key))


def arrange(old: list[Any], items: list[Any], order: list[Any], identity: Callable[[Any], Any]) -> list[Any]:
    """Put the items that `order` names in its order; the others keep their place relative to what was around them.

    `old` gives the identities in their former order.
    """
    place = {value: index for index, value in enumerate(order)}
    before = {value: index for index, value in enumerate(old)}
    named = sorted((item for item in items if identity(item) in place), key=lambda item: place[identity(item)])
    rest = [item for item in items if identity(item) not in place]
    result: list[Any] = []
    for item in named:
        position = before.get(identity(item), -1)
        while rest and before.get(identity(rest[0]), len(before)) < position:
            result.append(rest.pop(0))
        result.append(item)
    return result + rest


def _plain(value: Any) -> Any:
    """A patch's value as it is stored: without nulls and directives."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if inner is not None and not key.startswith("$")}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value
