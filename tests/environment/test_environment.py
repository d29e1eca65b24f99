"""tools/environment.py says what is missing and how far it is, and takes packages from the lock files alone."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
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


def test_a_user_without_a_home_is_told_with_the_cure(
    environment: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    monkeypatch.setattr(sys, "argv", ["environment.py", "demo"])
    assert environment.main() == 1
    assert "HOME is not set" in (said := capsys.readouterr().err) and "cure   export HOME=" in said


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


def wheel_of_nothing(folder: Path) -> Path:
    wheel = folder / "nothing-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("nothing.py", "")
        archive.writestr("nothing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: nothing\nVersion: 1\n")
        archive.writestr("nothing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("nothing-1.dist-info/RECORD", "nothing.py,,\n")
    return wheel


def test_pip_that_is_configured_for_other_directories_installs_into_the_environment(
    environment: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "pip.conf").write_text("[install]\nuser = true\n")
    settings = {"TARGET": elsewhere, "PREFIX": elsewhere, "ROOT": elsewhere, "CONFIG_FILE": tmp_path / "pip.conf"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", str(value))
    wheel = wheel_of_nothing(tmp_path)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(environment, "locked", lambda package: f"nothing @ {wheel.as_uri()} --hash=sha256:{digest}\n")
    monkeypatch.setattr(environment, "VENV", tmp_path / "venv")
    monkeypatch.setattr(environment, "PYTHON", tmp_path / "venv" / "bin" / "python")
    environment.make_venv()
    assert list((tmp_path / "venv").glob("lib/python*/site-packages/nothing.py"))
    assert not elsewhere.exists()


def test_a_second_make_in_a_clone_waits_for_the_first(
    environment: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    program = (
        "import fcntl, os, sys; clone = os.open(sys.argv[1], os.O_RDONLY)\n"
        "fcntl.flock(clone, fcntl.LOCK_EX); print(flush=True); sys.stdin.read(); print('done', flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdin is not None and first.stdout is not None
        first.stdout.readline()
        say = environment.Progress.say

        def waiting(progress: Any, text: str) -> None:
            say(progress, text)
            first.stdin.close()

        monkeypatch.setattr(environment.Progress, "say", waiting)
        with environment.alone(environment.Progress()):
            pass
        assert first.stdout.readline() == "done\n"
    assert "another make prepares this clone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("error: failed to write: No space left on device (os error 28)", "free 700 MB"),
        (
            "error: Failed to initialize cache at `/.cache/uv`: Permission denied (os error 13)",
            "set HOME or UV_CACHE_DIR",
        ),
        ("cause: invalid peer certificate: UnknownIssuer", "UV_SYSTEM_CERTS=1"),
        ("Error: [Errno 30] Read-only file system: '/clone/.venv'", "git clone to a directory"),
        ("Error: [Errno 13] Permission denied: '/clone/.venv'", "make it writable"),
    ],
)
def test_a_command_that_fails_has_a_cure(environment: Any, said: str, cure: str) -> None:
    with pytest.raises(environment.Failed) as caught:
        environment.run(sys.executable, "-c", f"raise SystemExit({said!r})")
    assert cure in caught.value.cure


def test_a_clone_that_cannot_be_written_is_told_with_its_cure(
    environment: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(wanted: str, progress: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/clone/.venv/.installed")

    monkeypatch.setattr(environment, "prepare", refused)
    monkeypatch.setattr(sys, "argv", ["environment.py", "demo"])
    assert environment.main() == 1
    said = capsys.readouterr().err
    assert "/clone/.venv/.installed" in said and "cure   make it writable" in said


def test_modules_of_another_python_do_not_reach_the_commands_of_make() -> None:
    words = ["make", "--no-print-directory", "--eval", 'shown: ; @echo "[$$PYTHONPATH$$PYTHONHOME]"', "shown"]
    surroundings = {**os.environ, "PYTHONPATH": "/other", "PYTHONHOME": "/other"}
    told = subprocess.run(words, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
