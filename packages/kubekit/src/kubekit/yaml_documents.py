"""Bounded reading of YAML that users or tenants wrote.

libyaml's composer recurses in C: 100 kB of `[` end the process with a segmentation fault. Aliases let a text of 1 kB
stand for more objects than any memory has. PyYAML's constructors raise ValueError, KeyError, IndexError and
AttributeError for tagged scalars such as `!!int x`.

The parser's events are checked before any node is composed: their depth, and what aliases expand to. That costs a fifth
of the time of reading the text.

Invariants: as of `kubekit.documents`; DocumentError has line and column. A value never contains itself.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any, Final

import yaml

from kubekit.documents import LONGEST_FILE, MOST_DEPTH, DocumentError, decode_text, size_text

MOST_EXPANDED: Final = 1 << 20
"""The most that the aliases of one document may add: characters of scalars, and VALUE_BYTES for each value."""
LONGEST_NUMBER: Final = 400
"""Characters of a number; the largest float has 309 digits. Converting a number takes time by the square of them."""
MOST_DIRECTIVES: Final = 100
"""Lines that begin with `%`; libyaml compares each with all before."""
MOST_OTHER_KEYS: Final = 1000
"""Keys of one mapping that are no texts. Numbers can be chosen so that all have the same hash; texts cannot."""

VALUE_BYTES: Final = 16
"""A text has at most one value for each of these bytes of its limit; a value takes 13 microseconds, however short."""

_LONGEST_PROBLEM: Final = 200
_DIRECTIVE: Final = re.compile("(?:^|[\n\r\x85\u2028\u2029])%")
_TEXT: Final = "tag:yaml.org,2002:str"
_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_INT64: Final = range(-(1 << 63), 1 << 63)
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class BoundedLoader(_Base):  # type: ignore[misc]
    """PyYAML's safe loader whose constructors raise YAML errors only, with the place of the scalar."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node. Raises ConstructorError."""
        if node.tag in _NUMBERS and len(node.value) > LONGEST_NUMBER:
            raise yaml.constructor.ConstructorError(
                None, None, f"a number of more than {LONGEST_NUMBER} characters", node.start_mark
            )
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except (ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"this is no {kind}", node.start_mark) from error

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the dict of a mapping. Raises ConstructorError."""
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)  # the keys that `<<` takes from other mappings count too
            others = [key for key, _ in node.value if key.tag != _TEXT] if len(node.value) > MOST_OTHER_KEYS else []
            if len(others) > MOST_OTHER_KEYS:
                problem = f"a mapping has more than {MOST_OTHER_KEYS} keys that are no texts"
                raise yaml.constructor.ConstructorError(None, None, problem, others[MOST_OTHER_KEYS].start_mark)
            node.value = self.with_keys(node.value)
        return super().construct_mapping(node, deep)

    def with_keys(self, pairs: list[tuple[yaml.Node, yaml.Node]]) -> list[tuple[yaml.Node, yaml.Node]]:
        """Return the nodes of a mapping's keys and values, the keys as this loader reads them."""
        return pairs


class PlainLoader(BoundedLoader):
    """A loader for what JSON can express, as Kubernetes reads YAML: times are text, `y` and `n` are true and false,
    keys that are numbers or booleans become text.

    Source: convertToJSONableObject of sigs.k8s.io/yaml 1.6.
    """

    bool_values: Final = {**_Base.bool_values, "y": True, "n": False}

    def with_keys(self, pairs: list[tuple[yaml.Node, yaml.Node]]) -> list[tuple[yaml.Node, yaml.Node]]:
        """Return the nodes of keys and values, the keys as text. Raises ConstructorError for other keys."""
        if all(key.tag == _TEXT for key, _ in pairs):
            return pairs
        # NB: as values of Python's, 1 and true were one key.
        return [(key if key.tag == _TEXT else self._as_text(key), value) for key, value in pairs]

    def _as_text(self, key: yaml.Node) -> yaml.Node:
        value = self.construct_object(key, deep=True)
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, float):
            text = float_text(value)
        elif isinstance(value, int) and value in _INT64:
            text = str(value)
        else:
            problem = f"a key may not be {key.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        return yaml.ScalarNode(_TEXT, text, key.start_mark, key.end_mark)


def float_text(value: float) -> str:
    """Return the shortest text of a number of 32 bits, with an exponent from 1e+06 on and below 0.0001.

    So Go's FormatFloat writes it for the format `g`.
    """
    if math.isnan(value):
        return ".nan"
    try:
        single = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        single = math.copysign(math.inf, value)
    if math.isinf(single):
        return ".inf" if single > 0 else "-.inf"
    scientific = next(
        text
        for digits in range(9)
        if struct.pack("f", float(text := f"{single:.{digits}e}")) == struct.pack("f", single)
    )
    mantissa, _, exponent = scientific.partition("e")
    if -4 <= int(exponent) < 6:
        return f"{float(scientific):.{max(0, len(mantissa.lstrip('-').replace('.', '')) - 1 - int(exponent))}f}"
    return scientific


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in BoundedLoader.yaml_implicit_resolvers.items()
}
PlainLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^[yYnN]$"), list("yYnN"))


