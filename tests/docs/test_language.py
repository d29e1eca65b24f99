"""The lint of docs/language.md finds what breaks a rule, where it is, and nothing else."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

LINT = runpy.run_path(str(Path(__file__).parents[2] / "tools/plain_english.py"))


def found(folder: Path) -> list[str]:
    """Check all files of a folder; return `name:line: first word of the message`."""
    findings = LINT["check"](sorted(folder.rglob("*.py")), sorted(folder.rglob("*.md")))
    return [f"{path.name}:{line}: {message.split(':')[0]}" for path, line, message in findings]


LONG = "word " * 30 + "end."
FAILS = {
    "a comment": ("a.py", "x = 1  # nobody reads it\n", ['a.py:1: "nobody"']),
    "a docstring": ("a.py", '"""One.\n\nIt stands beside it.\n"""\n', ['a.py:3: "beside"']),
    "a message": ("a.py", 'x = "the runtime is told"\n', ['a.py:1: "is told"']),
    "a formatted message": ("a.py", 'x = f"made anew by {y}"\n', ['a.py:1: "anew"']),
    "a capital": ("a.md", "Whoever asks.\n", ['a.md:1: "whoever"']),
    "a table": ("a.md", "| a | nobody |\n", ['a.md:1: "nobody"']),
    "a module": ("utils.py", "", ["utils.py:1: module utils"]),
    "a function's clause": (
        "a.py",
        'def f():\n    """What is kept."""\n',
        ['a.py:1: the docstring begins with "What"'],
    ),
    "a module's clause": ("a.py", '"""How it works."""\n', ['a.py:1: the docstring begins with "How"']),
    "a long sentence": ("a.md", f"Short.\n{LONG}\n", ["a.md:1: a sentence of 31 words, at most 30"]),
    "a long item": ("a.md", f"- {LONG}\n", ["a.md:1: a sentence of 31 words, at most 30"]),
    "a long sentence after code": ("a.md", f"```\nx\n```\n\n{LONG}\n", ["a.md:5: a sentence of 31 words, at most 30"]),
}
PASSES = {
    "a name": ("a.py", "nobody = beside = 1\n"),
    "a word within a word": ("a.md", "Besides, renewal.\n"),
    "code in a page": ("a.md", "The user `nobody` has id 65534.\n"),
    "code in a docstring": ("a.py", '"""The user `nobody`."""\n'),
    "a verb first": ("a.py", 'def f():\n    """Return what is cached."""\n'),
    "a code block": ("a.md", f"Text:\n\n    {LONG}\n\n```\n{LONG}\n```\n"),
    "a table's long row": ("a.md", f"| {LONG} |\n"),
    "30 words": ("a.md", "word " * 29 + "end.\n"),
    "a list of code": ("a.md", "Labels: " + ", ".join(["`a b`"] * 40) + " and `c`.\n"),
    "two sentences": ("a.md", "word " * 20 + "end. " + "word " * 20 + "end.\n"),
    "two items": ("a.md", "- " + "word " * 20 + "\n- " + "word " * 20 + "\n"),
}


@pytest.mark.parametrize(("name", "text", "expected"), FAILS.values(), ids=FAILS)
def test_it_finds(tmp_path: Path, name: str, text: str, expected: list[str]) -> None:
    (tmp_path / name).write_text(text)
    assert found(tmp_path) == expected


@pytest.mark.parametrize(("name", "text"), PASSES.values(), ids=PASSES)
def test_it_lets_pass(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert found(tmp_path) == []


def test_public_classes_share_no_name(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class Plan: ...\nclass _Own: ...\nclass A:\n    class Inner: ...\n")
    (tmp_path / "b.py").write_text("import a\n\nclass Plan: ...\nclass _Own: ...\nclass B:\n    class Inner: ...\n")
    assert found(tmp_path) == [f"b.py:3: class Plan is also in {tmp_path / 'a.py'}"]


def test_every_word_has_its_finding(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("\n".join(LINT["REPLACEMENTS"]))
    assert len(found(tmp_path)) == len(LINT["REPLACEMENTS"])
