"""JSON that users wrote: as msgspec reads it, or one error with its place."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.documents import LONGEST_FILE, MOST_DEPTH, DocumentError, check_json, cut_json, decode_json, json_depth

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


@given(VALUES, st.booleans())
def test_ordinary_json_is_read_as_by_json(value: Any, pretty: bool) -> None:
    text = json.dumps(value, indent=2 if pretty else None)
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert decode_json(text) == json.loads(text)


@given(VALUES)
def test_depth_is_never_less_than_that_of_the_value(value: Any) -> None:
    assert json_depth(msgspec.json.encode(value)) >= depth(value)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(st.binary(max_size=60) | st.text('[]{}":,\\a1 \n', max_size=400))
def test_any_text_is_a_value_or_a_document_error(text: bytes | str) -> None:
    try:
        decode_json(text)
    except DocumentError as error:
        assert error.problem


@given(st.text('[]{}":,\\a', max_size=60), st.integers(101, 3000))
def test_no_text_before_deep_lists_hides_them_from_the_check(head: str, deep: int) -> None:
    for text in (head + "[" * deep, '["' + head + '",' + "[" * deep + "]" * deep + "]"):
        with pytest.raises(DocumentError):
            decode_json(text)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000, '[{"a":' * 600 + "1" + "}]" * 600]
)
def test_deep_texts_are_refused_with_the_place(text: str) -> None:
    with pytest.raises(DocumentError, match="is nested more than 100 deep") as raised:
        decode_json(text, where="review")
    assert raised.value.line == 1
    assert text[: raised.value.column].count("[") + text[: raised.value.column].count("{") == MOST_DEPTH + 1


def test_the_deepest_text_is_read_and_brackets_in_strings_are_no_levels() -> None:
    text = "[" * MOST_DEPTH + "]" * MOST_DEPTH
    assert json_depth(text.encode()) == depth(decode_json(text)) == MOST_DEPTH
    assert decode_json(json.dumps(["[" * 5000, '\\"' + "{" * 5000])) == ["[" * 5000, '\\"' + "{" * 5000]
    assert len(decode_json(json.dumps([[[{}]]] * 5000))) == 5000


@given(VALUES)
def test_an_ordinary_text_is_not_cut(value: Any) -> None:
    text = msgspec.json.encode(value)
    assert cut_json(text) == text


def test_what_lies_deeper_is_cut_and_all_else_stays() -> None:
    deep, most = "[" * 5000 + "]" * 5000, "[" * (MOST_DEPTH - 1) + "]" * (MOST_DEPTH - 1)
    cut = cut_json(f'[{deep},"]]",{most},{{"a":{deep}}},7]'.encode())
    left = "[" * (MOST_DEPTH - 1) + "null" + "]" * (MOST_DEPTH - 1)
    inner = "[" * (MOST_DEPTH - 2) + "null" + "]" * (MOST_DEPTH - 2)
    assert cut.decode() == f'[{left},"]]",{most},{{"a":{inner}}},7]'
    assert json_depth(cut) == MOST_DEPTH


@given(st.text('[]{}":,\\a', max_size=60), st.booleans())
def test_no_string_hides_what_is_too_deep_or_is_cut_itself(name: str, in_objects: bool) -> None:
    deep: Any = 1
    for _ in range(150):
        deep = {name: deep} if in_objects else [deep]
    left: Any = None
    for _ in range(MOST_DEPTH - 1):
        left = {name: left} if in_objects else [left]
    cut = cut_json(msgspec.json.encode([name, deep, name]))
    assert json.loads(cut) == [name, left, name]


@pytest.mark.parametrize(
    ("text", "problem", "line", "column"),
    [
        (b'{"a": 1,\n "b": \xff}', "is no UTF-8 text: invalid start byte", 2, 7),
        (b'"\xff"', "is no UTF-8 text", 1, 2),
        (b'{"a": 1,\n b: 2}', "JSON is malformed: object keys must be strings", 2, 2),
        (b"", "Input data was truncated", 0, 0),
        (b"1" * 5000, "Integer value out of range", 0, 0),
        (b"NaN", "JSON is malformed: invalid character", 1, 1),
        (b'"\\ud800"', "truncated", 0, 0),
        ("\ud800", "is no Unicode text", 0, 0),
    ],
)
def test_errors_have_line_and_column(text: bytes | str, problem: str, line: int, column: int) -> None:
    with pytest.raises(DocumentError) as raised:
        decode_json(text)
    assert problem in raised.value.problem
    assert (raised.value.line, raised.value.column) == (line, column)


def test_a_value_of_another_type_names_its_path() -> None:
    with pytest.raises(DocumentError, match=r"Expected `int`, got `str` - at `\$\[...\]`"):
        decode_json('{"gpu": "two"}', dict[str, int])


def test_a_longer_text_is_refused() -> None:
    with pytest.raises(DocumentError, match="is longer than 16 MiB"):
        check_json(b" " * (LONGEST_FILE + 1))
    with pytest.raises(DocumentError, match="quota: is longer than 10 bytes"):
        decode_json("[1, 2, 3, 4]", where="quota", limit=10)
