"""CEL source to a syntax tree (https://github.com/google/cel-spec, the grammar of its language definition).

Includes the optional syntax (`a.?b`, `a[?b]`, `[?x]`, `{?"k": v}`) that Kubernetes switches on. A message
(`Object.spec{replicas: 1}`), which policies that change objects construct, is a map whose keys are its fields' names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


class CelSyntaxError(ValueError):
    """The source does not parse; the message has the position."""


@dataclass(frozen=True, slots=True)
class Literal:
    value: Any


@dataclass(frozen=True, slots=True)
class Ident:
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    operand: Node
    field: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    operand: Node
    index: Node
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A function, a method (`target` set) or an operator (`_+_`, `!_`, `_?_:_`)."""

    function: str
    args: tuple[Node, ...]
    target: Node | None = None


@dataclass(frozen=True, slots=True)
class ListLiteral:
    items: tuple[tuple[bool, Node], ...]  # (optional, item)


@dataclass(frozen=True, slots=True)
class MapLiteral:
    entries: tuple[tuple[bool, Node, Node], ...]  # (optional, key, value)


@dataclass(frozen=True, slots=True)
class Message:
    """The construction of a message: the name of its type, such as `Object.spec`, and its fields."""

    name: str
    fields: MapLiteral


Node = Literal | Ident | Select | Index | Call | ListLiteral | MapLiteral | Message


def located(source: str, name: str, what: str) -> CelSyntaxError:
    """An error at the first place of a name that is no field, with the line of the source that has it."""
    found = re.search(rf"(?<![\w.]){re.escape(name)}\b|\b{re.escape(name)}(?=\()", source)
    return CelSyntaxError(marked(source, found.start() if found else 0, what))


def marked(source: str, at: int, what: str) -> str:
    """The message of an error at a position of a source, with its line and a mark below it."""
    start = source.rfind("\n", 0, at) + 1
    line, column = source.count("\n", 0, at) + 1, at - start
    text = source[start:].partition("\n")[0]
    return f"ERROR: <input>:{line}:{column + 1}: {what}\n | {text}\n | {'.' * column}^"


class UInt(int):
    """An unsigned literal; behaves as a number, differs in `type()`."""


_TOKEN = re.compile(
    r"""
    (?P<space>(?:\s|//[^\n]*)+)
  | (?P<string>(?:[rR]?[bB]|[bB]?[rR])?(?:\"\"\"(?s:.*?)(?<!\\)\"\"\"|'''(?s:.*?)(?<!\\)'''
        |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
  | (?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
  | (?P<int>(?:0x[0-9a-fA-F]+|\d+)[uU]?)
  | (?P<ident>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<quoted>`[^`\n]+`)
  | (?P<op>\|\||&&|==|!=|<=|>=|\.\?|\[\?|[-+*/%<>!?:.,()\[\]{}])
    """,
    re.VERBOSE,
)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL)
_RELATIONS = ("==", "!=", "<", "<=", ">", ">=", "in")


