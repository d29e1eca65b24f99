"""The reference is what the code says: commands, fields, names, metrics, findings, variables."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from docs import generate
from gpuplane import names
from gpuplane.cli.parser import parse

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "packages/gpuplane/src/gpuplane"
SOURCES = sorted(ROOT.glob("packages/*/src/*/"))
OURS = re.compile(
    r"(?:[a-z]+\.)*(?:gpuplane\.dev|nvidia\.com|feature\.node\.kubernetes\.io)/[A-Za-z0-9._-]*[A-Za-z0-9]"
)
CAUSE = re.compile(r"[A-Z]+[a-z]+(?:[A-Z]+[a-z]*)+")


@cache
def pages() -> dict[str, str]:
    return generate.pages()


def test_the_reference_pages_are_what_the_code_says() -> None:
    written = {name: (ROOT / "docs" / "reference" / name).read_text() for name in pages()}
    assert not [name for name in pages() if written[name] != pages()[name]], "run: python docs/generate.py"


def test_pages_do_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    written = pages()
    monkeypatch.setenv("COLUMNS", "40")
    assert generate.pages() == written


def test_every_name_says_what_it_is_for() -> None:
    silent = [name for _, rows in generate.named() for name, about in rows if not about]
    assert not silent


@cache
def texts() -> dict[Path, str]:
    """The text of every module. To parse all of them takes seconds; a test parses those that it needs."""
    paths = [path for folder in SOURCES for path in sorted(folder.rglob("*.py")) if "protocol" not in path.parts]
    return {path: path.read_text() for path in paths}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(texts()[path])


def strings(tree: ast.Module) -> Iterator[str]:
    """The string constants of a module that are no docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_every_label_annotation_and_resource_of_ours_is_documented() -> None:
    reference = "\n".join(pages().values())

    def unknown(text: str) -> set[str]:
        return {found for found in OURS.findall(text) if found not in reference and not re.search(r"/v\d", found)}

    assert any(OURS.search(text) for text in texts().values())
    suspects = [path for path, text in texts().items() if unknown(text)]
    assert not {found for path in suspects for text in strings(tree(path)) for found in unknown(text)}


@cache
def constants() -> dict[str, str]:
    """Module-level string constants by name: NAME -> value, for variables that are read through one."""
    assignment = re.compile(r'^(\w+)(?:: [^=\n]+)? = "([^"\\\n]*)"', flags=re.M)
    return {name: value for text in texts().values() for name, value in assignment.findall(text)}


@cache
def read_variables() -> frozenset[str]:
    """Every variable of the environment that Python or C of ours reads or sets by name."""
    known = constants()
    found: set[str] = set()
    for path, text in texts().items():
        if "env" not in text:
            continue
        for node in ast.walk(tree(path)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("get", "getenv")
            ):
                owner, keys = ast.unparse(node.func.value), node.args[:1]
            elif isinstance(node, ast.Subscript):
                owner, keys = ast.unparse(node.value), [node.slice]
            else:
                continue
            if owner not in ("os.environ", "os", "env", "environ", "self._environ") or "kubelet" in path.parts:
                continue
            for key in keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found.add(key.value)
                elif isinstance(key, ast.Name | ast.Attribute):
                    name = key.id if isinstance(key, ast.Name) else key.attr
                    found |= {known[name]} & set(known.values()) if name in known else set()
    for path in ROOT.glob("packages/*/native/**/*.[ch]"):
        found |= set(re.findall(r'getenv\("(\w+)"\)', path.read_text(errors="replace")))
    return frozenset(found)


def test_every_variable_that_is_read_is_documented() -> None:
    documented = {name for group in generate.ENVIRONMENT.values() for name in group}
    assert "NODE_NAME" in read_variables()
    assert not read_variables() - documented


def test_no_variable_is_documented_that_nobody_knows() -> None:
    text = "\n".join(
        path.read_text(errors="replace") for path in ROOT.glob("packages/*/*/**/*.*") if path.suffix in (".py", ".c")
    )
    elsewhere = {"COLUMNS"}  # read by Python's shutil.get_terminal_size
    documented = {name for group in generate.ENVIRONMENT.values() for name in group} - elsewhere
    assert not {name for name in documented if f'"{name}"' not in text}


def reasons(package: str) -> set[str]:
    """The CamelCase causes that a package gives to failed stages: what it passes to calls or returns."""
    found = set()
    for path in texts():
        if SOURCE / package not in path.parents:
            continue
        for node in ast.walk(tree(path)):
            values: list[ast.expr | None] = []
            if isinstance(node, ast.Call) and ast.unparse(node.func) != "getattr":
                values = [*node.args, *(keyword.value for keyword in node.keywords)]
            elif isinstance(node, ast.IfExp):
                values = [node.body, node.orelse]
            elif isinstance(node, ast.Return):
                values = [node.value]
            constant = [value.value for value in values if isinstance(value, ast.Constant)]
            found |= {text for text in constant if isinstance(text, str) and CAUSE.fullmatch(text)}
    return found


@pytest.mark.parametrize("package", ["driver", "toolkit", "validator", "device_plugin"])
def test_every_reason_of_a_failed_stage_is_on_its_components_page(package: str) -> None:
    page = (ROOT / "docs" / "components" / f"{package.replace('_', '-')}.md").read_text()
    assert reasons(package)
    assert not {reason for reason in reasons(package) if f"`{reason}`" not in page}


def test_reasons_in_the_troubleshooting_table_are_those_of_the_components() -> None:
    pages = {"cuda": "validator", "plugin": "validator"}
    rows = re.findall(r"^\| ([a-z-]+) \| `(\w+)` \|", (ROOT / "docs" / "operations.md").read_text(), flags=re.M)
    assert rows
    for stage, reason in rows:
        page = (ROOT / "docs" / "components" / f"{pages.get(stage, stage)}.md").read_text()
        assert f"`{reason}`" in page, (stage, reason)


def commands() -> list[tuple[str, str]]:
    """(page, command) of every `gpuplane ...` that stands in a code block or between backticks."""
    found = []
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        blocks = re.findall(r"^(?:    |\t)(.+)$", text, flags=re.M)
        blocks += [line for block in re.findall(r"```\w*\n(.*?)```", text, flags=re.S) for line in block.splitlines()]
        blocks += re.findall(r"`([^`\n]+)`", text)
        for line in blocks:
            match = re.match(r"(?:\$ )?(?:\.venv/bin/|kubectl )?gpuplane (?!demo  )([a-z][^|#;>]*)", line.strip())
            if match and path.parent.name != "reference":
                found.append((str(path.relative_to(ROOT)), re.split(r"  +|\.\.\.", match[1])[0].strip()))
    return sorted(set(found))


@cache
def is_understood(command: str) -> bool:
    words = shlex.split(command.replace("\\", ""))
    try:
        parse(words)
    except SystemExit as end:
        return end.code == 0 or len(words) == 1 or "COMPONENT" in words
    return True


def test_every_command_in_the_pages_is_understood() -> None:
    assert len(commands()) > 50
    assert not [f"{page}: gpuplane {command}" for page, command in commands() if not is_understood(command)]


def test_the_namespace_of_the_pages_is_the_operators() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        for namespace in re.findall(r"kubectl -n (\S+)", page.read_text()):
            assert namespace in (names.OPERATOR_NAMESPACE, "NAMESPACE"), page
