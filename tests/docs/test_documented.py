"""Every name that users can write is documented."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane.api.crds import crds

ROOT = Path(__file__).parents[2]
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
PROJECTS = [tomllib.loads(path.read_text())["project"] for path in ROOT.glob("packages/*/pyproject.toml")]


def requirement_name(line: str) -> str:
    return re.split(r"[<>=!~\[; ]", line, maxsplit=1)[0]


def test_every_dependency_is_justified_and_none_besides() -> None:
    named = ("dev", "clone", "cuda", "cuda-runtime", "cupy", "pytorch", "browser")
    groups = (line for name in named for line in GROUPS[name])
    declared = [*groups, *(line for project in PROJECTS for line in project["dependencies"])]
    for project in PROJECTS:
        declared += [line for extra in project.get("optional-dependencies", {}).values() for line in extra]
    wanted = {requirement_name(line) for line in declared} - {project["name"] for project in PROJECTS}
    rows = re.findall(r"^\| ([\w, -]+?) \|", (ROOT / "docs/dependencies.md").read_text(), flags=re.M)
    listed = {name.strip() for row in rows for name in row.split(",")} - {"package"}
    assert listed == wanted


def nav_files() -> list[str]:
    return re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())


def test_every_page_of_the_navigation_has_a_title() -> None:
    assert not [name for name in nav_files() if not (ROOT / "docs" / name).read_text().startswith("# ")]


def test_every_page_is_in_the_navigation() -> None:
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert pages == set(nav_files())


def pages_of(entries: Any) -> list[str]:
    """Return the pages of a part of the navigation, in the order of the site."""
    if isinstance(entries, str):
        return [entries]
    if isinstance(entries, dict):
        entries = list(entries.values())
    return [page for entry in entries for page in pages_of(entry)]


def test_readers_meet_the_tasks_before_the_components() -> None:
    _, _, text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    sections = {title: pages_of(entries) for entry in yaml.safe_load(text) for title, entries in entry.items()}
    assert list(sections)[:2] == ["Home", "Tasks"] and list(sections)[-1] == "How it is made"
    folders = {title: {str(Path(page).parent) for page in pages} for title, pages in sections.items()}
    assert [title for title, found in folders.items() if "tasks" in found] == ["Tasks"]
    assert [title for title, found in folders.items() if "components" in found] == ["How it is made"]
    links = re.findall(r"\]\((\w+)/\w", (ROOT / "docs/index.md").read_text())
    assert links[0] == "tasks"


def test_the_readme_has_the_figures_of_kubernetes_own_specs() -> None:
    page = (ROOT / "docs/components/conformance.md").read_text()
    measured = re.findall(r"^\| all \|.*\| (\d+ of \d+) \(", page, flags=re.M)
    promised = re.findall(r"it passes (\d+ of \d+) of \[Kubernetes' own", (ROOT / "README.md").read_text())
    assert promised == measured != []


def test_the_pages_count_the_crds_that_an_installation_brings() -> None:
    words = {6: "six", 7: "seven", 8: "eight", 9: "nine"}
    assert f": {words[len(crds())]} CRDs," in (ROOT / "docs/tasks/install.md").read_text()
    assert f"✓ {len(crds())} CRDs of" in (ROOT / "docs/tasks/doctor.md").read_text()


@pytest.mark.parametrize("words", ["jupyter", "notebook", "OOM", "out of memory", "node is not ready", "GPU operator"])
def test_a_task_has_the_words_that_people_search_for(words: str) -> None:
    pages = [path for path in (ROOT / "docs/tasks").glob("*.md") if words.lower() in path.read_text().lower()]
    assert pages
