"""tools/environment.py says what is missing and how far it is, and takes packages from the lock files alone."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environment() -> Any:
    spec = importlib.util.spec_from_file_location("clone_environment", ROOT / "tools" / "environment.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pins(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))


def test_the_demo_installs_a_part_of_the_lock_and_no_tools() -> None:
    demo, everything = pins("requirements-demo.lock"), pins("requirements.lock")
    assert demo.items() <= everything.items()
    assert not {"pytest", "mypy", "ruff", "ziglang", "kubernetes", "cuda-bindings"} & set(demo)
    assert {"msgspec", "lightkube", "hatchling", "uv"} <= set(demo)


@pytest.mark.parametrize("package", ["uv", "ziglang"])
def test_a_package_is_taken_with_its_hashes_and_without_its_neighbours(environment: Any, package: str) -> None:
    block = environment.locked(package)
    assert block.startswith(f"{package}==") and "--hash=sha256:" in block
    assert len(re.findall(r"^[\w.-]+==", block, re.MULTILINE)) == 1


def test_a_package_that_the_lock_lacks_has_a_cure(environment: Any) -> None:
    with pytest.raises(environment.Failed, match="lacks left-pad") as caught:
        environment.locked("left-pad")
    assert caught.value.cure == "make lock"


def test_a_python_that_is_too_old_is_told_with_its_cure(
    environment: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "OLDEST", (99, 0))
    monkeypatch.setattr(sys, "argv", ["environment.py", "demo"])
    assert environment.main() == 1
    said = capsys.readouterr().err
    assert "gpuplane needs 3.11 or newer" in said and "cure   make demo PYTHON=" in said


def test_a_python_without_venv_is_told_with_its_cure(
    environment: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "STAMP", tmp_path / "none")
    monkeypatch.setattr(environment, "load_native", NoTargets)
    monkeypatch.setattr(environment, "is_there", lambda module: module != "ensurepip")
    monkeypatch.setattr(sys, "argv", ["environment.py", "demo"])
    assert environment.main() == 1
    said = capsys.readouterr().err
    assert "has no venv and ensurepip" in said and "apt-get install python3-venv" in said


class NoTargets:
    """native/build.py with nothing to compile."""

    TARGETS = ()

    def to_compile(self, arch: str, targets: object) -> list[object]:
        return []


def test_a_step_says_how_long_it_usually_takes_and_how_it_ended(
    environment: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = environment.Progress()
    progress.step("environment", "Python packages", 9, lambda tell: tell("more"))
    with pytest.raises(environment.Failed):
        progress.step("compiling", "the driver", 4, lambda tell: environment.run(sys.executable, "-c", "1/0"))
    begun, done, _, broken = capsys.readouterr().err.splitlines()
    assert begun.startswith(" - environment") and begun.endswith("usually 9s")
    assert done.startswith(" ✓ environment") and broken.startswith(" ✗ compiling")


def test_a_command_that_fails_is_told_with_its_last_lines(environment: Any) -> None:
    heard: list[str] = []
    program = "print('first'); raise SystemExit('what is wrong')"
    with pytest.raises(environment.Failed, match=r"ended with 1:\n(.*\n)*.*what is wrong"):
        environment.run(sys.executable, "-c", program, heard=heard.append)
    assert "first\n" in heard


def test_all_packages_are_enough_for_the_demo_and_not_the_other_way_round(
    environment: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "STAMP", tmp_path / "stamp")
    assert not environment.is_installed("demo")
    for made, wanted, enough in (("all", "demo", True), ("demo", "all", False), ("demo", "demo", True)):
        environment.STAMP.write_text(environment.state_of(made))
        assert environment.is_installed(wanted) is enough


def test_an_environment_whose_python_is_gone_is_made_again(
    environment: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "STAMP", tmp_path / "stamp")
    environment.STAMP.write_text(environment.state_of("demo"))
    assert environment.is_installed("demo")
    monkeypatch.setattr(environment, "PYTHON", tmp_path / "gone")
    assert not environment.is_installed("demo")


def test_a_line_that_is_redrawn_fits_the_terminal(
    environment: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    progress = environment.Progress()
    progress._live = True
    progress.step("environment", "Python packages and a C compiler in .venv", 9, lambda tell: None)
    pictures = capsys.readouterr().err.split("\r\x1b[2K")[1:-1]
    assert pictures and all(len(picture) < 60 for picture in pictures)


def test_an_interrupt_is_told_in_words(
    environment: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(wanted: str, progress: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(environment, "prepare", interrupted)
    monkeypatch.setattr(sys, "argv", ["environment.py", "demo"])
    assert environment.main() == 130
    assert capsys.readouterr().err.startswith("✗ interrupted")


def test_pip_that_is_configured_for_the_users_directory_installs_into_the_environment(
    environment: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[str] = []
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setattr(environment, "VENV", tmp_path)
    monkeypatch.setattr(environment, "run", lambda *words, env={}: given.append(env.get("PIP_USER", "")))
    environment.make_venv()
    assert given[-1] == "no"


def test_modules_of_another_python_do_not_reach_the_commands_of_make() -> None:
    words = ["make", "--no-print-directory", "--eval", 'shown: ; @echo "[$$PYTHONPATH$$PYTHONHOME]"', "shown"]
    surroundings = {**os.environ, "PYTHONPATH": "/other", "PYTHONHOME": "/other"}
    told = subprocess.run(words, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
