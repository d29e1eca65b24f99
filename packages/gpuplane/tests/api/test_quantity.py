"""Quantities as Kubernetes writes them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.api.quantity import _SUFFIX, parse_quantity, whole
from kubekit.errors import InvalidInput


@given(st.integers(0, 10**12), st.sampled_from(sorted(_SUFFIX)))
def test_every_suffix_counts(number: int, suffix: str) -> None:
    assert parse_quantity(f"{number}{suffix}") == number * _SUFFIX[suffix]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e3", 1000), ("1E3", 1000), ("1.5Gi", 1610612736), (2, 2), (0.5, Decimal("0.5")), ("-1", -1), ("1.", 1)],
)
def test_other_forms(text: str | int | float, value: Decimal | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1K", "1ki", "1_000", "one", "inf", "nan", "1 Gi x"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(("text", "value"), [("100m", 1), ("1", 1), ("1100m", 2)])
def test_whole_rounds_up(text: str, value: int) -> None:
    assert whole(text) == value
