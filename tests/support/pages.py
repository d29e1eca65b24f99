"""The fenced blocks of the documentation's pages: what a test runs is what a reader copies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[2] / "docs"
_FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, its title (the name of a file; "" for none) and its text."""

    language: str
    title: str
    text: str


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page, in their order."""
    return [Block(*found) for found in _FENCE.findall((DOCS / page).read_text(encoding="utf-8"))]


def commands(page: str) -> list[str]:
    """The blocks of commands."""
    return [block.text for block in blocks(page) if block.language == "bash"]


def files(page: str) -> dict[str, str]:
    """The files that a page shows, by name."""
    return {block.title: block.text for block in blocks(page) if block.title}
