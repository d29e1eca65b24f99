"""Edits of JSON text: nothing else changes, in the layout of the file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.toolkit import json_edit as edit
from kubekit.errors import InvalidInput


def test_a_file_keeps_its_layout() -> None:
    text = '{\n  "data-root":"/data",\n  "log-opts": {"max-size": "10m"},\n  "empty": {}\n}\n'
    text = edit.set_value(text, ("default-runtime",), "nvidia", "f")
    text = edit.set_value(text, ("log-opts", "max-file"), "3", "f")
    text = edit.set_value(text, ("runtimes", "nvidia"), {"path": "/x", "args": []}, "f")
    text = edit.set_value(text, ("empty", "cdi"), True, "f")
    text = edit.set_value(text, ("data-root",), "/other", "f")
    assert text == (
        "{\n"
        '  "data-root":"/other",\n'
        '  "log-opts": {"max-size": "10m", "max-file": "3"},\n'
        '  "empty": {\n'
        '    "cdi": true\n'
        "  },\n"
        '  "default-runtime": "nvidia",\n'
        '  "runtimes": {\n'
        '    "nvidia": {\n'
        '      "path": "/x",\n'
        '      "args": []\n'
        "    }\n"
        "  }\n"
        "}\n"
    )


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        ('{"a": 1,}', "does not parse", "f:1:9"),
        ("[1]", "no JSON object", "f"),
        ('{"a": {"b": 1, "b": 2}}', '"b" stands twice', "f"),
        ('{"x": 1}', "x is no object", "f:1:7"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, message: str, where: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        edit.set_value(text, ("x", "y"), 1, "f")
    assert caught.value.where == where


@pytest.mark.parametrize("text", ["", "  \n", "{}", "{ }\n", "{\n}\n"])
def test_an_empty_file_becomes_an_object(text: str) -> None:
    assert json.loads(edit.set_value(text, ("a", "b"), 1, "f")) == {"a": {"b": 1}}


def test_setting_what_is_so_changes_nothing() -> None:
    text = '{"a": {"b":1}}'
    assert edit.set_value(text, ("a", "b"), 1, "f") is text
    assert edit.set_value(text, ("a", "b"), True, "f") != text


KEYS = st.sampled_from(["a", "b", "c d", 'q"', "é", "x{"])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """JSON objects in many layouts."""
    data = draw(st.dictionaries(KEYS, VALUES, max_size=4))
    indent = draw(st.sampled_from([None, 0, 1, 2, 4, "\t"]))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : ")]))
    text = json.dumps(data, indent=indent, separators=separators, ensure_ascii=draw(st.booleans()))
    if draw(st.booleans()) and indent is not None:
        text = text.replace("\n", "\r\n")
    return draw(st.sampled_from(["", "\n", " "])) + text + draw(st.sampled_from(["", "\n", "\n\n"]))


@settings(max_examples=120, deadline=None)
@given(texts(), st.sampled_from([("new",), ("a",), ("a", "new"), ("new", "x", "y"), ("b", "a")]), VALUES)
def test_any_text_gets_a_value_and_loses_it_again(text: str, path: tuple[str, ...], value: Any) -> None:
    before = json.loads(text)
    try:
        new = edit.set_value(text, path, value, "f")
    except InvalidInput as error:
        assert "is no object" in error.what
        return
    data = json.loads(new)
    for key in path:
        data = data[key]
    assert data == value
    if path[0] == "new":
        assert json.loads(edit.remove(new, ("new",), "f")) == before
        if before:
            assert edit.remove(new, ("new",), "f") == text
