"""YAML that users wrote: as PyYAML reads it, or one error with its place. No text ends the process or takes minutes."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kubekit import yaml_documents
from kubekit.documents import LONGEST_SETTINGS, MOST_DEPTH, DocumentError
from kubekit.yaml_documents import MOST_EXPANDED, float_text, load_all_yaml, load_yaml, scan_yaml

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


@given(VALUES, st.booleans(), st.booleans())
def test_ordinary_yaml_is_read_as_by_pyyaml(value: Any, flow: bool, shared: bool) -> None:
    value = [value, value] if shared else value  # collections that stand twice become anchor and alias
    text = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=True)
    try:
        expected = yaml.safe_load(text)
    except yaml.YAMLError:  # PyYAML writes some characters that it does not read
        return
    assert load_yaml(text) == expected
    assert load_all_yaml(f"{text}\n---\n{text}") == list(yaml.safe_load_all(f"{text}\n---\n{text}"))


@given(st.binary(max_size=40) | st.text("[]{}&*!|>'\"%@`:-?,# \n\tab01.<=~_", max_size=80))
def test_any_text_is_a_value_or_a_document_error(text: bytes | str) -> None:
    try:
        load_all_yaml(text)
    except DocumentError as error:
        assert error.problem


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
@pytest.mark.parametrize("item", ["[", "{a: ", "- ", "? ", "[{b: "])
def test_deep_texts_are_refused_before_they_are_composed(
    item: str, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yaml_documents, "_Base", getattr(yaml, loader))
    with pytest.raises(DocumentError, match="is nested more than 100 deep") as raised:
        load_yaml(item * 100_000, where="values.yaml")
    assert raised.value.where.startswith("values.yaml:1:")


def test_the_deepest_text_is_read() -> None:
    value = load_yaml("[" * MOST_DEPTH + "]" * MOST_DEPTH)
    for _ in range(MOST_DEPTH - 1):
        (value,) = value
    assert value == []


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n}\n  <<: [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (BOMB, 5),
        (MERGES, 11),
        ("a: &a " + "x" * 100_000 + "\nb: [" + "*a," * 20 + "]", 2),
        ("a: &a\n  b: *a", 2),
        ("&a [*a]", 1),
    ],
    ids=["lists", "merge keys", "long text", "mapping in itself", "list in itself"],
)
def test_aliases_are_bounded_by_what_they_expand_to(text: str, line: int) -> None:
    with pytest.raises(DocumentError, match="has aliases that stand for more than 1 MiB of text") as raised:
        load_yaml(text)
    assert raised.value.line == line
    assert raised.value.column > 1


def test_ordinary_aliases_and_merge_keys_are_read() -> None:
    text = "base: &base {image: a, args: &args [x, y]}\nmain:\n  <<: *base\n  args: *args\n"
    assert load_yaml(text) == yaml.safe_load(text)
    each = MOST_EXPANDED // 1000 - 1 - 16
    assert len(load_yaml("a: &a " + "x" * each + "\nb: [" + "*a," * 1000 + "]")["b"]) == 1000
    of_each_document = "a: &a " + "x" * 100_000 + "\nb: [" + "*a," * 8 + "]\n---\n"
    assert len(load_all_yaml(of_each_document * 3)) == 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: " + "9" * 5000, "a number of more than 400 characters"),
        ("a: 1" + ":59" * 50_000, "a number of more than 400 characters"),
        ("a: 0x" + "f" * 5000, "a number of more than 400 characters"),
        ("x" * 100 + "\n%TAG !a! b" * 1000, "has more than 100 lines that begin with %"),
        ("\r".join(f"%TAG !a{n}! b" for n in range(1000)), "has more than 100 lines that begin with %"),
        ("\n".join(f"{n * (2**61 - 1)}: a" for n in range(1001)), "more than 1000 keys that are no texts"),
        ("[" + "x," * 100_000 + "]", "has more than 65,536 values"),
        ("a" * (LONGEST_SETTINGS + 1), "is longer than 1 MiB"),
        ("!" + "x" * 10_000 + " a", "could not determine a constructor"),
    ],
)
def test_texts_that_would_take_minutes_are_refused(text: str, problem: str) -> None:
    with pytest.raises(DocumentError, match=problem) as raised:
        load_yaml(text, limit=LONGEST_SETTINGS)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: 1\nb: [", (3, 1)),
        ("a: 1\nb:\n  c: !!int x", (3, 6)),
        ("a: !!timestamp 2001-99-99", (1, 4)),
        ("!!timestamp x", (1, 1)),
        ('!!float ""', (1, 1)),
        ("- !!bool x", (1, 3)),
        ("a: !!binary x", (1, 4)),
        ("a: *b", (1, 4)),
        ("{[1]: 2}", (1, 2)),
        ("a: b: c", (1, 5)),
        ("!!python/object:os.system x", (1, 1)),
    ],
)
def test_errors_have_line_and_column(text: str, place: tuple[int, int]) -> None:
    with pytest.raises(DocumentError) as raised:
        load_yaml(text, where="f")
    assert (raised.value.line, raised.value.column) == place
    assert raised.value.where == f"f:{place[0]}:{place[1]}"


@pytest.mark.parametrize("text", [b"a: \xff", "a: \0", "a: \ud800", b"\xff\xfea\0"])
def test_other_characters_than_text_are_refused(text: bytes | str) -> None:
    with pytest.raises(DocumentError):
        load_yaml(text)


def test_the_documents_before_a_problem_are_counted() -> None:
    assert scan_yaml("a: 1\n---\nb: 2\n") == (2, None)
    complete, problem = scan_yaml("a: 1\n---\nb: 2\n---\n" + "[" * 1000)
    assert complete == 2
    assert problem is not None
    assert problem.line == 5


def test_times_stay_texts_where_json_is_meant() -> None:
    assert load_yaml("2026-01-02") == datetime.date(2026, 1, 2)
    assert load_yaml("2026-01-02", plain=True) == "2026-01-02"


@pytest.mark.parametrize("text", ["y", "Y", "n", "N"])
def test_single_letters_are_booleans_where_kubernetes_reads_them(text):
    assert load_yaml(f"a: {text}", plain=True) == {"a": text in "yY"}
    assert load_yaml(f"a: '{text}'", plain=True) == {"a": text}
    assert load_yaml(f"a: {text}") == {"a": text}


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("1: a\ntrue: b\n", {"1": "a", "true": "b"}),
        ("y: a\nOff: b\n", {"true": "a", "false": "b"}),
        ("0x10: a\n-3: b\n010: c\n", {"16": "a", "-3": "b", "8": "c"}),
        ("1.5: a\n1.0e+10: c\n.inf: d\n", {"1.5": "a", "1e+10": "c", ".inf": "d"}),
        ('1: a\n"1": b\n', {"1": "b"}),
        ("a: {2: {3: [{4: x}]}}\n", {"a": {"2": {"3": [{"4": "x"}]}}}),
        ("b: &b {1: x, 2: w}\na: {<<: *b, 2: z}\nc: *b\n", {
            "b": {"1": "x", "2": "w"}, "a": {"1": "x", "2": "z"}, "c": {"1": "x", "2": "w"},
        }),
        ("2001-01-01: a\n", {"2001-01-01": "a"}),
    ],
)  # fmt: skip
def test_keys_are_text_where_kubernetes_reads(text: str, read: Any) -> None:
    assert load_yaml(text, plain=True) == read


@pytest.mark.parametrize(
    "text", ["null: a\n", "~: a\n", "? [1]\n: a\n", "? {a: b}\n: c\n", "18446744073709551615: a\n"]
)
def test_a_key_that_can_be_no_text_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(DocumentError) as caught:
        load_yaml(f"x: 1\n{text}", plain=True)
    assert caught.value.line == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (-0.0, "-0"), (1.0, "1"), (0.1, "0.1"), (1.5, "1.5"), (100000.0, "100000"), (1e6, "1e+06"),
        (1234567.0, "1.234567e+06"), (123456.7, "123456.7"), (0.0001, "0.0001"), (0.00001, "1e-05"),
        (16777217.0, "1.6777216e+07"), (3.4e38, "3.4e+38"), (1e39, ".inf"), (-1e39, "-.inf"), (float("nan"), ".nan"),
    ],
)  # fmt: skip
def test_a_number_as_a_key_reads_as_go_writes_it(value: float, text: str) -> None:
    assert float_text(value) == text
