"""The site's search finds tasks by the words that people type. `make docs` installs mkdocs, builds, and runs this."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The words of each section of the site, by its location, as the search's index has them."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: make docs installs it")
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    subprocess.run(command, cwd=ROOT, check=True)
    found: dict[str, set[str]] = {}
    for section in json.loads((site / "search" / "search_index.json").read_text())["docs"]:
        text = html.unescape(re.sub(r"<[^>]+>", " ", f"{section['title']} {section['text']}"))
        found[section["location"]] = set(re.findall(r"[\w-]+", text.lower()))
    return found


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("jupyter", "tasks/notebooks/"),
        ("notebook", "tasks/notebooks/"),
        ("OOM", "tasks/notebooks/"),
        ("out of memory", "tasks/notebooks/"),
        ("node not ready", "tasks/status/"),
        ("GPU operator", "tasks/move/"),
        ("pod pending", "tasks/explain/"),
    ],
)
def test_search_finds_the_task(index: dict[str, set[str]], words: str, page: str) -> None:
    """One section of the page has all of the words."""
    wanted = set(words.lower().split())
    assert [place for place, known in index.items() if place.startswith(page) and wanted <= known]


def test_search_finds_nothing_for_a_word_that_no_page_has(index: dict[str, set[str]]) -> None:
    assert index and not [place for place, known in index.items() if "xylophone" in known]
