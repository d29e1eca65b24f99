"""Finds fields in rules that their schema does not have, before an object comes that has to suffer from it.

Not a type checker: it follows `self`, `oldSelf` and the variables of macros through the schema, and is silent where it
loses sight of the type. A real API server refuses each finding as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kubekit.cel.program import macro_parts, unescape
from kubekit.cel.syntax import Call, Ident, Index, ListLiteral, MapLiteral, Node, Select, marked, parse

Schema = Mapping[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_SCALARS: Final = ("string", "integer", "number", "boolean")
_METADATA: Final[Schema] = {"type": "object", "properties": {"name": _TEXT, "generateName": _TEXT}}
_ROOT: Final = {"apiVersion": _TEXT, "kind": _TEXT, "metadata": _METADATA}


def undefined_fields(source: str, schema: Schema, *, root: bool) -> list[str]:
    """Return the fields that a rule at `schema` selects and that cannot exist. Raises CelSyntaxError for a rule that
    does not parse.
    """
    if root or schema.get("x-kubernetes-embedded-resource"):
        schema = {**schema, "properties": {**(schema.get("properties") or {}), **_ROOT}}
    finder = _Finder(source)
    finder.of(parse(source), {"self": schema, "oldSelf": schema})
    return finder.found


class _Finder:
    def __init__(self, source: str) -> None:
        self.found: list[str] = []
        self._source = source

    def of(self, node: Node, scope: Mapping[str, Schema | None]) -> Schema | None:
        """Return the schema of a node's value, None if it is unknown; findings are collected."""
        match node:
            case Ident(name):
                return scope.get(name)
            case Select(operand, field, optional):
                selected = self._select(self.of(operand, scope), field)
                return None if optional else selected
            case Index(operand, index, _):
                self.of(index, scope)
                container = self.of(operand, scope) or {}
                return container.get("items") or _values(container)
            case Call():
                return self._call(node, scope)
            case ListLiteral(items):
                for _, item in items:
                    self.of(item, scope)
            case MapLiteral(entries):
                for _, key, value in entries:
                    self.of(key, scope)
                    self.of(value, scope)
        return None

    def _select(self, schema: Schema | None, field: str) -> Schema | None:
        if schema is None or schema.get("x-kubernetes-preserve-unknown-fields"):
            return None
        if schema.get("type") in _SCALARS:
            self._find(field, f"type '{schema['type']}' does not support field selection")
            return None
        if (values := _values(schema)) is not None or schema.get("additionalProperties"):
            return values
        properties = schema.get("properties") or {}
        for name in (field, unescape(field)):
            if name in properties:
                found: Schema = properties[name]
                return found
        if schema.get("type") == "object":
            self._find(field, f"undefined field '{field}'")
        return None

    def _find(self, field: str, what: str) -> None:
        """NB: a tree has no positions; the first selection of that name is taken for the place."""
        selected = re.search(rf"\.\??\s*{re.escape(field)}\b", self._source)
        self.found.append(marked(self._source, selected.start() if selected else 0, what))

    def _call(self, call: Call, scope: Mapping[str, Schema | None]) -> Schema | None:
        target = self.of(call.target, scope) if call.target is not None else None
        parts = macro_parts(call)
        if parts is None:
            for arg in call.args:
                self.of(arg, scope)
            return None
        names, bodies = parts
        inner = {**scope, **dict(zip(names, _variables(target, len(names)), strict=False))}
        for body in bodies:
            self.of(body, inner)
        return target if call.function == "filter" else None


def _values(schema: Schema) -> Schema | None:
    extra = schema.get("additionalProperties")
    return extra if isinstance(extra, Mapping) else None


def _variables(container: Schema | None, count: int) -> Iterator[Schema | None]:
    """Return the types of a macro's variables: items, or keys of a map, or (with two) index or key and then the
    value.
    """
    if container is None:
        yield from (None, None)
    elif "items" in container:
        yield from (None, container["items"]) if count == 2 else (container["items"],)
    else:
        yield from (_TEXT, _values(container))
