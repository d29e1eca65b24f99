"""Quantities as Kubernetes writes them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.api.quantity import _SUFFIX, MOST, parse_quantity, whole
from kubekit.errors import InvalidInput


@given(st.integers(0, 10**12), st.sampled_from(sorted(_SUFFIX)))
def test_every_suffix_counts(number: int, suffix: str) -> None:
    assert parse_quantity(f"{number}{suffix}") == min(number * _SUFFIX[suffix], MOST)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e3", 1000), ("1E3", 1000), ("1.5Gi", 1610612736), (2, 2), (0.5, Decimal("0.5")), ("-1", -1), ("1.", 1)],
)
def test_other_forms(text: str | int | float, value: Decimal | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["1e30", "9223372036854775808", "9e19", "1e999999999", "1e300000", "16Ei"])
def test_what_is_more_than_64_bits_is_the_most_as_in_kubernetes(text: str) -> None:
    assert parse_quantity(text) == whole(text) == MOST
    assert parse_quantity(f"-{text}") == -MOST


def test_an_exponent_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidInput, match="out of range"):
        parse_quantity("1e99999999999999999999")


@pytest.mark.parametrize("text", ["", "Gi", "1K", "1ki", "1_000", "one", "inf", "nan", "1 Gi x"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(("text", "value"), [("100m", 1), ("1", 1), ("1100m", 2)])
def test_whole_rounds_up(text: str, value: int) -> None:
    assert whole(text) == value
