"""The type of an expression's result, as far as the expression itself says it.

Not a type checker: it answers where every value of a place has the same type, and is silent elsewhere, so that an
expression is refused only where a real compiler refuses it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kubekit.cel.syntax import Call, Ident, ListLiteral, Literal, MapLiteral, Message, Node, Select, UInt, parse

# name -> type, or the types of its fields
Declared = Mapping[str, Any]

_OPERATORS: Final = frozenset(("!_", "_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "_&&_", "_||_", "_in_"))
_FUNCTIONS: Final = {"size": "int", "has": "bool", "int": "int", "string": "string", "double": "double", "uint": "uint"}
_METHODS: Final = {
    **dict.fromkeys(("all", "exists", "exists_one", "startsWith", "endsWith", "contains", "matches"), "bool"),
    "size": "int",
}


def result_type(source: str, declared: Declared = {}) -> str:  # noqa: B006  # never changed
    """Return bool, int, uint, double, string, bytes, list, map, null_type or a message's name; "" where it is unknown.

    `declared` are the types of variables and of their fields. Raises CelSyntaxError for what does not parse.
    """
    found = _type(parse(source), declared)
    return found if isinstance(found, str) else "map"


def _type(node: Node, declared: Declared) -> Any:
    match node:
        case Literal(value):
            return _of_value(value)
        case Ident(name):
            return declared.get(name, "")
        case Select(operand, field, _):
            fields = _type(operand, declared)
            return fields.get(field, "") if isinstance(fields, Mapping) else ""
        case ListLiteral():
            return "list"
        case MapLiteral():
            return "map"
        case Message(name, _):
            return name
        case Call(function, args, target):
            if function in _OPERATORS:
                return "bool"
            if target is not None:
                return _METHODS.get(function, "")
            if function == "_?_:_":
                then, otherwise = (_type(arg, declared) for arg in args[1:])
                return then if then == otherwise else ""
            return _FUNCTIONS.get(function, "")
    return ""


def _of_value(value: Any) -> str:
    if value is None:
        return "null_type"
    if isinstance(value, UInt):
        return "uint"
    names = {bool: "bool", int: "int", float: "double", str: "string", bytes: "bytes"}
    return names.get(type(value), "")
