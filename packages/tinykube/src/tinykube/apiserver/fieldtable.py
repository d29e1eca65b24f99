"""The fields of every built-in kind: names, numbers and types, read from `fields.txt` when first needed.

Two readers: `protobuf` decodes the bodies that Go clients send, `typed` finds unknown fields and wrong types in JSON.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final

_SCALARS: Final = frozenset(
    (
        "string",
        "int",
        "double",
        "bool",
        "bytes",
        "time",
        "microtime",
        "duration",
        "quantity",
        "intstr",
        "raw",
        "strings",
    )
)


class SchemaField:
    """One field. `shape` is "", "[]" or "{}"; `scalar` is empty where `message` is set.

    `instead`: what may stand in the message's place: "bool", "list" or "strings"; else "". `inline`: the message's
    fields stand in the parent itself. `pointer`: absent and zero differ. `always`: written even when it is zero.
    """

    __slots__ = ("_message", "always", "inline", "instead", "name", "pointer", "scalar", "shape")

    def __init__(self, name: str, how: str, package: str) -> None:
        self.name = name
        self.inline, self.pointer, self.always = how[0] == "^", how[0] == "*", how[0] == "!"
        how = how.lstrip("^*!")
        self.shape = how[:2] if how[:2] in ("[]", "{}") else ""
        how, _, self.instead = how.removeprefix(self.shape).partition("|")
        self.scalar = how if how in _SCALARS else ""
        self._message = "" if self.scalar else package + how if how[0] == "." else how

    @property
    def message(self) -> SchemaMessage:
        return table().messages[self._message]


class SchemaMessage:
    """A type: its fields by number as the wire has them, and by JSON name with inlined ones included."""

    __slots__ = ("_line", "_named", "_numbered", "name")

    def __init__(self, name: str, line: str) -> None:
        self.name = name
        self._line = line
        self._numbered: dict[int, SchemaField] | None = None
        self._named: dict[str, SchemaField] | None = None

    @property
    def numbered(self) -> dict[int, SchemaField]:
        if self._numbered is None:
            package = self.name.partition(".")[0]
            self._numbered = {}
            for text in self._line.split(", "):
                if text:
                    number, name, how = text.split(" ")
                    self._numbered[int(number)] = SchemaField(name, how, package)
        return self._numbered

    @property
    def named(self) -> dict[str, SchemaField]:
        if self._named is None:
            self._named = {}
            for field in self.numbered.values():
                if field.inline:
                    self._named.update(field.message.named)
                else:
                    self._named[field.name] = field
        return self._named


class FieldTable:
    """All messages by name, and the message of each `apiVersion kind`."""

    def __init__(self, text: str) -> None:
        self.messages: dict[str, SchemaMessage] = {}
        self._kinds: dict[str, str] = {}
        for line in text.splitlines():
            if line.startswith("#") or not line:
                continue
            kind, equals, name = line.partition(" = ")
            if equals:
                self._kinds[kind] = name
            else:
                name, _, fields = line.partition(":")
                self.messages[name] = SchemaMessage(name, fields.strip())

    def of(self, api_version: str, kind: str) -> SchemaMessage | None:
        """The message of a kind; delete options come with every group's version."""
        name = self._kinds.get(f"{api_version} {kind}") or self._kinds.get(f"* {kind}")
        return self.messages[name] if name else None


@cache
def table() -> FieldTable:
    return FieldTable(resources.files(__package__).joinpath("fields.txt").read_text("ascii"))
