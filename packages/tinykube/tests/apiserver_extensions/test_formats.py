"""Formats, durations and Go's regular expressions."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.api.formats import go_duration, valid_format
from kubekit.api.regexes import regex


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("^a$", ["a"], ["a\n", "ab"]),
        (r"^a\z", ["a"], ["a\n"]),
        ("^a$|^b$", ["a", "b"], ["a\n", "ab"]),
        ("^(?i)abc$", ["abc", "ABC"], ["abcd"]),
        ("a(?i)b|c", ["aB", "C"], ["AB"]),
        ("(x(?i)y)z", ["xYz"], ["xYZ", "Xyz"]),
        ("^[[:alpha:]_]+$", ["ab_"], ["a1"]),
        ("^[^]]$", ["a"], ["]"]),
        ("^[$]$", ["$"], [""]),
        (r"^\$$", ["$"], [""]),
        (r"^\d+$", ["12"], ["\u0663"]),
        ("^(?P<name>a)(?:b)$", ["ab"], ["a"]),
    ],
)
def test_go_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    assert all(regex(pattern).search(text) for text in yes)
    assert not any(regex(pattern).search(text) for text in no)


@pytest.mark.parametrize("pattern", ["(", "a**", "[a", r"\p{Greek}"])
def test_what_is_no_pattern_is_refused_in_words_of_go(pattern: str) -> None:
    with pytest.raises(ValueError, match="error parsing regexp"):
        regex(pattern)


@given(st.text(alphabet="ab()[]|^$\\?i:-*", max_size=12))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    try:
        regex(pattern).search("ab")
    except ValueError as problem:
        assert "error parsing regexp" in str(problem)


@pytest.mark.parametrize(
    ("text", "seconds"), [("1h30m", 5400), ("1.5s", 1.5), ("-2ms", -0.002), ("0", 0), ("300µs", 0.0003)]
)
def test_go_durations(text: str, seconds: float) -> None:
    assert go_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "1", "h", "1h2", "--1s", "1d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        go_duration(text)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date-time", "2026-01-02T03:04:05Z", "2026-01-02"),
        ("date", "2026-01-02", "02.01.2026"),
        ("ipv4", "10.0.0.1", "10.0.0"),
        ("cidr", "10.0.0.0/8", "10.0.0.0/99"),
        ("uuid", "1b68d41a-6055-4062-9d30-565ff7fa5fa3", "no"),
        ("byte", "YQ==", "a"),
        ("duration", "5m", "5 minutes"),
        ("hostname", "a-b.example.com", "-a"),
        ("uri", "https://example.com/x", "example"),
        ("email", "a@b.c", "a.b.c"),
        ("mac", "01:23:45:67:89:ab", "01:23"),
    ],
)
def test_formats(name: str, good: str, bad: str) -> None:
    assert valid_format(name, good)
    assert not valid_format(name, bad)


def test_an_unknown_format_is_no_constraint() -> None:
    assert valid_format("nosuch", "anything")
