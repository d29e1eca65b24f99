"""Kubernetes quantities (`100m`, `5Gi`, `1e3`), parsed once at the edge.

The grammar is that of `resource.Quantity` in the Kubernetes API conventions. Values are exact (`Decimal`), so that sums
of fractions of a CPU do not drift.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Final

from gpuplane.errors import InvalidInput

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


def parse_quantity(value: Quantity) -> Decimal:
    """The exact value of a quantity, in its base unit (cores, bytes, pieces). Raises InvalidInput."""
    text = str(value).strip()
    body = text.rstrip("numkKMGTPEi")
    suffix = text[len(body) :]
    try:
        if suffix not in _SUFFIX or not body or body[-1] in "eE.+-":
            raise InvalidOperation
        number = Decimal(body)
        if not number.is_finite():
            raise InvalidOperation
    except InvalidOperation:
        raise InvalidInput(f"{text!r} is not a quantity", cure='write it like "2", "500m", "5Gi"') from None
    return number * _SUFFIX[suffix]


def whole(value: Quantity) -> int:
    """The quantity as an integer, rounded up as Kubernetes rounds (`Quantity.Value()`)."""
    return int(parse_quantity(value).to_integral_value(rounding=ROUND_CEILING))
