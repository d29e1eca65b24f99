"""Blocks of code in the pages: each names its language, and commands stand apart from output.

A reader copies a block of commands as it is, and the site colours and copies by language.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(path for path in (ROOT / "packages").rglob("*.md") if "node_modules" not in path.parts),
]
SHELL = ("bash", "sh")
LANGUAGES = {*SHELL, "text", "yaml", "json", "python", "csv", "toml", "diff", "mermaid", "promql"}
PROGRAMS = {
    *(
        "apt-get",
        "cat",
        "chroot",
        "curl",
        "echo",
        "export",
        "kill",
        "ls",
        "make",
        "mkdir",
        "pip",
        "pytest",
        "python",
        "python3",
        "until",
    ),
    *("ctr", "docker", "gpuplane", "helm", "kubectl", "nvidia-smi", "skopeo", "source"),
}
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


class CodeBlock(NamedTuple):
    """A fenced block; `line` is that of its fence."""

    line: int
    language: str
    lines: list[str]


def fenced(text: str) -> Iterator[CodeBlock]:
    start, language, lines = 0, "", list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"\s*```(.*)$", line)
        if fence and not start:
            start, language, lines = number, fence[1].split(" ")[0].strip(), []
        elif fence:
            yield CodeBlock(start, language, lines)
            start = 0
        elif start:
            lines.append(line)


def indented(text: str) -> list[int]:
    """Return the lines on which blocks begin that are code by their indentation, so without a language."""
    found = []
    fence, before, in_list = False, "", False
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*```", line):
            fence = not fence
        elif not fence:
            if re.match(r" {0,3}([-*]|\d+\.) ", line):
                in_list = True
            elif line.strip() and not line.startswith(" "):
                in_list = False
            if line.startswith("      " if in_list else "    ") and not before.strip():
                found.append(number)
        before = line
    return found


def commands(block: CodeBlock) -> list[str]:
    """Return the lines of a block on which a command begins: not those inside quotes or after a backslash."""
    found, text = [], ""
    for line in block.lines:
        if not text and line.strip() and not line.lstrip().startswith("#"):
            found.append(line.strip())
        text += line + "\n"
        if not line.endswith("\\") and text.count("'") % 2 == text.count('"') % 2 == 0:
            text = ""
    return found


def is_command(line: str) -> bool:
    """Return whether a line begins with a program that the pages use, or with assignments."""
    words = line.split()
    while words and ASSIGNMENT.match(words[0]):
        if words[0].count("(") > words[0].count(")"):
            return True
        words = words[1:]
    return not words or words[0].rpartition("/")[2] in PROGRAMS


def where(page: Path, line: int) -> str:
    return f"{page.relative_to(ROOT)}:{line}"


def test_the_pages_are_found() -> None:
    assert sum(len(list(fenced(page.read_text()))) for page in PAGES) > 150


def test_every_block_names_its_language() -> None:
    blocks = [(page, block) for page in PAGES for block in fenced(page.read_text())]
    assert not [where(page, block.line) for page, block in blocks if block.language not in LANGUAGES]
    assert not [where(page, line) for page in PAGES for line in indented(page.read_text())]


def test_commands_stand_apart_from_output() -> None:
    blocks = [(page, block) for page in PAGES for block in fenced(page.read_text())]
    shell = [(page, block) for page, block in blocks if block.language in SHELL]
    assert not [where(page, block.line) for page, block in shell if not all(map(is_command, commands(block)))]
    others = [(page, block) for page, block in blocks if block.language in ("text", "yaml", "json")]
    assert not [where(page, block.line) for page, block in others if any(line.startswith("$ ") for line in block.lines)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_shell(page: Path) -> None:
    for block in fenced(page.read_text()):
        if block.language in SHELL:
            text = "\n".join(block.lines)
            done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
            assert not done.returncode, f"{where(page, block.line)}: {done.stderr}"


@pytest.mark.parametrize(
    ("text", "languages", "code", "apart"),
    [
        ("```bash\nls\n```\n", ["bash"], [], True),
        ("```\nls\n```\n", [""], [], True),
        ("a\n\n    ls\n", [], [3], True),
        ("- a\n\n      ls\n", [], [3], True),
        ("- a\n  b\n\n    c\n", [], [], True),
        ("```bash\nkubectl get nodes\nNAME STATUS\n```\n", ["bash"], [], False),
        ("```bash\n$ kubectl get nodes\n```\n", ["bash"], [], False),
        ("```bash\nls '\nNAME'\nls \\\n  -l\nA=$(ls x) ls # x\n```\n", ["bash"], [], True),
    ],
)
def test_the_checks_find_what_they_are_for(text: str, languages: list[str], code: list[int], apart: bool) -> None:
    blocks = list(fenced(text))
    assert ([block.language for block in blocks], indented(text)) == (languages, code)
    assert all(is_command(line) for block in blocks if block.language in SHELL for line in commands(block)) == apart
