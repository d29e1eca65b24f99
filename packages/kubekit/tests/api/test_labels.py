"""Names and values of labels as kube-apiserver takes them."""

from __future__ import annotations

import pytest

from kubekit.api.labels import is_label_name, is_label_value


@pytest.mark.parametrize("name", ["a", "A_b.c-d", "example.com/gpu", "a" * 63, f"{'a' * 253}/x", "1/2"])
def test_names_of_labels(name: str) -> None:
    assert is_label_name(name)


@pytest.mark.parametrize(
    "name", ["", "/", "a/", "/a", "a/b/c", "-a", "a-", "a b", "Ex.com/a", "a" * 64, f"{'a' * 254}/x", "a\n", "é"]
)
def test_texts_that_are_no_names_of_labels(name: str) -> None:
    assert not is_label_name(name)


@pytest.mark.parametrize("value", ["", "a", "1.2-3_B", "a" * 63])
def test_values_of_labels(value: str) -> None:
    assert is_label_value(value)


@pytest.mark.parametrize("value", ["a b", "-a", "a.", "a" * 64, "a\n", "é"])
def test_texts_that_are_no_values_of_labels(value: str) -> None:
    assert not is_label_value(value)
