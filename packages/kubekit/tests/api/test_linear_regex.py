"""Patterns that tenants write take a time that grows with the text only, and match what Python's `re` matches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.api.linear_regex import find, is_match
from kubekit.api.regexes import regex

LETTERS = st.sampled_from(["a", "b", "A", "-", ".", "[ab]", "[^a]", r"\d", r"\b", "^", "$", "(?i:a)"])
TIMES = st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,3}", "{2,}"])
PATTERNS = st.recursive(
    LETTERS,
    lambda parts: st.one_of(
        st.lists(parts, min_size=1, max_size=3).map("".join),
        st.tuples(parts, parts).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(parts, TIMES).map(lambda two: f"(?:{two[0]}){two[1]}"),
    ),
    max_leaves=6,
)

EVIL = [
    *("(a+)+$", "^(a|a)*$", "^(([a-z])+.)+[A-Z]([a-z])+$", "^a*a*a*a*a*a*a*a*a*a*$", "(.*)*$x"),
    *("((((){1000}){1000}){1000}){1000}b", "(a|a)" * 40 + "b", "a?" * 50 + "b"),
]


@given(PATTERNS, st.text("abA-1\n", max_size=6))
def test_it_matches_what_python_matches(pattern: str, text: str) -> None:
    assert is_match(pattern, text) == (regex(pattern).search(text) is not None)


@pytest.mark.parametrize("pattern", EVIL)
def test_patterns_for_which_python_takes_years(pattern: str) -> None:
    assert not is_match(pattern, "a" * 100 + "!\n")


@pytest.mark.parametrize("pattern", ["(a{1000}){1000}", "((a{0,99}){0,99}){0,99}", "a(", "(?=a)b*"])
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"pattern has|error parsing"):
        is_match(pattern, "a" * 100)


def test_all_matches_are_found_where_that_is_quick() -> None:
    assert find("[a-z]+", "ab-c") == ["ab", "c"]
    with pytest.raises(ValueError, match="may take too long on 101 characters"):
        find("(a+)+$", "a" * 100 + "!")


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        ("^([^/]*[.])?(gpuplane[.]dev|karpenter[.]sh)/", 250),
        ("^nvidia[.]com/gpu[.](present$|deploy[.])", 10_000),
        ("(^|/)python[0-9.]*$", 200),
        ("^a{2,5}(b?c)?$", 1000),
    ],
)
def test_python_matches_patterns_with_few_choices(pattern: str, length: int) -> None:
    assert find(pattern, "-" * length) == []  # `find` raises where Python could take long


@pytest.mark.parametrize("pattern", ["^a*a*a*$", "(a|b*)*", "(ab?){2,3}", "a*b"])
def test_patterns_with_many_choices_are_followed_all_at_once(pattern: str) -> None:
    with pytest.raises(ValueError, match="may take too long on 1001 characters"):
        find(pattern, "a" * 1000 + "!")


@pytest.mark.parametrize("pattern", ["(?=a)b", "(?<!a)b", r"(a)\1"])
def test_what_go_cannot_parse_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"error parsing regexp: .* is not supported"):
        is_match(pattern, "ab")
