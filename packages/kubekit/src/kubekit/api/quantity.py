"""Kubernetes quantities (`100m`, `5Gi`, `1e3`), parsed once at the edge.

The grammar is that of `resource.Quantity` in the Kubernetes API conventions. Values are exact (`Decimal`), so that sums
of fractions of a CPU do not drift.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal, Overflow
from functools import lru_cache
from typing import Final

from kubekit.errors import InvalidInput

Quantity = str | int | float
"""What JSON may hold where a quantity is meant: manifests also write plain numbers."""

_SUFFIX: Final[dict[str, Decimal]] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


MOST: Final = 2**63 - 1
"""The largest quantity, in its base unit: Kubernetes reads a larger one as this."""
PATTERN: Final = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$"
"""The form of a quantity, for schemas."""

_LARGEST: Final = Decimal(MOST)
_PARTS: Final = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)([numkMGTPE]|[KMGTPE]i|)")


@lru_cache(maxsize=4096)
def parse_quantity(value: Quantity) -> Decimal:
    """The exact value of a quantity, in its base unit (cores, bytes, pieces). Raises InvalidInput."""
    parts = _PARTS.fullmatch(str(value))
    if parts is None:
        raise InvalidInput(f"{value!r} is not a quantity", cure='write it like "2", "500m", "5Gi"')
    try:
        amount = Decimal(parts[1]) * _SUFFIX[parts[2]]
    except Overflow:
        amount = -_LARGEST if parts[1].startswith("-") else _LARGEST
    except ArithmeticError:
        raise InvalidInput(f"{value!r} has an exponent that is out of range") from None
    return max(-_LARGEST, min(amount, _LARGEST))


@lru_cache(maxsize=4096)
def whole(value: Quantity) -> int:
    """The quantity as an integer, rounded up as Kubernetes rounds (`Quantity.Value()`)."""
    return int(parse_quantity(value).to_integral_value(rounding=ROUND_CEILING))


_DECIMAL: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def spell_quantity(value: Decimal, *, binary: bool = False) -> str:
    """Return a quantity as Kubernetes writes it: a whole number with the largest suffix that loses nothing.

    Fractions below a billionth are rounded up. `binary` uses Ki, Mi and so on, for whole numbers of 1024 and more.
    """
    nano = int((value * 10**9).to_integral_value(rounding=ROUND_CEILING))
    if binary and not nano % 10**9 and abs(nano) >= 1024 * 10**9:
        return _spell(nano // 10**9, _BINARY, 1024)
    return _spell(nano, _DECIMAL, 1000)


def _spell(number: int, suffixes: tuple[str, ...], factor: int) -> str:
    if not number:
        return "0"
    power = 0
    while power < len(suffixes) - 1 and not number % factor:
        number, power = number // factor, power + 1
    return f"{number}{suffixes[power]}"
