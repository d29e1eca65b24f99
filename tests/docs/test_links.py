"""What pages point to exists: links, anchors, files, modules. And nothing in them is of one machine only."""

from __future__ import annotations

import importlib
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```.*?^```", flags=re.S | re.M)
FILE = re.compile(r"`([\w./-]+\.(?:py|c|h|def|proto|md))`")
FOLDER = re.compile(r"`((?:packages|tests|native|benchmarks|docs)/[\w./-]*)`")
MODULE = re.compile(r"`((?:kubekit|tinykube|simgpu|gpuplane|gpulab)(?:\.\w+)+)`")


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a page's headings, as mkdocs and GitHub make them."""
    text = FENCED.sub("", path.read_text())
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.M):
        slug = re.sub(r"[^\w\s-]", "", heading).strip().lower()
        found.append(re.sub(r"[\s]+", "-", slug))
    return frozenset(found)


def links() -> list[tuple[Path, str]]:
    found = []
    for path in PAGES:
        text = FENCED.sub("", path.read_text())
        found += [(path, target) for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    return found


@pytest.mark.parametrize(
    ("page", "target"), links(), ids=lambda value: page_name(value) if isinstance(value, Path) else value
)
def test_links_resolve(page: Path, target: str) -> None:
    if target.startswith(("http://", "https://")):
        return
    file, _, anchor = target.partition("#")
    found = (page.parent / file).resolve() if file else page
    assert found.exists(), target
    if anchor:
        assert anchor in anchors(found), target


@cache
def files() -> frozenset[str]:
    """Every path of the repository and every ending of one: `decide.py`, `operator/decide.py`, ..."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    paths = listed.stdout.split() or [page_name(path) for path in ROOT.rglob("*") if ".venv" not in path.parts]
    endings: set[str] = set()
    for path in paths:
        parts = path.split("/")
        endings.update("/".join(parts[start:]) for start in range(len(parts)))
    return frozenset(endings)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    gone = [name for name in FILE.findall(text) if name not in files()]
    gone += [name for name in FOLDER.findall(text) if not (ROOT / name).exists()]
    assert not gone


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_modules_that_a_page_names_exist(page: Path) -> None:
    for name in set(MODULE.findall(page.read_text())):
        if name.startswith("gpuplane.dev"):
            continue
        module, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs" / "demo.svg"], ids=page_name)
def test_nothing_is_of_one_machine_only(page: Path) -> None:
    text = page.read_text()
    assert str(ROOT) not in text
    assert not re.search(r"/tmp/tmp\w|/home/\w|/Users/\w", text)


def test_the_command_of_ci_is_the_readmes() -> None:
    command = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    assert f"    {command}\n" in (ROOT / "README.md").read_text()
