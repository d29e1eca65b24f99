"""Merge patches between documents without null: applied to the old document they give the new one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.dashboard.merging import apply, patch

values: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(0, 3) | st.sampled_from(["", "a"]) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
documents = st.dictionaries(st.sampled_from("abcd"), values, max_size=4)


@given(documents, documents)
def test_a_patch_applied_to_the_old_document_gives_the_new_one(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert apply(old, patch(old, new)) == new


@given(documents)
def test_equal_documents_need_no_patch(document: dict[str, Any]) -> None:
    assert patch(document, document) == {}


def test_a_patch_has_the_part_that_changed_alone() -> None:
    old = {"nodes": {"a": {"held": [0, 100], "stage": "ready"}, "b": {"held": [0]}}, "fits": {"1": 2}}
    new = {"nodes": {"a": {"held": [50, 100], "stage": "ready"}}, "fits": {"1": 1}}
    assert patch(old, new) == {"nodes": {"a": {"held": [50, 100]}, "b": None}, "fits": {"1": 1}}
