"""The functions of CEL: the standard ones, the string, list, set, math and optional extensions, regex and
lists, as far as Kubernetes 1.34 offers them to rules. `kubernetes.py` has the rest.

A function raises CelError, or lets a TypeError or ValueError through, which the caller turns into one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import cmp_to_key
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

from kubekit.api import linear_regex
from kubekit.api.durations import format_time, parse_time
from kubekit.api.formats import go_duration
from kubekit.cel import authorizer, kubernetes
from kubekit.cel.kubernetes import INT_MAX, INT_MIN, compare
from kubekit.cel.syntax import UInt
from kubekit.cel.values import (
    ABSENT,
    CelError,
    CelType,
    OptionalValue,
    equal,
    is_number,
    less,
    some,
    type_name,
)


def _overload() -> CelError:
    return CelError("no such overload")


# -- arithmetic ---------------------------------------------------------------------------------------------------
def _ranged(value: Any) -> Any:
    if type(value) is int and not INT_MIN <= value <= INT_MAX:
        raise CelError("integer overflow")
    return value


def _same_numbers(left: Any, right: Any) -> None:
    if not is_number(left) or not is_number(right) or isinstance(left, float) != isinstance(right, float):
        raise _overload()


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, datetime) and isinstance(right, timedelta):
        return left + right
    if isinstance(left, timedelta) and isinstance(right, (timedelta, datetime)):
        return left + right
    if type(left) is type(right) and isinstance(left, (str, bytes, list)):
        return left + right
    _same_numbers(left, right)
    return _ranged(left + right)


def _subtract(left: Any, right: Any) -> Any:
    if isinstance(left, (datetime, timedelta)) and isinstance(right, (datetime, timedelta)):
        return left - right  # type: ignore[operator]  # a duration less a time is a TypeError: no such overload
    _same_numbers(left, right)
    return _ranged(left - right)


def _multiply(left: Any, right: Any) -> Any:
    _same_numbers(left, right)
    return _ranged(left * right)


def _divide(left: Any, right: Any) -> Any:
    _same_numbers(left, right)
    if isinstance(left, float):
        if right == 0:
            return float("nan") if left == 0 or left != left else float("inf") * (1 if left > 0 else -1)
        return left / right
    if right == 0:
        raise CelError("division by zero")
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


def _modulo(left: Any, right: Any) -> Any:
    _same_numbers(left, right)
    if isinstance(left, float):
        raise _overload()
    if right == 0:
        raise CelError("modulus by zero")
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def _negate(value: Any) -> Any:
    if not is_number(value):
        raise _overload()
    return _ranged(-value)


def _in(item: Any, container: Any) -> bool:
    if isinstance(container, dict):
        return item in container
    if isinstance(container, list):
        return any(equal(item, member) for member in container)
    raise _overload()


# -- conversions --------------------------------------------------------------------------------------------------
def _to_int(value: Any) -> int:
    if isinstance(value, bool):
        raise _overload()
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, timedelta):
        return int(value.total_seconds() * 10**9)
    if isinstance(value, (int, float, str)):
        return int(_ranged(int(value)))
    raise _overload()


def _to_string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value == int(value) and abs(value) < 1e21 else repr(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, (list, dict, OptionalValue)) or value is None:
        raise _overload()
    return str(value)


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "True": True, "TRUE": True, "t": True, "1": True}
    known |= {"false": False, "False": False, "FALSE": False, "f": False, "0": False}
    if value not in known:
        raise CelError("type conversion error from 'string' to 'bool'")
    return known[value]


def _size(value: Any) -> int:
    if not isinstance(value, (str, bytes, list, dict)):
        raise _overload()
    return len(value)


def _duration(value: Any) -> timedelta:
    return value if isinstance(value, timedelta) else go_duration(value)


def _timestamp(value: Any) -> datetime:
    return value if isinstance(value, datetime) else parse_time(value)


def _in_zone(moment: datetime, zone: str | None) -> datetime:
    if zone is None:
        return moment
    if match := re.fullmatch(r"([+-]?)(\d{1,2}):(\d{2})", zone):
        shift = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return moment + (-shift if match[1] == "-" else shift)
    return moment.astimezone(ZoneInfo(zone))


def _part(
    of_time: Callable[[datetime], int], seconds_per: int = 0, modulo: int = 0
) -> Callable[[Any, str | None], int]:
    def get(value: Any, zone: str | None = None) -> int:
        if isinstance(value, timedelta):
            if not seconds_per:
                raise _overload()
            whole = int(value.total_seconds() // seconds_per)
            return whole % modulo if modulo else whole
        return of_time(_in_zone(value, zone))

    return get


# -- strings ------------------------------------------------------------------------------------------------------
def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _overload()
    return value


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    found = linear_regex.find(pattern, text)
    return found if limit < 0 else found[:limit]


def _index_of(value: Any, item: Any, start: int = 0) -> int:
    if isinstance(value, list):
        return next((i for i, member in enumerate(value) if equal(member, item)), -1)
    return _string(value).find(_string(item), start)


def _last_index_of(value: Any, item: Any, end: int | None = None) -> int:
    if isinstance(value, list):
        return next((i for i in range(len(value) - 1, -1, -1) if equal(value[i], item)), -1)
    return _string(value).rfind(_string(item), 0, None if end is None else end + len(item))


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    if not 0 <= start <= stop <= len(text):
        raise CelError(f"index out of range: {start}")
    return text[start:stop]


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise CelError(f"index out of range: {index}")
    return text[index : index + 1]


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if separator == "":
        letters = list(text)
        return letters if limit < 0 or limit >= len(letters) else [*letters[: limit - 1], text[limit - 1 :]]
    return text.split(separator, limit - 1 if limit > 0 else -1)


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    return text.replace(old, new, limit)


def _reverse(value: Any) -> Any:
    if not isinstance(value, (str, list)):
        raise _overload()
    return value[::-1]


_MOST_DIGITS, _LONGEST_RANGE = 1000, 100_000  # so that a user's expression does not fill the memory


def _range(count: int) -> list[int]:
    if count > _LONGEST_RANGE:
        raise CelError(f"a range of more than {_LONGEST_RANGE} numbers")
    return list(range(count))


def _format(template: str, args: list[Any]) -> str:
    rest = iter(args)

    def one(match: re.Match[str]) -> str:
        if match[2] == "%":
            return "%"
        try:
            value = next(rest)
        except StopIteration:
            raise CelError(f"index {len(args)} out of range") from None
        precision = int(match[1][1:6]) if match[1] else 6
        if precision > _MOST_DIGITS:
            raise CelError(f"precision of more than {_MOST_DIGITS} digits")
        match match[2]:
            case "s":
                return _shown(value)
            case "d":
                return str(int(value))
            case "f":
                return f"{float(value):.{precision}f}"
            case "e":
                return f"{float(value):.{precision}e}"
            case "b":
                return f"{int(value):b}"
            case "o":
                return f"{int(value):o}"
            case letter:
                raw = value.encode().hex() if isinstance(value, str) else f"{int(value):x}"
                return raw.upper() if letter == "X" else raw

    return re.sub(r"%(\.\d+)?([sdfebxXo%])", one, template)


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_shown(key)}: {_shown(value[key])}" for key in sorted(value)) + "}"
    return value.name if isinstance(value, CelType) else _to_string(value)


# -- lists and sets -----------------------------------------------------------------------------------------------
def _sum(items: list[Any]) -> Any:
    total: Any = None
    for item in items:
        total = item if total is None else _add(total, item)
    return 0 if total is None else total


def _extreme(sign: int, name: str) -> Callable[..., Any]:
    def pick(*args: Any) -> Any:
        items = args[0] if len(args) == 1 and isinstance(args[0], list) else list(args)
        if not items:
            raise CelError(f"{name} called on empty list")
        best = items[0]
        for item in items[1:]:
            best = item if compare(item, best) * sign > 0 else best
        return best

    return pick


def _is_sorted(items: list[Any]) -> bool:
    return all(not less(b, a) for a, b in pairwise(items))


def _distinct(items: list[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if not _in(item, found):
            found.append(item)
    return found


def _flatten(items: list[Any], depth: int = 1) -> list[Any]:
    flat: list[Any] = []
    for item in items:
        flat += _flatten(item, depth - 1) if isinstance(item, list) and depth > 0 else [item]
    return flat


def _slice(items: list[Any], start: int, end: int) -> list[Any]:
    if not 0 <= start <= end <= len(items):
        raise CelError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


def _set_contains(whole: list[Any], part: list[Any]) -> bool:
    return all(_in(item, whole) for item in part)


# -- optionals ---------------------------------------------------------------------------------------------------
def _value(optional: OptionalValue) -> Any:
    if not optional.present:
        raise CelError("optional.none() dereference")
    return optional.value


def _or_value(optional: OptionalValue, default: Any) -> Any:
    return optional.value if optional.present else default


def _optional_of_non_zero(value: Any) -> OptionalValue:
    return some(value) if value not in (None, False, 0, "", b"", [], {}) else ABSENT


def _sorted(items: Iterable[Any]) -> list[Any]:
    return sorted(items, key=cmp_to_key(compare))


#: Identifiers that stand for types.
TYPES: dict[str, CelType] = {
    name: CelType(name)
    for name in ("bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type")
}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **kubernetes.FUNCTIONS,
    "_<_": less,
    "_<=_": lambda a, b: less(a, b) or not less(b, a),
    "_>_": lambda a, b: less(b, a),
    "_>=_": lambda a, b: less(b, a) or not less(a, b),
    "_in_": _in,
    "_+_": _add,
    "_-_": _subtract,
    "_*_": _multiply,
    "_/_": _divide,
    "_%_": _modulo,
    "-_": _negate,
    "size": _size,
    "int": _to_int,
    "uint": lambda value: UInt(_to_int(value)),
    "double": float,
    "string": _to_string,
    "bool": _to_bool,
    "bytes": lambda value: value if isinstance(value, bytes) else value.encode(),
    "dyn": lambda value: value,
    "type": lambda value: CelType(type_name(value)),
    "duration": _duration,
    "timestamp": _timestamp,
    "matches": lambda text, pattern: linear_regex.is_match(pattern, _string(text)),
}

#: Functions with a dotted name, `sets.contains(a, b)`.
NAMESPACES: dict[str, Callable[..., Any]] = {
    **kubernetes.NAMESPACES,
    "optional.of": some,
    "optional.none": lambda: ABSENT,
    "optional.ofNonZeroValue": _optional_of_non_zero,
    "sets.contains": _set_contains,
    "sets.equivalent": lambda a, b: _set_contains(a, b) and _set_contains(b, a),
    "sets.intersects": lambda a, b: any(_in(item, a) for item in b),
    "math.greatest": _extreme(1, "math.greatest"),
    "math.least": _extreme(-1, "math.least"),
    "math.abs": abs,
    "lists.range": _range,
    "jsonpatch.escapeKey": lambda key: key.replace("~", "~0").replace("/", "~1"),
    "base64.encode": lambda value: base64.b64encode(value).decode(),
    "base64.decode": lambda text: base64.b64decode(text, validate=True),
    "strings.quote": lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"',
}  # fmt: skip

METHODS: dict[str, Callable[..., Any]] = {
    **kubernetes.METHODS,
    **authorizer.METHODS,
    "size": _size,
    "matches": FUNCTIONS["matches"],
    "startsWith": lambda text, prefix: _string(text).startswith(prefix),
    "endsWith": lambda text, suffix: _string(text).endswith(suffix),
    "contains": lambda text, part: _string(part) in _string(text),
    "find": lambda text, pattern: next(iter(linear_regex.find(pattern, text)), ""),
    "findAll": _find_all,
    "charAt": _char_at,
    "indexOf": _index_of,
    "lastIndexOf": _last_index_of,
    "join": lambda items, separator="": separator.join(items),
    "lowerAscii": lambda text: "".join(c.lower() if c.isascii() else c for c in text),
    "upperAscii": lambda text: "".join(c.upper() if c.isascii() else c for c in text),
    "replace": _replace,
    "split": _split,
    "substring": _substring,
    "trim": lambda text: _string(text).strip(),
    "reverse": _reverse,
    "format": _format,
    "isSorted": _is_sorted,
    "sum": _sum,
    "min": _extreme(-1, "min"),
    "max": _extreme(1, "max"),
    "sort": _sorted,
    "distinct": _distinct,
    "flatten": _flatten,
    "slice": _slice,
    "first": lambda items: some(items[0]) if items else ABSENT,
    "last": lambda items: some(items[-1]) if items else ABSENT,
    "hasValue": lambda optional: optional.present,
    "value": _value,
    "orValue": _or_value,
    "or": lambda optional, other: optional if optional.present else other,
    "getFullYear": _part(lambda t: t.year),
    "getMonth": _part(lambda t: t.month - 1),
    "getDate": _part(lambda t: t.day),
    "getDayOfMonth": _part(lambda t: t.day - 1),
    "getDayOfWeek": _part(lambda t: t.isoweekday() % 7),
    "getDayOfYear": _part(lambda t: t.timetuple().tm_yday - 1),
    "getHours": _part(lambda t: t.hour, 3600),
    "getMinutes": _part(lambda t: t.minute, 60),
    "getSeconds": _part(lambda t: t.second, 1),
}  # fmt: skip
