"""Edits of TOML text: nothing else changes, and they can be taken out again."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.toolkit import toml_edit as edit
from gpuplane.toolkit.toml_strip import strip
from kubekit.errors import InvalidInput

AWKWARD = '''# a "comment" with [brackets]
version = 2   # two
"quoted.key" = 'single [ # quoted'
multi = """
[not.a.header]
x = "\\"" # "
"""
list = [ # comment ]
  "a", "b]", # "c"
  [1, [2]], {x = "}"},
]
dotted . key = 1979-05-27T07:32:00Z

[plugins."io.containerd.grpc.v1.cri"] # the plugin
  sandbox_image = "pause"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc" # theirs
[[array.of]]
x = 1
[[array.of]]
x = 2
'''
CRI = ("plugins", "io.containerd.grpc.v1.cri")


def test_the_statements_of_an_awkward_text() -> None:
    found = [(s.path, s.header, AWKWARD[slice(*s.value)]) for s in edit.statements(AWKWARD)]
    assert [(path, header) for path, header, _ in found] == [
        (("version",), False),
        (("quoted.key",), False),
        (("multi",), False),
        (("list",), False),
        (("dotted", "key"), False),
        (CRI, True),
        ((*CRI, "sandbox_image"), False),
        ((*CRI, "containerd"), True),
        ((*CRI, "containerd", "default_runtime_name"), False),
        (("array", "of"), True),
        (("array", "of", "x"), False),
        (("array", "of"), True),
        (("array", "of", "x"), False),
    ]
    assert [value for _, header, value in found if not header][:2] == ["2", "'single [ # quoted'"]
    assert len(list(edit.elements(AWKWARD, AWKWARD.index("[ # comment")))) == 4


@pytest.mark.parametrize(
    ("table", "key", "value", "line"),
    [
        ((), "root", "/x", 'root = "/x"  # set by gpuplane'),
        (CRI, "enable_cdi", True, "enable_cdi = true  # set by gpuplane"),
        ((*CRI, "containerd"), "default_runtime_name", "nvidia", '"nvidia"  # set by gpuplane: was "runc" # theirs'),
        (("new", "table"), "x", 1, "[new.table]"),
    ],
)
def test_a_value_is_set_and_nothing_else(table: tuple[str, ...], key: str, value: object, line: str) -> None:
    new = edit.set_value(AWKWARD, table, key, value, "f")
    assert line in new
    assert strip(new, {}, "f") == AWKWARD
    assert edit.set_value(new, table, key, value, "f") == new
    data: Any = tomllib.loads(new)
    for part in table:
        data = data[part]
    assert data[key] == value


@pytest.mark.parametrize(
    "text",
    [
        'imports = ["/a"]\n',
        'imports = ["/a",\n  "/b", # last\n]\n[x]\n',
        "imports = [ ]\n",
        "imports = [\n# none\n]",
        "version = 2\n[x]\ny = 1\n",
        "version = 2",
        "[x]\ny = 1",
        "",
        "# only a comment",
        "version = 3\r\n[x]\r\n",
        "a = 1\nimports = ['/a',]\n",
    ],
)
def test_an_element_is_added_and_taken_out(text: str) -> None:
    new = edit.add_element(text, "imports", "/ours/*.toml", "f")
    before = tomllib.loads(text)
    assert tomllib.loads(new) == {**before, "imports": [*before.get("imports", []), "/ours/*.toml"]}
    assert strip(new, {"imports": "/ours/*.toml"}, "f") == text
    assert edit.add_element(new, "imports", "/ours/*.toml", "f") == new


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("plugins = {cri = {}}\n", ("plugins", "cri")),
        ("plugins.cri = {x = 1}\n", ("plugins", "cri")),
        ("[[plugins]]\n", ("plugins", "cri")),
        ("plugins = 1\n", ("plugins", "cri")),
        ('[plugins.cri]\nenable_cdi = """\nx"""\n', ("plugins", "cri")),
    ],
)
def test_what_cannot_be_proved_is_refused(text: str, path: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="cannot be edited safely") as caught:
        edit.set_value(text, path, "enable_cdi", True, "/etc/containerd/config.toml")
    assert caught.value.where == "/etc/containerd/config.toml"


def test_a_broken_file_is_told_with_its_line() -> None:
    with pytest.raises(InvalidInput) as caught:
        edit.set_value("a = 1\nb = = 2\n", (), "x", 1, "/etc/x.toml")
    assert caught.value.where == "/etc/x.toml:2"
    with pytest.raises(InvalidInput, match="no array of strings"):
        edit.add_element("imports = 1\n", "imports", "x", "f")


KEYS = st.sampled_from(["a", "b", "imports", "version", "x y", "é.z"])
SCALARS = st.one_of(
    st.text(max_size=8).filter(lambda s: "set by gpuplane" not in s),
    st.integers(-(2**31), 2**31),
    st.booleans(),
    st.floats(allow_nan=False),
    st.dates(),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
TABLES = st.recursive(
    st.dictionaries(KEYS, VALUES, max_size=3),
    lambda inner: st.dictionaries(KEYS, st.one_of(VALUES, inner), max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(TABLES)
def test_new_text_means_what_it_is_made_from(data: dict[str, Any]) -> None:
    assert tomllib.loads(edit.dump(data)) == data


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Valid TOML in many spellings: comments, blank lines, line ends, no newline at the end."""
    text = edit.dump(draw(TABLES))
    lines = []
    for line in text.splitlines():
        lines.append(draw(st.sampled_from(["", " ", "\t"])) + line + draw(st.sampled_from(["", " # note", "  #[x]"])))
        lines += draw(st.lists(st.sampled_from(["", "# c = 1", "  # [t]"]), max_size=1))
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    return newline.join(lines) + draw(st.sampled_from(["", newline]))