def parse(source: str) -> Node:
    """The tree of one expression. Raises CelSyntaxError."""
    try:
        return _Parser(source).parse()
    except RecursionError:
        raise CelSyntaxError("expression nested too deeply") from None


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = list(_tokens(source))
        self._at = 0

    def parse(self) -> Node:
        node = self._expression()
        if self._peek() != "":
            raise self._error(f"unexpected {self._peek()!r}")
        return node

    def _error(self, what: str) -> CelSyntaxError:
        position = self._tokens[self._at][2]
        line = self._source.count("\n", 0, position) + 1
        column = position - (self._source.rfind("\n", 0, position) + 1)
        return CelSyntaxError(f"ERROR: <input>:{line}:{column + 1}: Syntax error: {what}")

    def _peek(self) -> str:
        kind, text, _ = self._tokens[self._at]
        return text if kind in ("op", "ident", "end") else kind

    def _next(self) -> tuple[str, str]:
        kind, text, _ = self._tokens[self._at]
        self._at += 1
        return kind, text

    def _take(self, text: str) -> bool:
        if self._tokens[self._at][0] in ("op", "ident") and self._tokens[self._at][1] == text:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._error(f"missing {text!r} at {self._peek() or '<EOF>'!r}")

    def _expression(self) -> Node:
        node = self._binary(0)
        if self._take("?"):
            yes = self._binary(0)
            self._expect(":")
            node = Call("_?_:_", (node, yes, self._expression()))
        return node

    _LEVELS = (("||",), ("&&",), _RELATIONS, ("+", "-"), ("*", "/", "%"))

    def _binary(self, level: int) -> Node:
        if level == len(self._LEVELS):
            return self._unary()
        node = self._binary(level + 1)
        while self._peek() in self._LEVELS[level]:
            _, operator = self._next()
            node = Call(f"_{operator}_", (node, self._binary(level + 1)))
        return node

    def _unary(self) -> Node:
        if self._take("!"):
            return Call("!_", (self._unary(),))
        if self._take("-"):
            operand = self._unary()
            if isinstance(operand, Literal) and type(operand.value) in (int, float):
                return Literal(-operand.value)
            return Call("-_", (operand,))
        return self._member()

    def _member(self) -> Node:
        node = self._primary()
        while True:
            if self._take("."):
                name = self._field_name()
                if self._take("("):
                    node = Call(name, self._arguments(")"), node)
                else:
                    node = Select(node, name)
            elif self._take(".?"):
                node = Select(node, self._field_name(), optional=True)
            elif self._take("["):
                node = self._index(node, optional=False)
            elif self._take("[?"):
                node = self._index(node, optional=True)
            elif self._peek() == "{" and (name := _qualified_name(node)):
                self._take("{")
                node = Message(name, self._map(fields=True))
            else:
                return node

    def _index(self, node: Node, *, optional: bool) -> Node:
        index = self._expression()
        self._expect("]")
        return Index(node, index, optional)

    def _field_name(self) -> str:
        kind, text = self._next()
        if kind == "quoted":
            return text[1:-1]
        if kind != "ident":
            self._at -= 1
            raise self._error(f"a field name is missing at {text or '<EOF>'!r}")
        return text

    def _arguments(self, end: str) -> tuple[Node, ...]:
        args: list[Node] = []
        while not self._take(end):
            if args:
                self._expect(",")
            args.append(self._expression())
        return tuple(args)

    def _primary(self) -> Node:
        if self._take("("):
            node = self._expression()
            self._expect(")")
            return node
        if self._take("["):
            return self._list()
        if self._take("[?"):
            self._at -= 1
            self._tokens[self._at] = ("op", "?", self._tokens[self._at][2] + 1)
            return self._list()
        if self._take("{"):
            return self._map()
        self._take(".")
        kind, text = self._next()
        if kind == "string":
            return Literal(_string(text))
        if kind == "float":
            return Literal(float(text))
        if kind == "int":
            unsigned = text[-1] in "uU"
            number = int(text.rstrip("uU"), 0 if text.startswith("0x") else 10)
            return Literal(UInt(number) if unsigned else number)
        if kind == "ident":
            if text in ("true", "false", "null"):
                return Literal({"true": True, "false": False, "null": None}[text])
            if self._take("("):
                return Call(text, self._arguments(")"))
            return Ident(text)
        self._at -= 1
        raise self._error(f"unexpected {text or '<EOF>'!r}")

    def _list(self) -> Node:
        items: list[tuple[bool, Node]] = []
        while not self._take("]"):
            if items:
                self._expect(",")
                if self._take("]"):
                    break
            optional = self._take("?")
            items.append((optional, self._expression()))
        return ListLiteral(tuple(items))

    def _map(self, *, fields: bool = False) -> MapLiteral:
        entries: list[tuple[bool, Node, Node]] = []
        while not self._take("}"):
            if entries:
                self._expect(",")
                if self._take("}"):
                    break
            optional = self._take("?")
            key = Literal(self._field_name()) if fields else self._expression()
            self._expect(":")
            entries.append((optional, key, self._expression()))
        return MapLiteral(tuple(entries))


def _qualified_name(node: Node) -> str:
    """The dotted name that a node is, empty for any other node."""
    match node:
        case Ident(name):
            return name
        case Select(operand, field, False) if outer := _qualified_name(operand):
            return f"{outer}.{field}"
    return ""


def _tokens(source: str) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = []
    at = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            raise CelSyntaxError(f"ERROR: <input>:1:{at + 1}: Syntax error: token recognition error at {source[at]!r}")
        kind = match.lastgroup or "op"
        if kind != "space":
            found.append((kind, match.group(), at))
        at = match.end()
    found.append(("end", "", len(source)))
    return found


def _string(text: str) -> str | bytes:
    quote_at = min(text.find(q) for q in "'\"" if q in text)
    prefix, body = text[:quote_at].lower(), text[quote_at:]
    width = 3 if body[:3] in ('"""', "'''") and len(body) >= 6 else 1
    body = body[width:-width]
    if "r" not in prefix:
        body = _ESCAPE.sub(_unescape, body)
    return body.encode() if "b" in prefix else body


def _unescape(match: re.Match[str]) -> str:
    if match[5] is not None:
        return _ESCAPES.get(match[5], match[5])
    if match[4] is not None:
        return chr(int(match[4], 8))
    return chr(int(match[1] or match[2] or match[3], 16))
