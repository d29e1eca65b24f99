"""The programs of a simulated machine: one program under the names of those that operands start.

Packages that a distribution installs by itself are there; a compiler or curl comes from its packages
(native/tools/packages.c).
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Final

from kubekit.errors import Terminal
from simgpu import NATIVE
from simgpu.machines.machine import NodeMachine

_FIRST: Final = "usr/sbin/modprobe"
_PROGRAMS: Final = {
    "usr/sbin": ("rmmod", "lsmod", "depmod", "chroot"),
    "usr/bin": ("systemctl", "uname", "mkdir", "rm", "mv", "install", "env", "sh", "kill", "mount", "umount"),
}
_PACKAGE_MANAGERS: Final = {"debian": ("apt-get", "apt-cache"), "suse": ("zypper",), "rhel": ("dnf",)}
# Where programs of this kind of machine look for their loader.
_LOADER: Final = (
    "usr/lib/ld-linux-aarch64.so.1" if platform.machine() == "aarch64" else "usr/lib64/ld-linux-x86-64.so.2"
)


def install_programs(root: Path, machine: NodeMachine) -> None:
    """Write the programs and what they need to run where this root is `/`. Raises Terminal: they are not built."""
    program = NATIVE / "simhost"
    if not program.is_file():
        raise Terminal("the host tools are not built", where=str(program), cure="python native/build.py")
    first = root / _FIRST
    shutil.copyfile(program, first)
    first.chmod(0o755)
    for directory, tools in (*_PROGRAMS.items(), ("usr/bin", _PACKAGE_MANAGERS[machine.family])):
        for tool in tools:
            os.link(first, root / directory / tool)
    _install_libc(root)


def run_program(root: Path, *words: str, directory: Path | None = None) -> None:
    """Run a program of the machine, in `directory`. Raises Terminal when it fails."""
    done = subprocess.run(
        words,
        executable=root / _FIRST,
        cwd=directory,
        env={"SIMHOST_ROOT": str(root)},
        capture_output=True,
        check=False,
        text=True,
    )
    if done.returncode != 0:
        raise Terminal(f"{' '.join(words)}: {done.stderr.strip()}", where=str(root))


def _install_libc(root: Path) -> None:
    """The machine's libc and its loader, so that the tools run where this root is `/`.

    The libc lies apart, where only the tools look: it is no file of the distribution that is simulated.
    """
    mapped = {Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    for path in mapped:
        if path.name == "libc.so.6":
            for library in (path, path.with_name("libdl.so.2")):
                _copy(library, root / "usr/lib/simhost" / library.name)
        elif path.name.startswith("ld-linux"):
            _copy(path, root / _LOADER)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)
