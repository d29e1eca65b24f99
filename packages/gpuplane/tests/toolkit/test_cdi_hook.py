"""The hook program on a container's root: links, the loader's cache, and that nothing outside of it is touched."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuplane
from simgpu import NATIVE

HOOK = Path(gpuplane.__file__).parent / "_native/cdi-hook"
LIBRARY = NATIVE / "libcuda.so.1"
LDCONFIG = next((path for path in ("/sbin/ldconfig.real", "/sbin/ldconfig") if Path(path).is_file()), "")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A container's root in its bundle."""
    (tmp_path / "rootfs/etc").mkdir(parents=True)
    config = {"ociVersion": "1.1.0", "hooks": {"root": 1}, "process": {"args": ['a"b']}, "root": {"path": "rootfs"}}
    (tmp_path / "config.json").write_text(json.dumps(config, indent=1))
    return tmp_path / "rootfs"


@pytest.fixture
def run(root: Path) -> Run:
    def start(*words: str, state: Any = None, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        said = {"id": "c", "annotations": {"bundle": "/no"}, "bundle": str(root.parent)} if state is None else state
        text = said if isinstance(said, str) else json.dumps(said)
        return subprocess.run([*before, HOOK, *words], input=text, capture_output=True, text=True, check=False)

    return start


def test_links_are_made_and_replaced(root: Path, run: Run) -> None:
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/libcuda.so").write_text("theirs")
    (root / "lib").symlink_to("usr/lib")
    (root / "usr/lib/kept").symlink_to("x")
    words = ("--link", "libcuda.so.1::/usr/lib/libcuda.so", "--link=../a::/lib/new/b", "--link", "x::/lib/kept")
    for _ in range(2):
        done = run("create-symlinks", *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert (root / "usr/lib/libcuda.so").readlink() == Path("libcuda.so.1")
        assert (root / "usr/lib/new/b").readlink() == Path("../a")
        assert (root / "usr/lib/kept").readlink() == Path("x")


@pytest.mark.parametrize("way", ["/{outside}", "../../../../../../../../../../../../{outside}"])
def test_no_link_leads_out_of_the_root(root: Path, run: Run, tmp_path: Path, way: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "usr").symlink_to(way.format(outside=str(outside).lstrip("/")))
    assert "its directory cannot be made" in run("create-symlinks", "--link", "x::/usr/link").stderr
    (root / "etc/ld.so.conf.d").symlink_to(way.format(outside=str(outside).lstrip("/")))
    (root / "compat").mkdir()
    (root / "compat/libcuda.so.9.9").touch()
    done = run("enable-cuda-compat", "--host-driver-version=1.2", "--cuda-compat-container-root", "/compat")
    assert "its directory cannot be made" in done.stderr
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("libraries", "host", "expected"),
    [
        (["libcuda.so.570.1.2", "libcuda.so.1"], "535.161.08", "/usr/local/cuda/compat\n"),
        (["libcuda.so.570.1.2"], "570.133.20", None),
        (["libcuda.so.470.1"], "535.161.08", None),
        (["libcuda.so.570.1", "libcuda.so.580.1"], "535.161.08", None),
        (["libcuda.so.1"], "535.161.08", None),
        (["libcuda.so.570.1"], "", None),
        (None, "535.161.08", None),
    ],
)
def test_a_newer_cuda_of_the_containers_goes_first(
    root: Path, run: Run, libraries: list[str] | None, host: str, expected: str | None
) -> None:
    if libraries is not None:
        (root / "usr/local/cuda-13/compat").mkdir(parents=True)
        (root / "usr/local/cuda").symlink_to("/usr/local/cuda-13")
        for name in libraries:
            (root / "usr/local/cuda-13/compat" / name).touch()
    assert run("enable-cuda-compat", f"--host-driver-version={host}").returncode == 0
    file = root / "etc/ld.so.conf.d/00-compat-gpuplane.conf"
    assert (file.read_text() if file.exists() else None) == expected


@pytest.mark.namespaces
@pytest.mark.parametrize("distroless", [False, True])
def test_the_loaders_cache_knows_the_libraries(root: Path, run: Run, distroless: bool) -> None:
    if not LDCONFIG:
        pytest.skip("this host has no ldconfig")
    before = () if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user")
    if subprocess.run([*before, "unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounts are refused here")
    if distroless:
        (root / "etc").rmdir()
    else:
        (root / "etc/ld.so.conf").write_text("include ld.so.conf.d/*.conf\n")
    for folder in ("opt/driver", "usr/lib64"):
        (root / folder).mkdir(parents=True)
    shutil.copy(LIBRARY, root / "opt/driver/libcuda.so.570.1")
    shutil.copy(LIBRARY.with_name("libnvidia-ml.so.1"), root / "usr/lib64/libnvidia-ml.so.570.1")
    mounts = Path("/proc/self/mounts").read_text()
    done = run("update-ldcache", "--ldconfig-path", LDCONFIG, "--folder", "/opt/driver", before=before)
    assert done.returncode == 0, done.stderr
    assert Path("/proc/self/mounts").read_text() == mounts
    known = subprocess.run(
        [LDCONFIG, "-p", "-C", root / "etc/ld.so.cache"], capture_output=True, text=True, check=True
    ).stdout
    assert "libcuda.so.1 (libc6,x86-64) => /opt/driver/libcuda.so.1" in known
    assert "libnvidia-ml.so.1 (libc6,x86-64) => /usr/lib64/libnvidia-ml.so.1" in known
    assert (root / "opt/driver/libcuda.so.1").readlink() == Path("libcuda.so.570.1")
    assert (root / "etc/ld.so.conf").read_text().startswith("include ")
    assert {path.stat().st_mode & 0o777 for path in (root / "etc/ld.so.conf.d").iterdir()} == {0o644}


@pytest.mark.parametrize(
    ("words", "state", "said"),
    [
        (("create-symlinks", "--link", "nothing"), None, "this is no TARGET::PATH: nothing"),
        (("create-symlinks", "--link", "x::/a/.."), None, "its directory cannot be made: /a/..: Invalid argument"),
        (("create-symlinks", "--path", "x"), None, "this is not understood: --path"),
        (("dance",), None, "there is no such action: dance"),
        ((), None, "there is no such action"),
        (("create-symlinks",), "", "standard input is no state of a container"),
        (("create-symlinks",), "{}", "standard input is no state of a container"),
        (("create-symlinks",), '{"bundle": "/x', "standard input is no state of a container"),
        (("create-symlinks",), {"bundle": "/none"}, "it does not say where the container's root is: /none/config.json"),
        (("update-ldcache", "--ldconfig-path", "/none"), None, "the host has no such program: /none: No such file"),
    ],
)
def test_what_is_wrong_is_said(run: Run, words: tuple[str, ...], state: Any, said: str) -> None:
    done = run(*words, state=state)
    assert done.returncode == 1
    assert done.stderr.startswith(f"nvidia-cdi-hook: {said}")


def without_openat2() -> None:
    """As on a kernel before 5.6."""
    libc = ctypes.CDLL(None)
    program = [(0x20, 0, 0, 0), (0x15, 0, 1, 437), (0x06, 0, 0, 0x50000 | errno.ENOSYS), (0x06, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in program))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    filters = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(code)))
    assert libc.prctl(22, 2, filters, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def test_an_older_kernel_makes_links_where_no_link_is_on_the_way(root: Path) -> None:
    (root / "lib").symlink_to("/etc")
    words = [HOOK, "create-symlinks", "--link", "x::/usr/lib/link", "--link", "x::/lib/link"]
    done = subprocess.run(
        words,
        input=json.dumps({"bundle": str(root.parent)}),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=without_openat2,
    )
    assert (root / "usr/lib/link").readlink() == Path("x")
    assert "its directory cannot be made: /lib/link" in done.stderr
    assert not (root / "etc/link").exists()


def test_the_hosts_own_root_is_no_containers(root: Path, run: Run) -> None:
    (root.parent / "config.json").write_text('{"root": {"path": "/"}}')
    assert run("update-ldcache").stderr == "nvidia-cdi-hook: this is no container's root: /\n"
