"""The values of CEL that JSON does not have, and how values compare.

JSON data is used as it is (None, bool, int, float, str, list, dict); here are errors, optionals, types, quantities and
semantic versions. Comparison follows CEL: numbers compare across int, uint and double, a bool is never a number, and
values of different types are unequal rather than an error.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from decimal import Decimal
from functools import total_ordering
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any
from urllib.parse import SplitResult

from kubekit.api.quantity import parse_quantity
from kubekit.cel.syntax import UInt
from kubekit.errors import InvalidInput


class CelError(Exception):
    """Evaluation failed, worded as cel-go words it (`no such key: x`)."""


class OptionalValue:
    __slots__ = ("present", "value")

    def __init__(self, value: Any = None, *, present: bool = False) -> None:
        self.value = value
        self.present = present


ABSENT = OptionalValue()


def some(value: Any) -> OptionalValue:
    return OptionalValue(value, present=True)


class CelType:
    """The result of `type(x)`; `int`, `string` and so on are identifiers with such a value."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CelType) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


@total_ordering
class Quantity:
    """A Kubernetes quantity (`1.5Gi`, `100m`, `2e3`), exact. Raises CelError for an invalid text."""

    __slots__ = ("amount",)

    def __init__(self, amount: Decimal | str) -> None:
        if isinstance(amount, str):
            try:
                amount = parse_quantity(amount)
            except InvalidInput as problem:
                raise CelError(problem.what) from None
        self.amount = amount

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.amount == other.amount

    def __lt__(self, other: Quantity) -> bool:
        return self.amount < other.amount

    def __hash__(self) -> int:
        return hash(self.amount)


_SEMVER = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


@total_ordering
class Semver:
    """A semantic version; pre-releases come before their release. Raises CelError for an invalid text."""

    __slots__ = ("key", "numbers")

    def __init__(self, text: str) -> None:
        match = _SEMVER.fullmatch(text)
        if match is None:
            raise CelError(f"invalid semantic version {text!r}")
        self.numbers = (int(match[1]), int(match[2]), int(match[3]))
        pre = match[4].split(".") if match[4] else []
        parts = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in pre)
        self.key = (self.numbers, not pre, parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self.key == other.key

    def __lt__(self, other: Semver) -> bool:
        return self.key < other.key

    def __hash__(self) -> int:
        return hash(self.key)


_ORDERED = (str, bytes, datetime, timedelta, Quantity, Semver)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list):
        return (
            isinstance(right, list)
            and len(left) == len(right)
            and all(equal(a, b) for a, b in zip(left, right, strict=True))
        )
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(equal(value, right[key]) for key, value in left.items())
        )
    if isinstance(left, OptionalValue):
        return (
            isinstance(right, OptionalValue)
            and left.present == right.present
            and (not left.present or equal(left.value, right.value))
        )
    return bool(left == right)


def less(left: Any, right: Any) -> bool:
    """Raises CelError where the two have no order."""
    if is_number(left) and is_number(right):
        return bool(left < right)
    if isinstance(left, bool) and isinstance(right, bool):
        return left < right
    for kind in _ORDERED:
        if isinstance(left, kind) and isinstance(right, kind):
            return bool(left < right)  # type: ignore[operator]  # both are of the same ordered kind
    raise CelError("no such overload")


def type_name(value: Any) -> str:
    if value is None:
        return "null_type"
    for kind, name in _TYPE_NAMES:
        if isinstance(value, kind):
            return name
    return "dyn"


_TYPE_NAMES: tuple[tuple[Any, str], ...] = (
    (bool, "bool"),
    (UInt, "uint"),
    (int, "int"),
    (float, "double"),
    (str, "string"),
    (bytes, "bytes"),
    (list, "list"),
    (dict, "map"),
    (datetime, "google.protobuf.Timestamp"),
    (timedelta, "google.protobuf.Duration"),
    (CelType, "type"),
    (OptionalValue, "optional_type"),
    (Quantity, "kubernetes.Quantity"),
    (Semver, "kubernetes.Semver"),
    ((IPv4Address, IPv6Address), "net.IP"),
    ((IPv4Network, IPv6Network), "net.CIDR"),
    (SplitResult, "kubernetes.URL"),
)
