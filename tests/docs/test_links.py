"""Links of pages lead to existing pages, anchors, files and modules. No page has a path of one machine."""

from __future__ import annotations

import importlib
import re
import subprocess
from functools import cache
from pathlib import Path

from gpuplane.cli.verbs import GROUP as ENTRY_POINTS

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


def resolves(page: Path, target: str) -> bool:
    file, _, anchor = target.partition("#")
    found = (page.parent / file).resolve() if file else page
    return found.exists() and (not anchor or anchor in anchors(found))


def test_links_resolve() -> None:
    local = [(page, target) for page, target in links() if not target.startswith(("http://", "https://"))]
    assert local
    assert not [f"{page_name(page)}: {target}" for page, target in local if not resolves(page, target)]


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


def test_files_that_a_page_names_exist() -> None:
    gone = []
    for page in PAGES:
        text = page.read_text()
        gone += [f"{page_name(page)}: {name}" for name in FILE.findall(text) if name not in files()]
        gone += [f"{page_name(page)}: {name}" for name in FOLDER.findall(text) if not (ROOT / name).exists()]
    assert not gone


def is_there(name: str) -> bool:
    """Return whether a dotted name is a module, or an attribute of one."""
    module, _, attribute = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return hasattr(importlib.import_module(module), attribute)
    return True


def test_modules_that_a_page_names_exist() -> None:
    named = [(page, name) for page in PAGES for name in set(MODULE.findall(page.read_text()))]
    others = ("gpuplane.dev", ENTRY_POINTS)  # an API group, and a group of entry points
    gone = [(page, name) for page, name in named if not name.startswith(others) and not is_there(name)]
    assert not [f"{page_name(page)}: {name}" for page, name in gone]


def test_nothing_is_of_one_machine_only() -> None:
    paths = re.compile(rf"{re.escape(str(ROOT))}|/tmp/tmp\w|/home/\w|/Users/\w")
    texts = {page_name(page): page.read_text() for page in [*PAGES, ROOT / "docs" / "demo.svg"]}
    assert not [f"{page}: {found}" for page, text in texts.items() for found in paths.findall(text)]


def test_the_command_of_ci_is_the_readmes() -> None:
    command = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    assert f"```bash\n{command}\n```\n" in (ROOT / "README.md").read_text()
