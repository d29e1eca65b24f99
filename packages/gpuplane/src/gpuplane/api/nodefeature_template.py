"""Templates of NodeFeatureRules: the part of Go's text/template that rules are written in, and the usual functions.

Known: text, `{{ }}` with trim marks, comments, `range`, `with`, `if`, `else if`, `else`, `end`, variables, fields,
literals, parentheses, pipelines, Go's own functions, and those of Sprig that make texts of lists. Everything else
(`define`, `template`, methods) is refused when the template is read, with the line: a rule that half works would be
worse. A field that is absent is an error, as node feature discovery has it.

Source of the language: the documentation of Go's package text/template; of the functions, also the Sprig function
reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from gpuplane.api.nodefeature_budget import TemplateBudget
from gpuplane.api.nodefeature_functions import FUNCTIONS, REGEXP_FUNCTIONS, text_of, truth
from gpuplane.api.regexps import compile_regexp

MAX_BYTES: Final = 65536
_DEPTH: Final = 50

_ACTION: Final = re.compile(r"\{\{(?P<left>- )?(?P<body>.*?)(?P<right> -)?\}\}", re.DOTALL)
_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<string>"(?:\\.|[^"\\\n])*"|`[^`]*`)
    | (?P<number>[-+]?\d+(?:\.\d+)?)(?![\w.])
    | (?P<variable>\$\w*)
    | (?P<field>(?:\.\w+)+)
    | (?P<dot>\.)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<mark>:=|[()|,=])
    )""",
    re.VERBOSE,
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}


class TemplateError(ValueError):
    """A template that cannot be read or expanded; `line` counts from 1, 0: not in one place."""

    def __init__(self, what: str, line: int = 0) -> None:
        super().__init__(what)
        self.line = line


class _Token(msgspec.Struct, frozen=True):
    kind: str
    text: str


_BUDGET: Final = ""  # no variable has this name
Scope = dict[str, list[Any]]
"""Variable -> a cell with its value: `=` inside a range changes the variable outside. `_BUDGET` -> the budget."""
Evaluate = Callable[[Any, Scope], Any]
Render = Callable[[Any, Scope, list[str]], None]


class FeatureTemplate(msgspec.Struct, frozen=True):
    """A template that was read."""

    render: Render

    def expand(self, data: Any) -> str:
        """The text for `data`. Raises TemplateError."""
        out: list[str] = []
        try:
            self.render(data, {"$": [data], _BUDGET: [TemplateBudget()]}, out)
        except TemplateError:
            raise
        except (ValueError, TypeError, ArithmeticError, LookupError) as error:
            raise TemplateError(str(error) or type(error).__name__) from error
        return "".join(out)


def expand_pairs(template: FeatureTemplate, data: Any) -> dict[str, str]:
    """The `name=value` lines that a template makes; empty lines are skipped. Raises TemplateError."""
    pairs = {}
    for line in map(str.strip, template.expand(data).splitlines()):
        name, equals, value = line.partition("=")
        if line and not equals:
            raise TemplateError(f"expands to the line {line!r}, which is not name=value")
        if line:
            pairs[name] = value
    return pairs


def parse(source: str) -> FeatureTemplate:
    """Read a template. Raises TemplateError."""
    if len(source.encode()) > MAX_BYTES:
        raise TemplateError(f"is longer than {MAX_BYTES} bytes")
    parser = _Parser(source)
    render, _ = parser.block(set(), 0)
    return FeatureTemplate(render)


def _pieces(source: str) -> Iterator[tuple[str, str, int]]:
    """("text" | "action", content, line) with the white space of trim marks taken away."""
    place, trim = 0, False
    for found in _ACTION.finditer(source):
        text = source[place : found.start()]
        text = text.lstrip() if trim else text
        yield "text", text.rstrip() if found["left"] else text, 0
        body, line = found["body"].strip(), source.count("\n", 0, found.start()) + 1
        if not (body.startswith("/*") and body.endswith("*/")):
            yield "action", body, line
        place, trim = found.end(), bool(found["right"])
    rest = source[place:]
    if "{{" in rest:
        raise TemplateError("{{ is never closed", source.count("\n", 0, place + rest.index("{{")) + 1)
    yield "text", rest.lstrip() if trim else rest, 0


def _tokens(body: str, line: int) -> list[_Token]:
    found: list[_Token] = []
    place = 0
    while place < len(body):
        match = _TOKEN.match(body, place)
        if match is None:
            if not body[place:].strip():
                break
            raise TemplateError(f"{body[place:].strip()[:20]!r} is not understood", line)
        kind = match.lastgroup or ""
        # A token that touches the one before is its field: (x).y, $x.y
        joined = kind == "field" and place == match.start("field") and found and found[-1].text[-1:] not in "|,="
        found.append(_Token("chain" if joined and found[-1].text != "(" else kind, match[kind]))
        place = match.end()
    return found