@settings(max_examples=100, deadline=None)
@given(texts(), st.sampled_from([(), ("a",), ("a", "b"), ("new", "table")]), st.sampled_from(["a", "k"]), SCALARS)
def test_any_text_edited_can_be_stripped_to_the_same_bytes(
    text: str, table: tuple[str, ...], key: str, value: object
) -> None:
    assert strip(text, {"imports": "/ours"}, "f") == text
    try:
        new = edit.set_value(text, table, key, value, "f")
        new = edit.append_tables(new, {"gpuplane": {"ours": {"x": value}}}, "f")
    except InvalidInput:
        return  # refused, and that is all
    assert strip(new, {}, "f") == text
    try:
        new = edit.add_element(text, "imports", "/ours", "f")
    except InvalidInput:
        return
    if new != text:
        assert strip(new, {"imports": "/ours"}, "f") == text


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_what_was_written_below_ours_stays_a_line_of_its_own(newline: str) -> None:
    text = f"version = 2{newline}# theirs"
    below = f"[mine]{newline}a = 1{newline}"
    with_line = edit.set_value("version = 2", (), "x", 1, "f") + newline + below
    assert strip(with_line, {}, "f") == f"version = 2\n{below}"
    with_block = edit.append_tables(text, {"ours": {"x": 1}}, "f") + below
    assert strip(with_block, {}, "f") == f"{text}{newline}{below}"


SPACED = ('a . "b" . c = 1 # mine', '[a]\n "b" . c\t=\t1', "[a.b]\nc=1", "a. \"b\".'c' =1", '["a" . b]\n"c"= 1')


@pytest.mark.parametrize("newline", ["", "\n", "\r\n[z]\r\n"])
@pytest.mark.parametrize("text", SPACED)
def test_values_of_dotted_keys_with_spaces_are_edited_and_restored(text: str, newline: str) -> None:
    text = text.replace("\n", "\r\n" if "\r" in newline else "\n") + newline
    replaced = edit.set_value(text, ("a", "b"), "c", 2, "f")
    assert tomllib.loads(replaced)["a"] == {"b": {"c": 2}}
    added = edit.set_value(replaced, ("a", "b"), "d", "x = 1", "f")
    assert tomllib.loads(added)["a"] == {"b": {"c": 2, "d": "x = 1"}}
    deep = edit.set_value("a . b.c. d = 1\n", ("a", "b"), "e", 1, "f")
    assert tomllib.loads(deep)["a"] == {"b": {"c": {"d": 1}, "e": 1}}
    more = edit.append_tables(added, {"a": {"b": {"t": {"x": 1}}}}, "f")
    assert tomllib.loads(more)["a"] == {"b": {"c": 2, "d": "x = 1", "t": {"x": 1}}}
    for edited in (replaced, added, more):
        assert strip(edited, {}, "f") == text


def test_a_key_with_the_signs_of_toml_in_quotes_is_restored() -> None:
    text = "a . 'x = \"1' . \"y # \\\" =\" = 'v = 1' # z\n"
    edited = edit.set_value(text, ("a", 'x = "1'), 'y # " =', "w", "f")
    assert tomllib.loads(edited) == {"a": {'x = "1': {'y # " =': "w"}}}
    assert strip(edited, {}, "f") == text