def load_yaml(data: bytes | str, *, where: str = "", limit: int = LONGEST_FILE, plain: bool = False) -> Any:
    """Return the value of a text with one document; None for an empty text. Raises DocumentError.

    Args:
        where: the text's name for errors.
        limit: bytes; a longer text is refused.
        plain: timestamps stay texts.
    """
    text = check_yaml(data, where=where, limit=limit)
    try:
        return yaml.load(text, PlainLoader if plain else BoundedLoader)
    except yaml.YAMLError as error:
        raise yaml_error(error, where=where) from None


def load_all_yaml(data: bytes | str, *, where: str = "", limit: int = LONGEST_FILE, plain: bool = False) -> list[Any]:
    """Return the values of all documents of a text, None for an empty one. Raises DocumentError."""
    text = check_yaml(data, where=where, limit=limit)
    try:
        return list(yaml.load_all(text, PlainLoader if plain else BoundedLoader))
    except yaml.YAMLError as error:
        raise yaml_error(error, where=where) from None


def check_yaml(data: bytes | str, *, where: str = "", limit: int = LONGEST_FILE) -> str:
    """Return the text, which a loader can compose safely. Raises DocumentError, also for a syntax error."""
    text = decode_text(data, where=where) if isinstance(data, bytes) else data
    _, problem = scan_yaml(text, where=where, limit=limit)
    if problem is not None:
        raise problem
    return text


def scan_yaml(text: str, *, where: str = "", limit: int = LONGEST_FILE) -> tuple[int, DocumentError | None]:
    """Return how many documents of a text can be composed safely, and what is wrong with the next one."""
    if len(text) > limit:
        return 0, DocumentError(f"is longer than {size_text(limit)}", where=where)
    if text.count("%") > MOST_DIRECTIVES and len(_DIRECTIVE.findall(text)) > MOST_DIRECTIVES:
        return 0, DocumentError(f"has more than {MOST_DIRECTIVES} lines that begin with %", where=where)
    bounds, complete = _Bounds(limit // VALUE_BYTES), 0
    try:
        for event in yaml.parse(text, _Base):
            if problem := bounds.add(event):
                line, column = _place(event.start_mark)
                return complete, DocumentError(problem, where=where, line=line, column=column)
            complete += isinstance(event, yaml.DocumentEndEvent)
    except yaml.YAMLError as error:
        return complete, yaml_error(error, where=where)
    except UnicodeEncodeError as error:
        return 0, DocumentError(f"is no Unicode text: {error.reason}", where=where)
    return complete, None


def yaml_error(error: yaml.YAMLError, *, where: str = "") -> DocumentError:
    """Return an error of PyYAML as one with line and column."""
    if isinstance(error, yaml.MarkedYAMLError):
        line, column = _place(error.problem_mark or error.context_mark)
        what = ", ".join(part for part in (error.problem, error.context) if part) or "is invalid"
        return DocumentError(what[:_LONGEST_PROBLEM], where=where, line=line, column=column)
    if isinstance(error, yaml.reader.ReaderError):
        return DocumentError(f"has the character {error.character:#x}: {error.reason}", where=where)
    return DocumentError(str(error).partition("\n")[0][:_LONGEST_PROBLEM] or "is invalid", where=where)


def _place(mark: Any) -> tuple[int, int]:
    """Return line and column of a mark, both from 1; 0 without a mark."""
    return (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)


class _Bounds:
    """The depth of a stream of events, its values, and what its aliases expand to.

    A collection that is open is an item of `_open`: its anchor, and the weight of what is around it up to here.
    `_weights` has the weight of each anchor whose value is complete.
    """

    def __init__(self, most_values: int) -> None:
        self._most_values = most_values
        self._values = 0
        self._open: list[tuple[str | None, int]] = []
        self._weights: dict[str, int] = {}
        self._weight = 0
        self._expanded = 0

    def add(self, event: yaml.Event) -> str:
        """Take the next event; return what is wrong with it, "" for nothing."""
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = self._open.pop()
            weight, self._weight = self._weight, before
            self._end(anchor, weight)
            return ""
        self._values += 1
        if isinstance(event, yaml.ScalarEvent):
            self._end(event.anchor, VALUE_BYTES + len(event.value))
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open.append((event.anchor, self._weight))
            self._weight = VALUE_BYTES
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event.anchor)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._weights, self._expanded = {}, 0
        if len(self._open) > MOST_DEPTH:
            return f"is nested more than {MOST_DEPTH} deep"
        if self._expanded > MOST_EXPANDED:
            return f"has aliases that stand for more than {size_text(MOST_EXPANDED)} of text"
        if self._values > self._most_values:
            return f"has more than {self._most_values:,} values"
        return ""

    def _end(self, anchor: str | None, weight: int) -> None:
        self._weight += weight
        if anchor is not None:
            self._weights[anchor] = weight

    def _alias(self, anchor: str | None) -> None:
        if any(anchor == name for name, _ in self._open):
            self._expanded = MOST_EXPANDED + 1  # a value that contains itself has no end
            return
        weight = self._weights.get(anchor or "", 0)  # the composer reports an unknown anchor
        self._weight += weight
        self._expanded += weight