class _Parser:
    """Recursive descent over the pieces; each part becomes a function."""

    def __init__(self, source: str) -> None:
        self._pieces = list(_pieces(source))
        self._next = 0

    def block(self, ends: set[str], depth: int) -> tuple[Render, tuple[str, list[_Token], int]]:
        """Everything up to one of the words `ends`, and the action that it stands in; the whole rest for none."""
        if depth > _DEPTH:
            raise TemplateError(f"nested more than {_DEPTH} deep", self._pieces[self._next - 1][2])
        parts: list[Render] = []
        start = self._pieces[self._next - 1][2] if self._next else 1
        while self._next < len(self._pieces):
            kind, content, line = self._pieces[self._next]
            self._next += 1
            if kind == "text":
                if content:
                    parts.append(_literal(content))
                continue
            tokens = _tokens(content, line)
            word = tokens[0].text if tokens and tokens[0].kind == "name" else ""
            if word in ("end", "else"):
                if word not in ends:
                    raise TemplateError(f"{word} without a beginning", line)
                return _sequence(parts), (word, tokens[1:], line)
            if word in ("define", "template", "block", "break", "continue"):
                raise TemplateError(f"{word} is not supported", line)
            if word in ("range", "with", "if"):
                parts.append(self._control(word, tokens[1:], line, depth))
            else:
                parts.append(_output(tokens, line))
        if ends:
            raise TemplateError("there is no end to it", start)
        return _sequence(parts), ("", [], 0)

    def _control(self, word: str, tokens: list[_Token], line: int, depth: int) -> Render:
        names, tokens = _declared(tokens, line, 2 if word == "range" else 1)
        pipe = _pipeline(tokens, line)
        body, (end, rest, where) = self.block({"end", "else"}, depth + 1)
        otherwise: Render = _literal("")
        if end == "else" and rest:
            if rest[0].text != word or word == "range":
                raise TemplateError(f"else {rest[0].text} does not continue {word}", where)
            otherwise = self._control(word, rest[1:], where, depth + 1)
        elif end == "else":
            otherwise, _ = self.block({"end"}, depth + 1)
        if word == "range":
            return _range(names, pipe, body, otherwise)
        return _choice(word, names, pipe, body, otherwise)


def _literal(text: str) -> Render:
    return lambda data, scope, out: _write(text, scope, out)


def _write(text: str, scope: Scope, out: list[str]) -> None:
    scope[_BUDGET][0].write(text)
    out.append(text)


def _sequence(parts: list[Render]) -> Render:
    def render(data: Any, scope: Scope, out: list[str]) -> None:
        for part in parts:
            part(data, scope, out)

    return render


