"""The host tools in a node's root, started as operands start them."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import struct
import subprocess
from pathlib import Path

import pytest

from gpulab.device_files import presenting
from simgpu import PROGRAMS
from simgpu.machines import build_node, machine

KERNEL = machine("l4-ubuntu24").kernel


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build_node(tmp_path, "n", machine("l4-ubuntu24"))
    video = tmp_path / f"root/lib/modules/{KERNEL}/kernel/drivers/video"
    video.mkdir(parents=True)
    for name in ("nvidia", "nvidia-uvm", "nvidia-modeset"):
        (video / f"{name}.ko").write_text(f"name={name}\nversion=580.82.07\n")
    return tmp_path / "root"


def tool(root: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    program = root / ("usr/bin" if argv[0] in ("systemctl", "uname") else "usr/sbin") / argv[0]
    return subprocess.run(
        [program, *argv[1:]], env={"SIMHOST_ROOT": str(root)}, capture_output=True, text=True, check=False
    )


def listing(root: Path) -> set[str]:
    return {str(p.relative_to(root)) for p in root.rglob("*")}


def test_loading_makes_devices_and_unloading_leaves_nothing(root: Path) -> None:
    before = listing(root)
    for module in ("nvidia", "nvidia-uvm", "nvidia_modeset"):
        done = tool(root, "modprobe", module)
        assert done.returncode == 0, done.stderr
    new = {path for path in listing(root) - before if path.startswith("dev/")}
    assert new == {
        "dev/nvidiactl",
        "dev/nvidia0",
        "dev/nvidia1",
        "dev/nvidia-uvm",
        "dev/nvidia-uvm-tools",
        "dev/nvidia-modeset",
    }
    assert (root / "run/nvidia-persistenced/socket").samefile(root / "var/lib/simgpu/state")
    seen = presenting(os.stat)(root / "dev/nvidiactl")
    assert (stat.S_ISCHR(seen.st_mode), seen.st_rdev) == (True, os.makedev(195, 255))
    assert (root / "sys/module/nvidia/version").read_text() == "580.82.07\n"
    assert (root / "sys/module/nvidia/refcnt").read_text() == "2\n"
    assert "580.82.07" in (root / "proc/driver/nvidia/version").read_text()
    assert "nvidia_uvm" in tool(root, "lsmod").stdout
    assert tool(root, "modprobe", "nvidia").returncode == 0  # a second time is nothing
    for module in ("nvidia_modeset", "nvidia_uvm", "nvidia"):
        done = tool(root, "rmmod", module)
        assert done.returncode == 0, done.stderr
    assert listing(root) == before


def test_dependencies_come_along(root: Path) -> None:
    assert tool(root, "modprobe", "nvidia-uvm").returncode == 0
    assert (root / "dev/nvidiactl").exists()
    done = tool(root, "rmmod", "nvidia")
    assert done.returncode == 1
    assert "Module nvidia is in use" in done.stderr


def test_a_driver_in_use_stays(root: Path) -> None:
    assert tool(root, "modprobe", "nvidia").returncode == 0
    fd = os.open(root / "var/lib/simgpu/state", os.O_RDWR)
    lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0x40001000, 1, 0)
    fcntl.fcntl(fd, 37, lock)  # F_OFD_SETLK
    try:
        assert "in use" in tool(root, "rmmod", "nvidia").stderr
    finally:
        os.close(fd)
    assert tool(root, "rmmod", "nvidia").returncode == 0


def test_without_hardware_or_module_nothing_is_loaded(root: Path, tmp_path: Path) -> None:
    done = tool(root, "modprobe", "no-such")
    assert (done.returncode, "not found in directory /lib/modules" in done.stderr) == (1, True)
    (root / "var/lib/simgpu/state").unlink()
    done = tool(root, "modprobe", "nvidia")
    assert (done.returncode, "No such device" in done.stderr) == (1, True)
    assert not (root / "dev/nvidiactl").exists()


def test_unloading_what_is_not_loaded(root: Path) -> None:
    assert tool(root, "rmmod", "nvidia").returncode == 1
    assert tool(root, "modprobe", "-r", "nvidia").returncode == 0


def test_units(root: Path) -> None:
    assert tool(root, "systemctl", "daemon-reload").returncode == 0
    assert tool(root, "systemctl", "is-active", "containerd").returncode == 3
    assert tool(root, "systemctl", "restart", "containerd").returncode == 5
    assert tool(root, "systemctl", "start", "none").returncode == 4
    assert tool(root, "systemctl", "start", "kubelet").returncode == 0
    assert tool(root, "systemctl", "is-active", "kubelet.service").stdout == "active\n"


def test_uname(root: Path) -> None:
    assert tool(root, "uname", "-r").stdout == f"{KERNEL}\n"


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("chroot"), reason="needs to be root to change root")
def test_inside_a_chroot(root: Path) -> None:
    done = subprocess.run(["chroot", root, "modprobe", "nvidia"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (root / "dev/nvidia1").exists()


def as_other(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program that may not change its root."""
    before = ["setpriv", "--bounding-set=-sys_chroot", "--inh-caps=-sys_chroot"] if os.geteuid() == 0 else []
    env = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin"}
    return subprocess.run([*before, *argv], env=env, capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="needs setpriv (util-linux)")
def test_chroot_for_those_who_may_not_change_their_root_starts_the_program_below_it(root: Path) -> None:
    assert as_other(PROGRAMS / "chroot", root, "uname", "-r").stdout == f"{KERNEL}\n"
    assert as_other(PROGRAMS / "chroot", root, "/usr/bin/uname", "-r").stdout == f"{KERNEL}\n"
    missing = as_other(PROGRAMS / "chroot", root, "dnf")
    assert (missing.returncode, missing.stderr) == (
        127,
        "chroot: failed to run command 'dnf': No such file or directory\n",
    )
    assert as_other(PROGRAMS / "chroot", root, "/etc/hostname").returncode == 126
    assert as_other(PROGRAMS / "chroot", root / "none", "uname").returncode == 125


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root to change root")
def test_chroot_changes_root_where_it_may(root: Path) -> None:
    done = subprocess.run([PROGRAMS / "chroot", root, "modprobe", "nvidia"], env={"PATH": "/usr/sbin"}, check=False)
    assert done.returncode == 0
    assert (root / "dev/nvidia1").exists()
