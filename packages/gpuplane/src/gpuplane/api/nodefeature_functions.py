"""The functions of NodeFeatureRules' templates: Go's own, and those of Sprig that make texts of texts and lists.

In a pipeline the value comes last, so Sprig's functions take what they work on as the last argument. Those that read
the environment, the network, the clock or chance are left out: the same features must always make the same labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

from gpuplane.api.nodefeature_budget import MOST_VALUE
from gpuplane.api.regexps import compile_regexp

_LONG: Final = 65536  # the longest text that one call may make


def truth(value: Any) -> bool:
    """As Go's templates see it: empty and zero are false."""
    return bool(value)


def text_of(value: Any) -> str:
    """As Go prints it."""
    match value:
        case None:
            return "<no value>"
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case Mapping():
            return "map[" + " ".join(f"{text_of(key)}:{text_of(value[key])}" for key in sorted(value)) + "]"
        case list() | tuple():
            return "[" + " ".join(map(text_of, value)) + "]"
    return str(value)


def _whole(value: Any) -> int:
    """As Sprig's `int`: a text that is no number is 0."""
    try:
        return int(float(value)) if not isinstance(value, bool) else int(value)
    except (TypeError, ValueError):
        return 0


def _limited(count: Any) -> int:
    number = _whole(count)
    if number > _LONG:
        raise ValueError(f"{number} is too many")
    return number


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        if isinstance(value, (list, tuple, str)):
            if not isinstance(key, int) or not 0 <= key < len(value):
                raise ValueError(f"there is no entry {text_of(key)}")
            value = value[key]
        elif isinstance(value, Mapping) and key in value:
            value = value[key]
        else:
            raise ValueError(f"there is no {text_of(key)}")
    return value


def _slice(value: Any, start: int = 0, end: int | None = None) -> Any:
    stop = len(value) if end is None else end
    if not 0 <= start <= stop <= len(value):
        raise ValueError(f"there is no part {start} to {stop}")
    return value[start:stop]


def _and(*values: Any) -> Any:
    return next((value for value in values if not truth(value)), values[-1])


def _or(*values: Any) -> Any:
    return next((value for value in values if truth(value)), values[-1])


_VERB: Final = re.compile(r"%([-+0#]*)(\d{0,3})(?:\.(\d{1,3}))?([a-zA-Z%])")


def _printf(form: str, *values: Any) -> str:
    rest = list(values)

    def one(found: re.Match[str]) -> str:
        flags, width, digits, verb = found.groups()
        if verb == "%":
            return "%"
        if not rest:
            raise ValueError(f"no value is left for {found[0]}")
        value = rest.pop(0)
        dot = f".{digits}" if digits else ""
        match verb:
            case "d" | "x" | "X" | "o":
                return f"%{flags}{width}{verb}" % int(value)
            case "f" | "e" | "g":
                return f"%{flags}{width}{dot}{verb}" % float(value)
            case "s" | "v":
                return f"%{flags.replace('0', '')}{width}{dot}s" % text_of(value)
            case "q":
                return _quote(value)
            case "t":
                return text_of(bool(value))
        raise ValueError(f"{found[0]} is not understood")

    text = _VERB.sub(one, form)
    if rest:
        raise ValueError(f"{form!r} has no place for {text_of(rest[0])}")
    return text


def _quote(*values: Any) -> str:
    return " ".join('"' + text_of(value).replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values)


def _substr(start: int, end: int, text: str) -> str:
    return text[max(start, 0) : end if end >= 0 else None]


def _trunc(length: int, text: str) -> str:
    return text[:length] if length >= 0 else text[length:]


def _join(between: str, items: Any) -> str:
    if not isinstance(items, (list, tuple)):
        return text_of(items)
    if len(between) * len(items) > MOST_VALUE:
        raise ValueError("makes too much text")
    return between.join(map(text_of, items))


def _replace(old: str, new: str, text: str) -> str:
    if text.count(old) * len(new) > MOST_VALUE:
        raise ValueError("makes too much text")
    return text.replace(old, new)


def _unique(items: Sequence[Any]) -> list[Any]:
    # NB: not by comparing each with all before it: a list may have 65536 entries.
    first: dict[str, Any] = {}
    for item in items:
        first.setdefault(repr(item), item)
    return list(first.values())


def _pluck(name: str, *maps: Mapping[str, Any]) -> list[Any]:
    return [entry[name] for entry in maps if name in entry]


def _until(*numbers: Any) -> list[int]:
    return list(range(_limited(numbers[0])))


