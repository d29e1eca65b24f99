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
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from deploy.image.gpuplane_image import ImageError, debian
from deploy.image.gpuplane_image.images import small_image
from gpulab.kubernetes import binaries
from gpuplane.host import Host
from kubekit.rpc import RpcError
from packages.gpuplane.tests.toolkit.cri import CRI
from tests.support.until import until

CACHE: Final = Path.home() / ".cache/gpuplane/debian"
BUSYBOX: Final = "localhost/busybox:1"
CONTAINERD: Final = ("containerd", "runc", "libc6", "libc-bin", "libseccomp2", "busybox-static")
# docker's, with what its libraries need; bookworm's docker.io has the command line in it.
DOCKER: Final = {
    "bookworm": (
        *("docker.io", "libsystemd0", "libcap2", "libgcrypt20", "libgpg-error0", "liblzma5", "libzstd1", "liblz4-1"),
        *("libdevmapper1.02.1", "libudev1", "libselinux1", "libpcre2-8-0"),
    ),
    "trixie": ("docker.io", "docker-cli", "libsystemd0", "libcap2"),
    "forky": ("docker.io", "docker-cli", "libsystemd0"),
}
_DOCKERD: Final = ("dockerd", "--bridge=none", "--iptables=false", "--storage-driver=vfs")
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
# Without CAP_SYS_RESOURCE no score can be lowered. containerd asks for scores unless its configuration forbids it.
_WITHOUT_SCORES: Final = """\
#!/bin/busybox sh
for word; do
    if [ "$previous" = --bundle ]; then
        busybox sed -i -e 's/,"oomScoreAdj":-*[0-9]*//' -e 's/"oomScoreAdj":-*[0-9]*,//' "$word/config.json"
    fi
    previous=$word
done
exec /usr/lib/runc "$@"
"""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIB: Final = "usr/lib/x86_64-linux-gnu"
START_SECONDS: Final = 120.0
# The releases that the pages name. "built" is the one of the tests on real Kubernetes.
RELEASES: Final = {"bookworm": "1.6", "trixie": "1.7", "forky": "2.1", "built": "2.4"}
DOCKER_RELEASES: Final = {"bookworm": "20.10", "trixie": "26.1", "forky": "28.5"}
_MOVING: Final = "forky"  # Debian's next release, whose packages become newer
CONFIG: Final = "etc/containerd/config.toml"


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
        for name in ("bin", "sbin", "lib", "lib64"):
            if not (root / name).exists():
                (root / name).symlink_to(f"usr/{name}")
        (root / "bin/sh").symlink_to("busybox")
        for name in ("dev/pts", "dev/shm", "run", "proc", "sys", "mnt", "tmp", "var/log", "var/lib", "etc"):
            (root / name).mkdir(parents=True, exist_ok=True)
        (root / "var/run").symlink_to("../run")
        for name in ("hosts", "resolv.conf", "passwd", "group"):
            self.write(f"etc/{name}", "")
        for name, numbers in _DEVICES.items():
            self.make_device(name, *numbers)

    @property
    def log(self) -> str:
        return (self.root / "var/log/service.log").read_text(errors="replace")

    def without_configuration(self) -> None:
        """Remove containerd's configuration; runc then ignores the scores that a configuration would forbid."""
        (self.root / CONFIG).unlink()
        (self.root / "usr/sbin/runc").rename(self.root / "usr/lib/runc")
        self.write("usr/bin/runc", _WITHOUT_SCORES, 0o755)

    def with_driver(self, version: str) -> None:
        """Add a driver's files and the device nodes of two GPUs."""
        for soname in ("libcuda", "libnvidia-ml"):
            self.write(f"{LIB}/{soname}.so.{version}", "elf")
            (self.root / LIB / f"{soname}.so.1").symlink_to(f"{soname}.so.{version}")
        for name, minor in {"nvidia0": 0, "nvidia1": 1, "nvidiactl": 255}.items():
            self.make_device(name, 195, minor)

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
        return _settable(RealMachine(root, release, CONTAINERD, ("containerd",)))
    if not binaries.built("containerd"):
        pytest.skip("no containerd was built here")
    machine = RealMachine(root, "bookworm", CONTAINERD, ("containerd",))
    for name in ("containerd", "containerd-shim-runc-v2", "ctr"):
        (root / "usr/bin" / name).unlink()
        shutil.copy(binaries.directory("containerd") / name, root / "usr/bin" / name)
    return _settable(machine)


def assert_named(release: str, version: str, named: Mapping[str, str]) -> None:
    """Fail where a release of Debian has another version than the pages name; its next release may have a newer one."""
    wanted, found = (tuple(map(int, text.split(".")[:2])) for text in (named[release], version.lstrip("v")))
    message = f"{release} has {version}, and the pages name {named[release]}"
    assert found >= wanted if release == _MOVING else found == wanted, message


def docker_machine(root: Path, release: str) -> RealMachine:
    """A machine with the docker of a Debian release."""
    return RealMachine(root, release, (*CONTAINERD, *DOCKER[release]), _DOCKERD)


def _settable(machine: RealMachine) -> RealMachine:
    """Without CAP_SYS_RESOURCE no score can be lowered, and every sandbox would fail: Debian's file says so."""
    text, where = (machine.root / CONFIG).read_text(), '[plugins."io.containerd.grpc.v1.cri"]\n'
    assert where in text
    machine.write(CONFIG, text.replace(where, f"{where}    restrict_oom_score_adj = true\n"))
    return machine


async def served(machine: RealMachine) -> CRI:
    """Return a client as soon as the machine's containerd serves CRI."""
    cri = CRI(machine.root / "run/containerd/containerd.sock")
    await until(cri.version, ignored=RpcError, seconds=START_SECONDS, what="CRI", seen=lambda: machine.log[-2000:])
    return cri


@asynccontextmanager
async def started(machine: RealMachine, folder: Path) -> AsyncIterator[CRI]:
    """Run a machine with containerd and busybox's image."""
    async with machine.running():
        cri = await served(machine)
        for image in import_busybox(machine, folder):
            await until(partial(cri.has_image, image), what=image)  # CRI follows ctr by events
        yield cri


def bring_busybox(machine: RealMachine, folder: Path) -> str:
    """Make busybox's image; the archive's path on the machine."""
    sleep = ("/bin/busybox", "sleep", "infinity")
    made = small_image(folder / "busybox.tar", BUSYBOX, {}, sleep, base_packages=("busybox-static",))
    made.path.rename(machine.root / "tmp/busybox.tar")
    return "/tmp/busybox.tar"


def import_busybox(machine: RealMachine, folder: Path) -> list[str]:
    """Give a running containerd busybox, also under the names of sandboxes, which would be pulled; all its names."""
    archive = bring_busybox(machine, folder)
    ctr = ("ctr", "--namespace=k8s.io", "images")
    done = machine.run(*ctr, "import", archive)
    assert done.returncode == 0, done.stderr
    default = machine.run("containerd", "config", "default").stdout
    sandboxes = sorted(set(re.findall(r"registry\.k8s\.io/pause:[\w.]+", default)))
    for name in sandboxes:
        assert machine.run(*ctr, "tag", BUSYBOX, name).returncode == 0
    return [BUSYBOX, *sandboxes]


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
