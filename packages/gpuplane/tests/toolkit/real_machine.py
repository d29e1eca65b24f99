"""Machines with a real container runtime: the packages of a Debian release in a root and namespaces of their own.

Process 1 mounts /proc, /sys and the cgroups, then starts the runtime whenever it has ended, as a service manager does.
Its files, its sockets among them, lie in the root: gpuplane works on that from outside, as an operand does. Pods use
the machine's network, so nothing of CNI is needed, and the only image is busybox.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from deploy.image.gpuplane_image import ImageError, debian
from deploy.image.gpuplane_image.images import small_image
from gpuplane.host import Host
from tests.support.realkube import binaries
from tests.support.until import until

CACHE: Final = Path.home() / ".cache/gpuplane/debian"
BUSYBOX: Final = "localhost/busybox:1"
CONTAINERD: Final = ("containerd", "runc", "libc6", "libseccomp2", "busybox-static")
_DEVICES: Final = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_INIT: Final = """\
set -e
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount -t sysfs sysfs "$ROOT/sys"
mount --rbind /sys/fs/cgroup "$ROOT/sys/fs/cgroup"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$ROOT/dev/pts"
cd "$ROOT"
pivot_root . mnt
exec bin/busybox chroot . /bin/busybox sh -c '
busybox umount -l /mnt
busybox ip link set lo up
while :; do "$@" >>/var/log/service.log 2>&1; busybox sleep 0.2; done' sh "$@"
"""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_SECONDS: Final = 60.0


class RealMachine:
    """A machine that runs `command` from the packages of a Debian release."""

    def __init__(self, root: Path, suite: str, packages: tuple[str, ...], command: tuple[str, ...]) -> None:
        self.root, self.command = root, command
        self.host = Host(root)
        try:
            for package in debian.fetch(packages, CACHE, suite):
                debian.unpack(package, root)
        except ImageError as error:
            pytest.skip(f"no packages of Debian {suite}: {error}")
        for name in ("bin", "lib64"):
            if not (root / name).exists():
                (root / name).symlink_to(f"usr/{name}")
        for name in ("dev/pts", "dev/shm", "run", "proc", "sys", "mnt", "tmp", "var/log", "var/lib", "etc"):
            (root / name).mkdir(parents=True, exist_ok=True)
        for name in ("hosts", "resolv.conf", "passwd", "group"):
            self.write(f"etc/{name}", "")
        for name, numbers in _DEVICES.items():
            self.make_device(name, *numbers)

    @property
    def log(self) -> str:
        return (self.root / "var/log/service.log").read_text(errors="replace")

    def make_device(self, name: str, major: int, minor: int) -> None:
        os.mknod(self.root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        (self.root / "dev" / name).chmod(0o666)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)
        (self.root / path).chmod(mode)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the machine; its processes end with the context."""
        namespaces = ("--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child")
        process = await asyncio.create_subprocess_exec(
            *("unshare", *namespaces, "sh", "-c", _INIT, "init", *self.command),
            env={**os.environ, "ROOT": str(self.root), "PATH": f"{_PATH}:{os.environ['PATH']}"},
        )
        self._parent = process.pid
        try:
            yield
        finally:
            init = self._init()
            process.send_signal(signal.SIGKILL)
            await process.wait()
            await until(lambda: not Path(f"/proc/{init}").exists(), what="the end of the machine's processes")
            remove_cgroups()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command on the running machine, as its root."""
        inside = ("nsenter", f"--target={self._init()}", "--mount", "--pid", "--net", "--ipc", "--root", "--wd=/")
        environment = {"PATH": _PATH}
        return subprocess.run([*inside, *arguments], capture_output=True, text=True, check=False, env=environment)

    def _init(self) -> int:
        return int(Path(f"/proc/{self._parent}/task/{self._parent}/children").read_text().split()[0])


def containerd_machine(root: Path, release: str) -> RealMachine:
    """A machine with the containerd of a Debian release, or the one that the tests on real Kubernetes build."""
    if release != "built":
        return RealMachine(root, release, CONTAINERD, ("containerd",))
    if not binaries.built("containerd"):
        pytest.skip("no containerd was built here")
    machine = RealMachine(root, "bookworm", CONTAINERD, ("containerd",))
    for name in ("containerd", "containerd-shim-runc-v2", "ctr"):
        (root / "usr/bin" / name).unlink()
        shutil.copy(binaries.directory("containerd") / name, root / "usr/bin" / name)
    return machine


def import_busybox(machine: RealMachine, folder: Path) -> None:
    """Give a running containerd busybox, also under the names of sandboxes, which would be pulled."""
    made = small_image(
        folder / "busybox.tar",
        BUSYBOX,
        {},
        ("/bin/busybox", "sleep", "infinity"),
        base_packages=("busybox-static",),
    )
    made.path.rename(machine.root / "tmp/busybox.tar")
    ctr = ("ctr", "--namespace=k8s.io", "images")
    done = machine.run(*ctr, "import", "/tmp/busybox.tar")
    assert done.returncode == 0, done.stderr
    for name in set(
        re.findall(r"registry\.k8s\.io/pause:[\w.]+", machine.run("containerd", "config", "default").stdout)
    ):
        assert machine.run(*ctr, "tag", BUSYBOX, name).returncode == 0


def lacking() -> str:
    """Why no such machine runs here; empty when it can."""
    if os.geteuid() != 0:
        return "a container runtime needs root"
    missing = [name for name in ("unshare", "nsenter", "pivot_root", "mount") if shutil.which(name) is None]
    if missing:
        return f"there is no {', '.join(missing)}"
    probe = subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True, check=False)
    return f"namespaces are refused: {probe.stderr.decode().strip()}" if probe.returncode else ""


def remove_cgroups() -> None:
    """Remove what pods leave: their parent's cgroup, in each hierarchy."""
    base = Path("/sys/fs/cgroup")
    for top in {*base.glob("gpuplane-toolkit"), *base.glob("*/gpuplane-toolkit")}:
        for directory, _, _ in os.walk(top, topdown=False):
            try:
                os.rmdir(directory)  # noqa: PTH106 - os.walk gives strings
            except OSError:
                continue