def _divided(left: Any, right: Any) -> int:
    a, b = _whole(left), _whole(right)
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _compared(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def call(left: Any, right: Any) -> bool:
        if isinstance(left, str) is not isinstance(right, str):
            raise ValueError("a text and a number cannot be compared")
        return compare(left, right)

    return call


def _equal(first: Any, *others: Any) -> bool:
    if not others:
        raise ValueError("two values are needed")
    return any(first == other and isinstance(first, str) is isinstance(other, str) for other in others)


_DECIMAL: Final = re.compile(r"[+-]?\d+")

REGEXP_FUNCTIONS: Final = frozenset(("regexMatch", "regexReplaceAll", "regexFind"))
"""Functions whose first argument is a regular expression."""

FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    # Go's own
    "and": _and,
    "or": _or,
    "not": lambda value: not truth(value),
    "len": len,
    "index": _index,
    "slice": _slice,
    "eq": _equal,
    "ne": lambda left, right: not _equal(left, right),
    "lt": _compared(lambda a, b: a < b),
    "le": _compared(lambda a, b: a <= b),
    "gt": _compared(lambda a, b: a > b),
    "ge": _compared(lambda a, b: a >= b),
    "print": lambda *values: "".join(map(text_of, values)),
    "println": lambda *values: " ".join(map(text_of, values)) + "\n",
    "printf": _printf,
    # texts
    "trim": str.strip,
    "trimAll": lambda cut, text: text.strip(cut),
    "trimPrefix": lambda start, text: text.removeprefix(start),
    "trimSuffix": lambda end, text: text.removesuffix(end),
    "upper": str.upper,
    "lower": str.lower,
    "title": str.title,
    "nospace": lambda text: "".join(text.split()),
    "substr": _substr,
    "trunc": _trunc,
    "repeat": lambda count, text: text * (_limited(count * len(text)) // max(1, len(text))),
    "replace": _replace,
    "contains": lambda part, text: part in text,
    "hasPrefix": lambda start, text: text.startswith(start),
    "hasSuffix": lambda end, text: text.endswith(end),
    "quote": _quote,
    "squote": lambda *values: " ".join(f"'{text_of(value)}'" for value in values),
    "cat": lambda *values: " ".join(map(text_of, values)),
    "toString": text_of,
    "splitList": lambda between, text: text.split(between),
    "split": lambda between, text: {f"_{index}": part for index, part in enumerate(text.split(between))},
    "join": _join,
    "regexMatch": lambda pattern, text: compile_regexp(pattern).matches(text),
    "regexReplaceAll": lambda pattern, text, by: compile_regexp(pattern).replace(text, by),
    "regexFind": lambda pattern, text: compile_regexp(pattern).find(text),
    # lists and maps
    "list": lambda *values: list(values),
    "first": lambda items: items[0] if items else None,
    "last": lambda items: items[-1] if items else None,
    "rest": lambda items: list(items[1:]),
    "initial": lambda items: list(items[:-1]),
    "reverse": lambda items: list(reversed(items)),
    "uniq": _unique,
    "sortAlpha": lambda items: sorted(map(text_of, items)),
    "has": lambda item, items: item in items,
    "append": lambda items, item: [*items, item],
    "concat": lambda *lists: [item for items in lists for item in items],
    "until": _until,
    "dict": lambda *pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)),
    "get": lambda entry, name: entry.get(name, ""),
    "hasKey": lambda entry, name: name in entry,
    "keys": lambda *maps: [key for entry in maps for key in sorted(entry)],
    "values": lambda entry: [entry[key] for key in sorted(entry)],
    "pluck": _pluck,
    # choices
    "default": lambda otherwise, value=None: value if truth(value) else otherwise,
    "empty": lambda value: not truth(value),
    "coalesce": lambda *values: next((value for value in values if truth(value)), None),
    "ternary": lambda yes, no, condition: yes if condition else no,
    # numbers
    "int": _whole,
    "int64": _whole,
    "atoi": lambda text: int(text) if _DECIMAL.fullmatch(text) else 0,
    "add": lambda *values: sum(map(_whole, values)),
    "add1": lambda value: _whole(value) + 1,
    "sub": lambda left, right: _whole(left) - _whole(right),
    "mul": lambda *values: reduce(lambda a, b: a * b, map(_whole, values), 1),
    "div": _divided,
    "mod": lambda left, right: _whole(left) - _divided(left, right) * _whole(right),
    "max": lambda *values: max(map(_whole, values)),
    "min": lambda *values: min(map(_whole, values)),
}
