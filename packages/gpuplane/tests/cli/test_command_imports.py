"""The start of a command: the modules that it imports, and the commands of other packages."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuplane.cli import parser, verbs
from gpuplane.cli.completion import candidates
from gpuplane.cli.components import OPERANDS, OTHERS
from gpuplane.cli.main import main
from gpuplane.cli.parser import parse


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the commands that other packages add to gpuplane."""
    monkeypatch.setattr(verbs, "_entry_points", dict)
    verbs.installed.cache_clear()
    yield
    verbs.installed.cache_clear()


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom gpuplane.cli.parser import build\nfrom gpuplane.cli.verbs import installed\n"
        "assert ' demo ' in build(installed()).format_help()\n"
        "heavy = {'msgspec', 'asyncio', 'yaml', 'rich', 'grpc', 'uvicorn', 'lightkube', 'ssl'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("words", ["--help", "status -o json", "run driver --node-name n"])
def test_the_parsers_are_built_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    built = []
    build = parser.build
    monkeypatch.setattr(parser, "build", lambda *given, **more: built.append(given) or build(*given, **more))
    with contextlib.suppress(SystemExit):
        parse(words.split())
    assert len(built) == 1
    capsys.readouterr()


@pytest.mark.parametrize(
    ("module", "unused"),
    [
        ("status", {"yaml", "rich", "grpc", "gpuplane.operator", "gpuplane.explain", "gpuplane.api.manifests"}),
        (
            "explain",
            {"yaml", "rich", "grpc", "gpuplane.operator", "gpuplane.api.clusterpolicy", "gpuplane.api.manifests"},
        ),
    ],
)
def test_status_and_explain_import_nothing_that_they_do_not_use(module: str, unused: set[str]) -> None:
    script = f"import sys, gpuplane.cli.{module}\nprint(sorted({unused!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_operand_starts_without_looking_for_other_packages() -> None:
    script = (
        "import sys\nfrom gpuplane.cli.parser import parse\nparse(['run', 'driver', '--node-name', 'n'])\n"
        "others = {f'gpuplane.cli.{name}_parser' for name in ('cluster', 'local', 'machine', 'share', 'simulate')}\n"
        "print(sorted({'importlib.metadata', 'gpulab', *others} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("alone")
def test_without_gpulab_the_command_has_no_embedded_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert not {"up", "down", "demo"} & set(candidates([""]))
    assert candidates(["run", ""]) == sorted(OPERANDS | OTHERS)
    for words in (["up"], ["demo"], ["run", "kubelet"]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 2
    capsys.readouterr()


@pytest.mark.usefixtures("alone")
def test_without_gpulab_simulated_gpus_name_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(["share", "run", "--core", "30", "--simulate", "t4", "--", "true"]) == 125
    assert main(["share", "top", "--simulate", "t4"]) == 1
    assert capsys.readouterr().err.count("pip install gpuplane-gpulab") == 2


@pytest.mark.parametrize("component", [*OPERANDS, *OTHERS])
def test_a_component_starts_without_the_parsers_of_other_commands(
    monkeypatch: pytest.MonkeyPatch, component: str
) -> None:
    words = ["run", component, "--kubeconfig", "/k"]
    expected = vars(parser.build().parse_args(words))
    monkeypatch.setattr(parser, "_add_commands", None)
    found = vars(parser.parse(words))
    assert {**found, "command": None} == {**expected, "command": None}
