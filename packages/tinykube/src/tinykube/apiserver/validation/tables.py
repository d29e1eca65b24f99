"""Tables of rules for the fields of a type, in the order in which the real API server looks at them.

A row is a field and its checks. `ports[]` checks each element of a list, `""` the object itself, for rules about
several fields. A field that is not set is not checked, except by a check that `Needs` it; the checks of a row stop at
the first one that finds something, and the rows go on. A table is a check itself, so that types nest as the API's types
do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import ip_address, ip_network
from re import Pattern
from typing import Any, Final

from kubekit.api.quantity import parse_quantity
from kubekit.errors import InvalidInput
from tinykube.apiserver.failure import Cause, duplicate, invalid_value, not_supported, required

Object = dict[str, Any]
Check = Callable[[Any, str], Iterable[Cause]]
"""(value, path) -> the causes why the value is invalid."""

MOST_INT32: Final = 2**31 - 1


class Needs:
    """A check of a field that has to be set: not absent, empty or zero."""

    def __init__(self, message: str = "") -> None:
        self._message = message

    def __call__(self, value: Any, where: str) -> Iterator[Cause]:
        if not value:
            yield required(where, self._message)


class RuleTable:
    """The rules of a type."""

    def __init__(self, *rows: tuple[str, Check] | tuple[str, Check, Check] | tuple[str, Check, Check, Check]) -> None:
        self._rows = [
            (name.removesuffix("[]"), name.endswith("[]"), checks, any(isinstance(check, Needs) for check in checks))
            for name, *checks in rows
        ]

    def __call__(self, value: Any, where: str) -> Iterator[Cause]:
        for name, is_list, checks, is_needed in self._rows:
            if not name:
                yield from _first(checks, value, where)
                continue
            field = value.get(name)
            if (field is None or field == "") and not is_needed:
                continue
            path = f"{where}.{name}" if where else name
            if is_list:
                for index, item in enumerate(field or ()):
                    yield from _first(checks, item, f"{path}[{index}]")
            else:
                yield from _first(checks, field, path)


def _first(checks: Sequence[Check], value: Any, where: str) -> Iterable[Cause]:
    if len(checks) == 1:
        return checks[0](value, where)
    for check in checks:
        if found := list(check(value, where)):
            return found
    return ()


def one_of(*allowed: str) -> Check:
    """A word of these; the message lists them in this order."""

    def check(value: Any, where: str) -> Iterator[Cause]:
        if value not in allowed:
            yield not_supported(where, value, allowed)

    return check


def between(least: int, most: int, message: str = "") -> Check:
    text = message or f"must be between {least} and {most}, inclusive"

    def check(value: Any, where: str) -> Iterator[Cause]:
        if not least <= value <= most:
            yield invalid_value(where, value, text)

    return check


def at_least(least: int, message: str = "") -> Check:
    text = message or f"must be greater than or equal to {least}"

    def check(value: Any, where: str) -> Iterator[Cause]:
        if value < least:
            yield invalid_value(where, value, text)

    return check


def at_most_items(most: int) -> Check:
    def check(value: Any, where: str) -> Iterator[Cause]:
        if len(value) > most:
            yield Cause("FieldValueTooMany", f"Too many: {len(value)}: must have at most {most} items", where)

    return check


port_number: Final = between(1, 65535)
not_negative: Final = at_least(0)
above_zero: Final = at_least(1, "must be greater than zero")
identity: Final = between(0, MOST_INT32)  # of a user or group


def text_like(pattern: Pattern[str], message: str, longest: int = 0) -> Check:
    """Text that matches as a whole and is no longer than `longest` characters."""

    def check(value: Any, where: str) -> Iterator[Cause]:
        if longest and len(value) > longest:
            yield invalid_value(where, value, f"must be no more than {longest} characters")
        if not pattern.fullmatch(value):
            yield invalid_value(where, value, message)

    return check


def no_way_up(value: Any, where: str) -> Iterator[Cause]:
    """A path without `..`."""
    if ".." in value.split("/"):
        yield invalid_value(where, value, "must not contain '..'")


def relative_path(value: Any, where: str) -> Iterator[Cause]:
    if value.startswith("/"):
        yield invalid_value(where, value, "must be a relative path")
    yield from no_way_up(value, where)


def absolute_path(value: Any, where: str) -> Iterator[Cause]:
    if not value.startswith("/"):
        yield invalid_value(where, value, "must be an absolute path")


ADDRESS_TEXT: Final = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"


def is_address(value: str) -> bool:
    try:
        ip_address(value)
    except ValueError:
        return False
    return True


def address(value: Any, where: str) -> Iterator[Cause]:
    if not is_address(value):
        yield invalid_value(where, value, ADDRESS_TEXT)


def outside_address(value: Any, where: str) -> Iterator[Cause]:
    """An address that other machines can reach."""
    if ip_address(value).is_loopback:
        yield invalid_value(where, value, "may not be in the loopback range (127.0.0.0/8, ::1/128)")
    yield from pod_address(value, where)


def pod_address(value: Any, where: str) -> Iterator[Cause]:
    """An address that a pod can have. Pods of an embedded cluster have addresses of the loopback range."""
    found = ip_address(value)
    if found.is_unspecified:
        yield invalid_value(where, value, "may not be unspecified (0.0.0.0 or ::)")
    if found.is_link_local:
        yield invalid_value(where, value, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    if found.is_multicast:
        yield invalid_value(where, value, "may not be in the multicast range (224.0.0.0/4, ff00::/8)")


def address_range(value: Any, where: str) -> Iterator[Cause]:
    try:
        ip_network(value.strip(), strict=False)
        known = "/" in value
    except ValueError:
        known = False
    if not known:
        yield invalid_value(where, value, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")


def unique(key: str) -> Check:
    """A list whose elements differ in a field; an element that has it not is no duplicate."""

    def check(value: Any, where: str) -> Iterator[Cause]:
        seen = set()
        for index, item in enumerate(value):
            name = item.get(key)
            if name and name in seen:
                yield duplicate(f"{where}[{index}].{key}", name)
            seen.add(name)

    return check


PERCENT_TEXT: Final = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for "
    "validation is '[0-9]+%')"
)


def number_or_percent(value: Any, where: str) -> Iterator[Cause]:
    """A number from zero, or a percentage up to 100%."""
    if isinstance(value, int):
        yield from not_negative(value, where)
    elif not (value.endswith("%") and value[:-1].isdecimal() and value.isascii()):
        yield invalid_value(where, value, PERCENT_TEXT)
    elif int(value[:-1]) > 100:
        yield invalid_value(where, value, "must not be greater than 100%")


def amount(quantity: Any) -> Any:
    """Return the exact amount of a quantity. Every quantity has been read before its object is validated."""
    return parse_quantity(str(quantity))


def is_quantity(value: Any) -> bool:
    try:
        parse_quantity(str(value))
    except InvalidInput:
        return False
    return True


def immutable(obj: Object, old: Object, *names: str, where: str = "") -> Iterator[Cause]:
    """A finding for each field that an update changes."""
    for name in names:
        if obj.get(name) != old.get(name):
            yield invalid_value(f"{where}.{name}" if where else name, obj.get(name), "field is immutable")