def _range(names: list[str], pipe: Evaluate, body: Render, otherwise: Render) -> Render:
    def render(data: Any, scope: Scope, out: list[str]) -> None:
        value = pipe(data, scope)
        if isinstance(value, Mapping):
            items: list[tuple[Any, Any]] = sorted(value.items())
        elif isinstance(value, int) and not isinstance(value, bool):
            items = [(number, number) for number in range(min(value, MAX_BYTES))]
        elif value is None or isinstance(value, (list, tuple)):
            items = list(enumerate(value or ()))
        else:
            raise TemplateError(f"range needs a list, not {text_of(value)!r}")
        if not items:
            otherwise(data, dict(scope), out)
        for key, item in items:
            scope[_BUDGET][0].spend(steps=1 + len(scope) // 16)
            inner = dict(scope)
            for name, bound in zip(names, (key, item) if len(names) == 2 else (item,), strict=False):
                inner[name] = [bound]
            body(item, inner, out)

    return render


def _choice(word: str, names: list[str], pipe: Evaluate, body: Render, otherwise: Render) -> Render:
    def render(data: Any, scope: Scope, out: list[str]) -> None:
        value = pipe(data, scope)
        inner = dict(scope) | {name: [value] for name in names}
        if truth(value):
            body(value if word == "with" else data, inner, out)
        else:
            otherwise(data, inner, out)

    return render


def _output(tokens: list[_Token], line: int) -> Render:
    names, rest = _declared(tokens, line, 1)
    assign = len(rest) > 1 and rest[0].kind == "variable" and rest[1].text == "="
    if assign:
        names, rest = [rest[0].text], rest[2:]
    pipe = _pipeline(rest, line)

    def render(data: Any, scope: Scope, out: list[str]) -> None:
        value = pipe(data, scope)
        if assign and names[0] not in scope:
            raise TemplateError(f"there is no variable {names[0]}", line)
        if assign:
            scope[names[0]][0] = value
        elif names:
            scope[names[0]] = [value]
        else:
            _write(text_of(value), scope, out)

    return render


def _declared(tokens: list[_Token], line: int, most: int) -> tuple[list[str], list[_Token]]:
    """The variables before `:=`, and what comes after it."""
    marks = [index for index, token in enumerate(tokens) if token.text == ":=" and token.kind == "mark"]
    if not marks:
        return [], tokens
    names = [token.text for token in tokens[: marks[0]] if token.kind == "variable"]
    commas = [token for token in tokens[: marks[0]] if token.text == ","]
    if not 0 < len(names) <= most or len(names) + len(commas) != marks[0] or "$" in names:
        raise TemplateError("the text before := is no variable", line)
    return names, tokens[marks[0] + 1 :]


def _pipeline(tokens: list[_Token], line: int) -> Evaluate:
    """Commands joined by `|`; each one's value is the last argument of the next."""
    commands: list[list[_Token]] = [[]]
    deep = 0
    for token in tokens:
        if token.kind == "mark" and token.text in "()":
            deep += 1 if token.text == "(" else -1
            if deep < 0 or deep > _DEPTH:
                raise TemplateError("parentheses do not match" if deep < 0 else "nested too deep", line)
        if token.kind == "mark" and token.text == "|" and not deep:
            commands.append([])
        else:
            commands[-1].append(token)
    if deep:
        raise TemplateError("parentheses do not match", line)
    steps = [_command(command, line, piped=bool(index)) for index, command in enumerate(commands)]

    def evaluate(data: Any, scope: Scope) -> Any:
        value: Any = None
        for index, step in enumerate(steps):
            value = step(data, scope, [value] if index else [])
        return value

    return evaluate


def _command(tokens: list[_Token], line: int, *, piped: bool) -> Callable[[Any, Scope, list[Any]], Any]:
    if not tokens:
        raise TemplateError("a value is missing", line)
    first, rest = tokens[0], tokens[1:]
    constants = ("true", "false", "nil")
    if first.kind == "name" and first.text not in constants:
        known = FUNCTIONS.get(first.text)
        if known is None:
            raise TemplateError(f"there is no function {first.text}", line)
        if rest and rest[0].kind == "chain":
            raise TemplateError(f"{first.text} has no field {rest[0].text}", line)
        if first.text in REGEXP_FUNCTIONS and rest and rest[0].kind == "string":
            _check_regexp(first.text, _unquoted(rest[0].text), line)
        arguments = _operands(rest, line)
        function = known

        def call(data: Any, scope: Scope, before: list[Any]) -> Any:
            try:
                values = [*(argument(data, scope) for argument in arguments), *before]
                scope[_BUDGET][0].spend(values)
                result = function(*values)
                scope[_BUDGET][0].spend([result])
            except (TypeError, AttributeError) as error:
                raise TemplateError(f"{first.text} cannot take these arguments", line) from error
            except (ValueError, ArithmeticError, LookupError) as error:
                if isinstance(error, TemplateError):
                    raise
                raise TemplateError(f"{first.text}: {error}", line) from error
            return result

        return call
    operands = _operands(tokens, line)
    if len(operands) > 1 or piped:
        raise TemplateError(f"{first.text} is no function", line)
    return lambda data, scope, before: operands[0](data, scope)


def _check_regexp(function: str, expression: str, line: int) -> None:
    try:
        compile_regexp(expression)
    except ValueError as error:
        raise TemplateError(f"{function}: {expression[:40]!r} is no regular expression: {error}", line) from error


def _operands(tokens: list[_Token], line: int) -> list[Evaluate]:
    found: list[Evaluate] = []
    place = 0
    while place < len(tokens):
        token = tokens[place]
        place += 1
        if token.text == "(" and token.kind == "mark":
            deep, start = 1, place
            while deep:
                deep += {"(": 1, ")": -1}.get(tokens[place].text, 0) if tokens[place].kind == "mark" else 0
                place += 1
            value = _pipeline(tokens[start : place - 1], line)
        else:
            value = _operand(token, line)
        while place < len(tokens) and tokens[place].kind == "chain":
            value = _fields(value, tokens[place].text, line)
            place += 1
        found.append(value)
    return found


def _operand(token: _Token, line: int) -> Evaluate:
    constant: Any
    match token.kind:
        case "dot":
            return lambda data, scope: data
        case "field":
            return _fields(lambda data, scope: data, token.text, line)
        case "variable":
            return _variable(token.text, line)
        case "string":
            constant = _unquoted(token.text)
        case "number":
            constant = float(token.text) if "." in token.text else int(token.text)
        case "name" if token.text in ("true", "false", "nil"):
            constant = {"true": True, "false": False}.get(token.text)
        case _:
            raise TemplateError(f"{token.text} is out of place", line)
    return lambda data, scope: constant


def _variable(name: str, line: int) -> Evaluate:
    def evaluate(data: Any, scope: Scope) -> Any:
        if name not in scope:
            raise TemplateError(f"there is no variable {name}", line)
        return scope[name][0]

    return evaluate


def _fields(base: Evaluate, path: str, line: int) -> Evaluate:
    names = path.strip(".").split(".")

    def evaluate(data: Any, scope: Scope) -> Any:
        value = base(data, scope)
        for name in names:
            if not isinstance(value, Mapping) or name not in value:
                raise TemplateError(f"there is no {name} in {path}", line)
            value = value[name]
        return value

    return evaluate


def _unquoted(text: str) -> str:
    if text.startswith("`"):
        return text[1:-1]
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text[1:-1])
