"""native/build.py compiles what changed, for the machine that is wanted, and says what is wrong."""

from __future__ import annotations

import os
import platform
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parents[4] / "native" / "build.py"


def build(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BUILD), *arguments], env=os.environ | environment, capture_output=True, text=True
    )


def test_what_is_up_to_date_is_not_compiled_again(native: Path) -> None:
    again = build("libcuda.so.1", "libnvidia-ml.so.1", CC="/nonexistent/cc")
    # Another compiler needs another build; the same compiler does not.
    assert "no compiler" in again.stderr
    assert build("libcuda.so.1", "libnvidia-ml.so.1").stderr == ""
    assert (native / "libcuda.so.1").is_file()


def test_a_cache_that_cannot_be_made_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = build("libcuda.so.1", XDG_CACHE_HOME=str(tmp_path / "file")).stderr
    assert "the cache cannot be written" in said and "XDG_CACHE_HOME" in said and "no compiler" not in said


def test_another_clone_compiles_nothing(native: Path, tmp_path: Path) -> None:
    shutil.copytree(BUILD.parent, tmp_path / "native")
    shutil.copytree(BUILD.parents[1] / "packages/simgpu/native", tmp_path / "packages/simgpu/native")
    shutil.copy(BUILD.parents[1] / "requirements.lock", tmp_path)
    words = [sys.executable, str(tmp_path / "native" / "build.py"), "libcuda.so.1"]
    made = subprocess.run(words, capture_output=True, text=True, check=True)
    assert made.stderr == ""
    assert (tmp_path / "packages/simgpu/src/simgpu/_native/libcuda.so.1").read_bytes() == (
        native / "libcuda.so.1"
    ).read_bytes()
    with (tmp_path / "packages/simgpu/native/simgpu/state.h").open("a") as header:
        header.write("// changed\n")
    changed = subprocess.run(words, env=os.environ | {"CC": "false"}, capture_output=True, text=True, check=False)
    assert "compiling libcuda.so.1" in changed.stderr


def test_a_compiler_that_fails_leaves_the_old_library(tmp_path: Path) -> None:
    old = tmp_path / "libcuda.so.1"
    old.write_text("old")
    failed = build("libcuda.so.1", "--output", str(tmp_path), CC="false")
    assert (failed.returncode, "does not compile" in failed.stderr) == (1, True)
    assert old.read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]


def test_warnings_of_a_users_compiler_are_no_errors(tmp_path: Path) -> None:
    # The machine's own where there is one. In a new cache zig compiles parts of its runtime first, which takes longer.
    strict = f"{shutil.which('cc') or f'{sys.executable} -m ziglang cc -rtlib=none'} -Wpadded"
    made = build("simhost", "--output", str(tmp_path / "out"), CC=strict, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert "warning:" in made.stderr and (made.returncode, (tmp_path / "out" / "simhost").is_file()) == (0, True)


def test_the_wheel_is_tagged_for_the_platform_of_its_libraries(native: Path) -> None:
    pytest.importorskip("hatchling", reason="the hook is hatchling's")
    # As hatchling loads a build hook: executed, and no module of the program.
    script = runpy.run_path(str(BUILD))
    hook = script["CustomBuildHook"](str(BUILD.parents[1] / "packages/simgpu"), {}, None, None, str(native), "wheel")
    data: dict[str, object] = {}
    hook.initialize("standard", data)
    assert data == {"pure_python": False, "tag": f"py3-none-manylinux_2_17_{platform.machine()}"}


def test_unknown_targets_are_wrong_usage() -> None:
    wrong = build("libother.so")
    assert (wrong.returncode, "no target libother.so" in wrong.stderr) == (2, True)
