"""The file systems of light nodes: the part of a machine that operands read, in as few files as that takes.

Files that only a process would need (libraries, tools, devices) are left out, and files that are never written in place
are hard links to one copy: five thousand nodes are made in seconds.

Invariant: a writer replaces a linked file (temporary file, rename), as `gpuplane.host` does; what is written in
place (`proc/modules`) is each node's own.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from simgpu.machines.driver import driver_libraries
from simgpu.machines.machine import NodeMachine
from simgpu.machines.root import tree

_READ: Final = (
    *("etc/os-release", "etc/containerd/", "etc/docker/", "etc/crio/", "boot/config-"),
    *("proc/sys/kernel/osrelease", "proc/cpuinfo", "sys/block/", "sys/class/dmi/", "sys/devices/system/node/"),
    *("sys/fs/", "usr/bin/nvidia-"),
)
_PCI: Final = "sys/bus/pci/devices/"
_PCI_FILES: Final = ("vendor", "class", "device")
_DIRECTORIES: Final = ("dev", "etc/cdi", "run", "sys/module", "usr/bin", "usr/lib", "usr/sbin", "var/lib")
_LINKS: Final = {"lib": "usr/lib", "sbin": "usr/sbin", "bin": "usr/bin", "var/run": "../run"}
_OWN: Final = "proc/modules"


def light_tree(machine: NodeMachine) -> dict[str, str]:
    """Path below the root -> text, the same for all nodes of a machine."""
    whole = tree(machine, "light")
    gpus = {path.split("/")[4] for path, text in whole.items() if path.endswith("/class") and text.startswith("0x0302")}
    files = {path: text for path, text in whole.items() if path.startswith(_READ)}
    for address in gpus:
        files |= {f"{_PCI}{address}/{name}": whole[f"{_PCI}{address}/{name}"] for name in _PCI_FILES}
    return {**files, "proc/cpuinfo": files["proc/cpuinfo"].split("\n\n", 1)[0] + "\n\n"}


class RootTemplate:
    """One copy of the files, and what has to be made for a node."""

    def __init__(self, machine: NodeMachine, place: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)
        files = list(light_tree(machine).items())
        for name, text in files:
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        self._links = dict(_LINKS)
        if machine.gpus:
            self._add_driver(machine, place)
        self._place = str(place)
        self._files = [str(path.relative_to(place)) for path in sorted(place.rglob("*")) if path.is_file()]
        below = {parent for name in (*self._files, _OWN, *self._links) for parent in Path(name).parents}
        below |= {parent for name in _DIRECTORIES for parent in (Path(name), *Path(name).parents)}
        self._directories = [str(path) for path in sorted(below) if path != Path()]

    def _add_driver(self, machine: NodeMachine, place: Path) -> None:
        """The driver's libraries by name: that they are there is all that a light node's driver is. Every machine has
        them: a light node has no programs that could install a driver.
        """
        for path, target in driver_libraries(machine).items():
            if target:
                self._links[path] = target
            else:
                (place / path).parent.mkdir(parents=True, exist_ok=True)
                (place / path).touch()

    def make(self, root: Path) -> None:
        """Makes a node's root, unless it stands."""
        base = str(root)
        own = f"{base}/{_OWN}"
        if root.exists():
            if Path(own).exists():
                return
            shutil.rmtree(root)
        # NB: plain system calls on strings; with pathlib this takes four times as long.
        os.makedirs(base)  # noqa: PTH103
        for name in self._directories:
            os.mkdir(f"{base}/{name}")  # noqa: PTH102
        for link, target in self._links.items():
            os.symlink(target, f"{base}/{link}")  # noqa: PTH211
        for name in self._files:
            os.link(f"{self._place}/{name}", f"{base}/{name}")
        os.close(os.open(own, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))  # the last: the root is whole
