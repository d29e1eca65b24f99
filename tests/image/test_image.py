"""The real image: what is in it, that it runs in a read-only root as its own user, and comes out the same again."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.image.gpuplane_image import ImageInfo, build, vectoradd_image
from deploy.image.gpuplane_image.images import default_cache
from tests.image.archive import Archive

pytestmark = [pytest.mark.image, pytest.mark.deadline(900)]

LIMIT = 150_000_000  # bytes, uncompressed
PYTHON = "/usr/bin/python3.11"
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="changes root: needs root and unshare (util-linux)"
)

IMPORT_ALL = """
import importlib, pkgutil, sys
import gpuplane
for module in pkgutil.walk_packages(gpuplane.__path__, "gpuplane."):
    if module.name != "gpuplane.__main__":
        importlib.import_module(module.name)
print(len([name for name in sys.modules if name.startswith("gpuplane")]))
"""


def run(root: Path, *argv: str, user: int = 65532) -> subprocess.CompletedProcess[str]:
    """Runs a program of the image: a mount namespace of its own, the root bound read-only over itself."""
    script = (
        'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$0" && exec chroot --userspec "$1" . "${@:2}"'
    )
    return subprocess.run(
        ["unshare", "--mount", "bash", "-c", script, str(root), f"{user}:{user}", *argv],
        env={"PATH": f"/usr/sbin:/usr/bin:{os.environ['PATH']}", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
    )


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if not path.is_symlink()]


def test_it_is_small(built: ImageInfo) -> None:
    assert built.size_bytes < LIMIT
    assert [layer.name for layer in built.layers] == ["base", "toolkit", "gpuplane"]
    for layer in built.layers:
        assert 0.8 * layer.size_bytes < sum(layer.parts.values()) < layer.size_bytes  # the rest are tar's headers


def test_its_settings_are_those_of_a_careful_container(built: ImageInfo) -> None:
    archive = Archive(built.path)
    config = archive.config["config"]
    assert (config["Entrypoint"], config["User"]) == (["/usr/bin/gpuplane"], "65532:65532")
    assert config["Labels"]["org.opencontainers.image.title"] == "gpuplane"
    assert archive.target["digest"] == built.digest


def test_nothing_is_setuid_or_open_to_all_and_there_is_no_shell(unpacked: Path) -> None:
    modes = {str(path.relative_to(unpacked)): path.stat().st_mode for path in files(unpacked)}
    assert [name for name, mode in modes.items() if mode & (stat.S_ISUID | stat.S_ISGID)] == []
    assert [name for name, mode in modes.items() if mode & stat.S_IWOTH] == ["tmp"]
    assert modes["tmp"] & stat.S_ISVTX
    assert {path.name for folder in ("usr/bin", "usr/sbin") for path in (unpacked / folder).iterdir()} == {
        *("chroot", "gpuplane", "nvidia-smi", "python3", "python3.11")
    }
    assert [path for path in unpacked.rglob("*") if path.is_symlink() and not inside(unpacked, path).exists()] == []


def inside(root: Path, link: Path) -> Path:
    target = link.readlink()
    return root / str(target).lstrip("/") if target.is_absolute() else link.parent / target


def test_every_module_is_compiled_and_only_the_runtime_is_there(unpacked: Path) -> None:
    packages = unpacked / "usr/lib/python3/dist-packages"
    found = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")}
    assert {"gpuplane", "msgspec", "uvloop"} <= found
    assert not found & {"pytest", "mypy", "ruff", "ziglang", "hatchling", "pip", "setuptools", "uv"}
    assert list(packages.rglob("*.pyi")) == []
    for record in packages.glob("*.dist-info/RECORD"):
        listed = [line.rsplit(",", 2)[0] for line in record.read_text().splitlines()]
        assert listed and all((packages / path).exists() for path in listed), record
    sources = list((unpacked / "usr/lib").rglob("*.py"))
    assert len(sources) > 1000
    compiled = [path for path in sources if (path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc").is_file()]
    assert len(compiled) == len(sources)


def test_nvidias_programs_run_on_any_host_with_glibc_2_17(unpacked: Path) -> None:
    place = "usr/lib/gpuplane/toolkit"
    for name in ("nvidia-container-runtime", "nvidia-ctk", "nvidia-cdi-hook"):
        needed = re.findall(rb"GLIBC_(\d+)\.(\d+)", (unpacked / place / name).read_bytes())
        assert needed and max((int(major), int(minor)) for major, minor in needed) <= (2, 17), name
    answer = subprocess.run([unpacked / place / "nvidia-ctk", "--version"], capture_output=True, text=True)
    assert (answer.returncode, answer.stdout.split()[-1]) == (0, "1.20.1")
    assert (unpacked / "usr/share/doc/nvidia-container-toolkit/LICENSE").is_file()


def test_every_library_finds_those_that_it_needs(unpacked: Path) -> None:
    (loader,) = [*unpacked.glob("lib64/ld-linux-*"), *unpacked.glob("lib/ld-linux-*")]
    path = ":".join(map(str, [*unpacked.glob("lib/*-linux-gnu"), *unpacked.glob("usr/lib/*-linux-gnu")]))
    libraries = [path for path in files(unpacked) if ".so" in path.name and path.is_file() and path != loader]
    assert len(libraries) > 50
    missing = {}
    for library in libraries:
        if "limiter" in library.parts:
            continue  # it is used in containers, where the driver's own library has the name that it needs
        command = [str(loader), "--library-path", path, "--list", str(library)]
        answer = subprocess.run(command, capture_output=True, text=True)
        if answer.returncode or "not found" in answer.stdout:
            missing[library.name] = answer.stdout + answer.stderr
    assert missing == {}


@needs_root
def test_the_command_runs_in_a_read_only_root_as_nobody(unpacked: Path) -> None:
    version = run(unpacked, "/usr/bin/gpuplane", "--version")
    assert (version.returncode, version.stderr) == (0, "")
    assert version.stdout.startswith("gpuplane ")
    usage = run(unpacked, "/usr/bin/gpuplane", "run", "operator", "--help")
    assert usage.stdout.startswith("usage: gpuplane run operator")
    smi = run(unpacked, "/usr/bin/nvidia-smi", "-L")
    assert (smi.returncode, smi.stdout) == (12, "")
    assert "has no driver yet" in smi.stderr
    for user in (0, 65532):
        refused = run(unpacked, PYTHON, "-c", "open('/tmp/file', 'w')", user=user)
        assert "Read-only file system" in refused.stderr


@needs_root
def test_every_module_of_gpuplane_can_be_imported(unpacked: Path) -> None:
    answer = run(unpacked, PYTHON, "-c", IMPORT_ALL)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert int(answer.stdout) > 150


@needs_root
def test_certificates_and_users_are_known(unpacked: Path) -> None:
    script = (
        "import pwd, ssl; print(len(ssl.create_default_context().get_ca_certs()) > 100, pwd.getpwuid(65532).pw_name)"
    )
    assert run(unpacked, PYTHON, "-c", script).stdout == "True nonroot\n"


@needs_root
def test_it_runs_a_hosts_programs_by_chroot(unpacked: Path) -> None:
    """The way the operands do, the host being the image once more."""
    bind = (
        'mount --bind "$0" "$0" && mount --rbind /dev "$0/dev" && mount --bind "$0" "$0/run" && exec chroot "$0" "$@"'
    )
    script = (
        "import asyncio, pathlib\n"
        "from gpuplane.host.runner import Command, SystemRunner\n"
        f"command = Command(({PYTHON!r}, '-c', 'print(6 * 7)'), pathlib.Path('/run'))\n"
        "print(asyncio.run(SystemRunner().run(command)))"
    )
    answer = subprocess.run(
        ["unshare", "--mount", "bash", "-c", bind, str(unpacked), PYTHON, "-c", script],
        env={"PATH": f"/usr/sbin:/usr/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert "code=0, stdout='42\\n'" in answer.stdout, answer.stderr


def test_a_fresh_cache_gives_the_same_image(built: ImageInfo, tmp_path: Path) -> None:
    """Everything composed again, from the same packages."""
    for part in ("apt", "debs"):
        shutil.copytree(default_cache() / part, tmp_path / "cache" / part, copy_function=shutil.copy2)
    again = build(tmp_path / "again.tar", built.tag, cache=tmp_path / "cache")
    assert [layer.digest for layer in again.layers] == [layer.digest for layer in built.layers]
    assert again.digest == built.digest


def test_a_second_build_composes_nothing(built: ImageInfo, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    again = build(tmp_path / "again.tar", built.tag)
    assert again.digest == built.digest
    assert capfd.readouterr().err == ""


def test_the_vectoradd_image_has_the_same_layers(built: ImageInfo, tmp_path: Path) -> None:
    info = vectoradd_image(tmp_path / "vectoradd.tar")
    assert [layer.digest for layer in info.layers] == [layer.digest for layer in built.layers]
    archive = Archive(info.path)
    assert archive.target["annotations"]["io.containerd.image.name"] == info.tag
    assert archive.config["config"]["Entrypoint"][-1] == "gpuplane.validator.vectoradd"


@needs_root
def test_vectoradd_says_what_is_wrong_without_a_driver(unpacked: Path, tmp_path: Path) -> None:
    entrypoint = Archive(vectoradd_image(tmp_path / "vectoradd.tar").path).config["config"]["Entrypoint"]
    answer = run(unpacked, *entrypoint, user=0)
    assert (answer.returncode, "Test FAILED" in answer.stdout, "cure" in answer.stderr) == (3, True, True)
    assert sys.executable not in answer.stderr
