"""Checks whether a value fits a structural schema, without findings: a yes costs a fraction of a full validation.

Nearly every write is valid, so validation asks this first and walks for findings only after a no. Each place of the
schema becomes one function that does what that place needs; a place that says less is quicker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kubekit.api.formats import valid_format
from kubekit.api.regexes import regex

if TYPE_CHECKING:
    from tinykube.apiserver.structural import Structural

Check = Callable[[Any], bool]


def quick(node: Structural) -> Check:
    """A function that is true for values without findings; rules in CEL are not looked at."""
    check = _by_type(node)
    if node.enum is not None:
        allowed, plain = node.enum, check
        check = lambda value: value in allowed and plain(value)  # noqa: E731  # one of several shapes of one thing
    if node.nullable:
        strict = check
        return lambda value: value is None or strict(value)
    return check


def _by_type(node: Structural) -> Check:
    if node.junctors or node.negated is not None or node.int_or_string or node.list_type in ("set", "map"):
        return lambda value: next(node.check(value, ""), None) is None
    match node.type:
        case "string":
            return _string(node)
        case "boolean":
            return lambda value: value is True or value is False
        case "integer" if not node.bounds and not node.format:
            return lambda value: type(value) is int or (type(value) is float and value.is_integer())
        case "integer" if "multipleOf" not in node.bounds and not any(node.exclusive):
            return _integer(node)
        case "object":
            return _object(node)
        case "array":
            return _array(node)
        case _:
            return lambda value: next(node.check(value, ""), None) is None


def _string(node: Structural) -> Check:
    least, most = node.bounds.get("minLength", 0), node.bounds.get("maxLength")
    pattern = regex(node.pattern) if node.pattern else None
    form = node.format
    if not least and most is None and pattern is None and not form:
        return lambda value: type(value) is str
    return lambda value: (
        type(value) is str
        and least <= len(value)
        and (most is None or len(value) <= most)
        and (pattern is None or pattern.search(value) is not None)
        and (not form or valid_format(form, value))
    )


def _integer(node: Structural) -> Check:
    largest = {"int32": 2**31 - 1, "int64": 2**63 - 1}.get(node.format, float("inf"))
    low = max(node.bounds.get("minimum", -largest), -largest)
    high = min(node.bounds.get("maximum", largest), largest)
    return lambda value: type(value) is int and low <= value <= high


def _object(node: Structural) -> Check:
    required = node.required
    least, most = node.bounds.get("minProperties", 0), node.bounds.get("maxProperties")
    children = {name: quick(child) for name, child in node.properties.items()}
    others = quick(node.values) if node.values is not None else None
    if node.embedded:
        children["metadata"] = lambda value: True  # checked by the server for every kind alike

    def check(value: Any) -> bool:
        if type(value) is not dict or len(value) < least or (most is not None and len(value) > most):
            return False
        for name in required:
            if name not in value:
                return False
        for name, item in value.items():
            child = children.get(name, others)
            if child is not None and not child(item):
                return False
        return True

    return check


def _array(node: Structural) -> Check:
    least, most = node.bounds.get("minItems", 0), node.bounds.get("maxItems")
    item = quick(node.items) if node.items is not None else None

    def check(value: Any) -> bool:
        if type(value) is not list or len(value) < least or (most is not None and len(value) > most):
            return False
        return item is None or all(map(item, value))

    return check
