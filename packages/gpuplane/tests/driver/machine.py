"""A machine for the driver's whole life: a host root with tools that behave, and misbehave, like the real ones.

The tools are the programs in `hosttools/`, started as real processes. Facts that no file of a machine has (loaded
modules, their holders), the mirrors and the mishaps to come lie in `state/` next to the root.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpuplane import names
from gpuplane.driver.released import WantedDriver
from gpuplane.host import Command, Completed, Host

TOOLS = Path(__file__).with_name("hosttools")
COMMON = ("modprobe", "rmmod", "mount", "umount", "kill", "depmod", "dmesg", "env", "sh")
FILES = ("rm", "mv", "mkdir", "install")
ALSO = (
    *("gcc", "make", "*curl", "nvidia-*", "libc6-dev", "*libelf-devel", "libelf-dev", "cpio", "kmod", "file"),
    *("ca-certificates", "libnvidia-*"),
)


class System(msgspec.Struct, frozen=True):
    """A distribution: its os-release, kernels (the second is a newer one), programs, and where its libraries are.

    `hooks` has the programs that a new kernel calls, `boots` is the link that names the kernel of the next boot.
    """

    os_release: str
    kernels: tuple[str, str]
    programs: tuple[str, ...]
    libraries: str
    headers: str
    hooks: str = ""
    boots: str = ""


SYSTEMS = {
    "ubuntu": System(
        'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"\n',
        ("5.15.0-97-generic", "5.15.0-101-generic"),
        ("apt-get", "apt-cache"),
        "usr/lib/x86_64-linux-gnu",
        "linux-headers-*",
        "etc/kernel/postinst.d",
        "boot/vmlinuz",
    ),
    "debian": System(
        'ID=debian\nVERSION_ID="12"\n',
        ("6.1.0-18-amd64", "6.1.0-20-amd64"),
        ("apt-get", "apt-cache"),
        "usr/lib/x86_64-linux-gnu",
        "linux-headers-*",
        "etc/kernel/postinst.d",
        "vmlinuz",
    ),
    "rocky": System(
        'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n',
        ("5.14.0-427.13.1.el9_4.x86_64", "5.14.0-503.11.1.el9_5.x86_64"),
        ("dnf",),
        "usr/lib64",
        "kernel-devel-*",
        "etc/kernel/install.d",
    ),
    "sles": System(
        'ID="sles"\nID_LIKE="suse"\nVERSION_ID="15.6"\n',
        ("6.4.0-150600.23.47-default", "6.4.0-150600.23.50-default"),
        ("zypper",),
        "usr/lib64",
        "kernel-default-devel",
        boots="boot/vmlinuz",
    ),
}
VERSION, NEWER, PACKAGED = "570.133.20", "580.82.07", "570.158.01"
WANTED = WantedDriver(version=VERSION, base_url="https://mirror.example/tesla")


class Machine:
    """The runner of its own tools; `before` is called with each command first."""

    def __init__(self, directory: Path, system: str = "ubuntu", *, device: str = "0x2330", switches: int = 0) -> None:
        self.system = SYSTEMS[system]
        self.root, self.state = directory / "root", directory / "state"
        self.ran: list[str] = []
        self.others: list[subprocess.Popen[bytes]] = []  # programs of the machine's own
        self.before: Callable[[str], None] = lambda _: None
        self.host = Host(self.root, self)
        if self.root.exists():
            return
        self._build(device, switches)

    def copy(self, directory: Path) -> Machine:
        """The machine as it is now: what is left of it when all its processes are killed."""
        shutil.copytree(self.root.parent, directory, symlinks=True)
        return Machine(directory, next(name for name, system in SYSTEMS.items() if system is self.system))

    def _build(self, device: str, switches: int) -> None:
        for path in (
            "etc",
            "lib",
            "usr/src",
            "var/lib",
            "run",
            "sys/module",
            "proc/1",
            "usr/local/bin",
            self.system.libraries,
        ):
            (self.root / path).mkdir(parents=True, exist_ok=True)
        for path in ("trouble", "cured", "kill"):
            (self.state / path).mkdir(parents=True)
        if self.system.hooks:
            (self.root / self.system.hooks).mkdir(parents=True)
        self.write("etc/os-release", self.system.os_release)
        self.write("etc/shadow", "root:*:1::::::\n")
        (self.root / "etc/shadow").chmod(0o600)
        for kernel in self.system.kernels:
            self.write(f"lib/modules/{kernel}/modules.dep", "the host's own\n")
        for i in range(2):
            self.pci(f"0000:00:1{i}.0", "0x030200", device)
        for i in range(switches):
            self.pci(f"0000:00:2{i}.0", "0x068000", "0x22a3")
        for path in ("usr/bin", "usr/sbin"):
            (self.root / path).mkdir(parents=True)
        for tool in (*COMMON, *self.system.programs):
            shutil.copy(TOOLS / tool, self.root / "usr/bin" / tool)
        if "zypper" in self.system.programs:
            (self.root / "usr/lib/module-init-tools").mkdir(parents=True)
            shutil.copy(TOOLS / "weak-modules2", self.root / "usr/lib/module-init-tools")
        for tool in FILES:
            shutil.copy(TOOLS / "files", self.root / "usr/bin" / tool)
        self.write("sys/module/firmware_class/parameters/path", "\n")
        self.stock(*ALSO, self.system.headers)
        (self.state / "versions").write_text(f"{VERSION}\n{NEWER}\npackaged {PACKAGED}\n")
        (self.state / "kernels").write_text("".join(f"{kernel}\n" for kernel in self.system.kernels))
        self.boots_next(self.system.kernels[0])
        self.boot(self.system.kernels[0])

    def pci(self, address: str, kind: str, device: str) -> None:
        for name, text in (("vendor", "0x10de"), ("class", kind), ("device", device)):
            self.write(f"sys/bus/pci/devices/{address}/{name}", text + "\n")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def boot(self, kernel: str) -> None:
        """Start with a kernel: what lay in memory is gone, what was written is there."""
        if f" /{names.DRIVER_ROOT} " in self.mounts():
            self._sync()
        for path in ("run", "proc"):
            shutil.rmtree(self.root / path, ignore_errors=True)
        shutil.rmtree(self.root / "sys/module/nvidia", ignore_errors=True)
        (self.root / "run").mkdir()
        self.write("proc/1/mounts", "/dev/sda1 / ext4 rw 0 0\n")
        self.write("proc/modules", "")
        self.write("proc/sys/kernel/osrelease", kernel + "\n")
        self.write("sys/module/firmware_class/parameters/path", "\n")
        for name in ("modules", "holders"):
            (self.state / name).write_text("")

    def boots_next(self, kernel: str) -> None:
        """Set the link that the next boot follows."""
        if self.system.boots:
            link = self.root / self.system.boots
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(f"{'' if link.parent.name == 'boot' else 'boot/'}vmlinuz-{kernel}")

    def install_kernel(self, kernel: str) -> None:
        """Install a kernel's package: link the kernel, and call the hooks."""
        self.boots_next(kernel)
        for hook in sorted((self.root / self.system.hooks).iterdir()) if self.system.hooks else ():
            # The host's root is not ours.
            script = hook.read_text().replace("/run/", f"{self.root}/run/")
            arguments = [kernel] if "postinst" in self.system.hooks else ["add", kernel, "/boot/entry", "/boot/image"]
            assert os.access(hook, os.X_OK)
            subprocess.run(["/bin/sh", "-c", script, hook.name, *arguments], check=True)

    def _sync(self) -> None:
        merged = self.root / names.DRIVER_ROOT
        upper = self.root / (self.state / "upper").read_text().strip().lstrip("/")
        if upper.exists():
            ignored = shutil.ignore_patterns("proc", "sys", "dev", "run")
            shutil.rmtree(upper)
            shutil.copytree(merged, upper, symlinks=True, ignore=ignored)

    def unmount_driver(self) -> None:
        """`umount -R -l` of the driver's root: its place is empty again, its layers stay."""
        self._sync()
        shutil.rmtree(self.driver_root)
        lines = self.mounts().splitlines(keepends=True)
        self.write("proc/1/mounts", "".join(line for line in lines if f" /{names.DRIVER_ROOT}" not in line))

    def mounts(self) -> str:
        path = self.root / "proc/1/mounts"
        return path.read_text() if path.exists() else ""

    def stock(self, *patterns: str) -> None:
        """Set the packages of the mirrors."""
        (self.state / "repository").write_text("".join(f"{pattern}\n" for pattern in patterns))

    def trouble(self, tool: str, code: int, text: str, pattern: str = "", cured: str = "") -> None:
        """Let a tool fail, with arguments that contain `pattern`, until the shell's condition `cured` holds."""
        (self.state / "trouble" / tool).write_text(f"{code}\n{pattern}\n{text}\n")
        if cured:
            (self.state / "cured" / tool).write_text(f"{cured}\n")

    def mend(self) -> None:
        for path in (self.state / "trouble").iterdir():
            path.unlink()

    def hold(self, count: int) -> None:
        """Let so many processes use the GPUs."""
        kept = [line for line in (self.state / "holders").read_text().splitlines() if line.startswith("42")]
        (self.state / "holders").write_text("".join(f"{line}\n" for line in (*kept, *("app" for _ in range(count)))))
        lines = (self.root / "proc/modules").read_text().splitlines()
        others = sum(not line.startswith("nvidia ") for line in lines)
        users = "".join(line.split()[0] + "," for line in lines if not line.startswith("nvidia ")) or "-"
        nvidia = f"nvidia 1 {others + len(kept) + count} {users} Live 0x0"
        self.write("proc/modules", "".join(f"{nvidia if x.startswith('nvidia ') else x}\n" for x in lines))

    @property
    def loaded(self) -> str:
        """The version of the loaded module, and whether it is the open one."""
        if not (self.root / "sys/module/nvidia/version").exists():
            return ""
        said = dict(line.split("=") for line in (self.state / "loaded").read_text().splitlines())
        return f"{said['version']} {said['kind']}"

    @property
    def driver_root(self) -> Path:
        return self.root / names.DRIVER_ROOT

    async def on_the_host(self, *argv: str, inside: str = "") -> Completed:
        """Run a command as a person on the node does, or in a root below the machine's."""
        return await self.run(Command(argv, self.root, inside=inside))

    async def run(self, command: Command) -> Completed:
        """As `chroot`, for those who may not: the program is found below the root, and told it."""
        self.ran.append(str(command))
        self.before(str(command))
        root = (command.root or Path("/")) / command.inside
        program = command.argv[0]
        places = [root / program.lstrip("/")] if "/" in program else [root / "usr/bin" / program]
        found = next((str(place) for place in places if place.is_file()), "")
        if not found:
            return Completed(command, 127, stderr=f"{program}: No such file or directory")
        settings = {"SIMHOST_ROOT": root, "MACHINE": self.root, "STATE": self.state, "TOOLS": TOOLS}
        process = await asyncio.create_subprocess_exec(
            *(found, *command.argv[1:]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **command.env, **{name: str(value) for name, value in settings.items()}},
        )
        try:
            out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await asyncio.shield(process.communicate())
        assert process.returncode is not None, "communicate() returns after the end"
        return Completed(command, process.returncode, out.decode(), err.decode())


def tree(root: Path) -> dict[str, tuple[str, int, str]]:
    """Every path below a root: kind, permissions, content."""
    found = {}
    for path in sorted(root.rglob("*")):
        name, mode = str(path.relative_to(root)), stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            found[name] = ("link", 0, str(path.readlink()))
        elif path.is_dir():
            found[name] = ("directory", mode, "")
        else:
            found[name] = ("file", mode, path.read_bytes().decode(errors="replace"))
    return found
