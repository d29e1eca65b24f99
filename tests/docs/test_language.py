"""The lint of docs/language.md finds what breaks a rule, where it is, and nothing else."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

LINT = runpy.run_path(str(Path(__file__).parents[2] / "tools/plain_english.py"))


def found(folder: Path) -> list[str]:
    """Check all files of a folder; return `name:line: first word of the message`."""
    pages = sorted(path for path in folder.iterdir() if path.suffix != ".py")
    findings = LINT["check"](sorted(folder.rglob("*.py")), pages)
    return [f"{path.name}:{line}: {message.split(':')[0]}" for path, line, message in findings]


LONG = "word " * 30 + "end."
FAILS = {
    "a comment": ("a.py", "x = 1  # nobody reads it\n", ['a.py:1: "nobody"']),
    "a docstring": ("a.py", '"""One.\n\nIt stands beside it.\n"""\n', ['a.py:3: "beside"']),
    "a message": ("a.py", 'x = "the runtime is told"\n', ['a.py:1: "told"']),
    "a formatted message": ("a.py", 'x = f"made anew by {y}"\n', ['a.py:1: "anew"']),
    "a capital": ("a.md", "Whoever asks.\n", ['a.md:1: "whoever"']),
    "a passive with an adverb": ("a.md", "Room was always kept.\n", ['a.md:1: "kept"']),
    "a passive before a colon": ("a.md", "The list is shown: by name.\n", ['a.md:1: "shown"']),
    "two passives": ("a.md", "Room is given and was said.\n", ['a.md:1: "given"', 'a.md:1: "said"']),
    "an invalid value": ("a.py", "x = 1  # a lease that is none\n", ['a.py:1: "is none"']),
    "an unknown value": ("a.py", 'x = "the kind is not known"\n', ['a.py:1: "not known"']),
    "a subject": ("a.md", "What is free stays.\n", ['a.md:1: "What"']),
    "a second sentence's subject": ("a.md", "A pod waits. Who asks gets room.\n", ['a.md:1: "Who"']),
    "an item's subject": ("a.md", "- **What a pod gets**: a GPU.\n", ['a.md:1: "What"']),
    "a subject without a noun": ("a.md", "Nodes join. One that fails stays.\n", ['a.md:1: "One that"']),
    "a comment's subject": ("a.py", "# What is free.\nx = 1\n", ['a.py:1: "What"']),
    "an attribute's subject": ("a.py", 'x = 1\n"""What a node has."""\n', ['a.py:2: "What"']),
    "a manifest": ("a.yaml", "# What a pod needs.\na: 1\n", ['a.yaml:1: "What"']),
    "a comment in C": (
        "a.c",
        "int x;\n/* a\n * What is free. */ int y; // is told\n",
        ['a.c:3: "What"', 'a.c:3: "told"'],
    ),
    "a pronoun": ("a.md", "A pod waits. It starts. They end.\n", ['a.md:1: "It"', 'a.md:1: "They"']),
    "an item's pronoun": ("a.md", "- **It** waits.\n- It waits.\n", ['a.md:2: "It"']),
    "a table": ("a.md", "| a | nobody |\n", ['a.md:1: "nobody"']),
    "a module": ("utils.py", "", ["utils.py:1: module utils"]),
    "a function's clause": (
        "a.py",
        'def f():\n    """Which it is."""\n',
        ['a.py:1: the docstring begins with "Which"'],
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
    "a verb of two words": ("a.md", "The GPU is given back, the pods are kept apart.\n"),
    "a noun before": ("a.md", "The value, empty where there is none.\n"),
    "a value": ("a.py", '"""A watch, if `x` is None."""\n'),
    "names": ("a.py", "is_shown = told = kept = given = said = 1\n"),
    "an active verb": ("a.md", "The server has shown it. The pod kept its given name.\n"),
    "a question": ("a.md", "What is a share? Who holds it?\n"),
    "a heading": ("a.md", "## What a pod gets\n"),
    "a title": ("a.py", 'x = "What needs you"\n'),
    "a clause as object": ("a.md", "The table lists what is free, and who waits.\n"),
    "a number": ("a.md", "One of them waits. One pod runs.\n"),
    "a long manifest": ("a.yaml", f"# {LONG}\na: 1\n"),
    "code in C": ("a.c", 'char *nobody = "is told"; /* free */\n'),
    "a pronoun without a noun": ("a.md", "It is safe to stop it. It takes time to start. It is clear that it waits.\n"),
    "a pronoun in a sentence": ("a.md", "A pod waits until it starts, and then it ends.\n"),
    "a pronoun in a docstring": ("a.py", '"""Pods wait. They start."""\n'),
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


def test_strings_of_tests_are_data(tmp_path: Path) -> None:
    path = tmp_path / "test_a.py"
    path.write_text(
        '"""It stands beside it."""\n\n# told\nx = 1  # made anew\n"""What x is."""\ny = "is told"\nf("anew")\n'
    )
    findings = [(line, message.split(":")[0]) for _, line, message in LINT["check"]([], [], [path])]
    assert findings == [(1, '"beside"'), (4, '"anew"'), (5, '"What"')]


def test_a_string_in_brackets_is_data(tmp_path: Path) -> None:
    path = tmp_path / "test_a.py"
    path.write_text('x = [\n    "nobody",\n    "anew"\n    # a comment\n    "beside"\n]\n')
    assert list(LINT["check"]([], [], [path])) == []


def test_public_classes_share_no_name(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class Plan: ...\nclass _Own: ...\nclass A:\n    class Inner: ...\n")
    (tmp_path / "b.py").write_text("import a\n\nclass Plan: ...\nclass _Own: ...\nclass B:\n    class Inner: ...\n")
    assert found(tmp_path) == [f"b.py:3: class Plan is also in {tmp_path / 'a.py'}"]


def test_every_word_has_its_finding(tmp_path: Path) -> None:
    passives = [f"it is {word}" for word in LINT["PASSIVES"]]
    subjects = [f"{word.capitalize()} waits" for word in LINT["SUBJECTS"]]
    texts = [*LINT["REPLACEMENTS"], *passives, *LINT["PHRASES"], *subjects]
    (tmp_path / "a.md").write_text("\n\n".join(texts))
    assert [line.split(":")[1] for line in found(tmp_path)] == [str(number) for number in range(1, 2 * len(texts), 2)]
