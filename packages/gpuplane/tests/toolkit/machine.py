"""Hosts of each kind for tests that let the toolkit die, or refuse it something, in a child process."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuplane.hardware import GPUFacts
from gpuplane.host import Command, Completed, Host
from gpuplane.toolkit import apply, observe, plan
from gpuplane.toolkit.applying import LOCK, unconfigure
from packages.gpuplane.tests.toolkit import mortal
from packages.gpuplane.tests.toolkit.mortal import Call, Do, Verdict

VERSION = "535.161.08"
GPUS = tuple(
    GPUFacts(
        index=i,
        minor=1 - i,  # NVML's order need not be that of the device nodes
        uuid=f"GPU-{i}",
        model="Tesla T4",
        memory_bytes=15360 << 20,
        pci=f"0000:00:1{i}.0",
        compute=(7, 5),
    )
    for i in range(2)
)
Tree = dict[str, tuple[str, int, bytes]]


def tree(root: Path) -> Tree:
    """Every directory, link and file below `root`, parents first, with permissions and content; no sockets."""
    found: Tree = {}
    pending = [""]
    for directory in pending:
        with os.scandir(root / directory) as entries:
            for entry in entries:
                name = f"{directory}/{entry.name}".lstrip("/")
                mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
                if entry.is_symlink():
                    found[name] = ("link", 0, os.fsencode(os.readlink(entry.path)))  # noqa: PTH115 - thousands of them
                elif entry.is_dir():
                    found[name] = ("dir", mode, b"")
                    pending.append(name)
                elif entry.is_file():
                    with open(entry.path, "rb") as file:  # noqa: PTH123
                        found[name] = ("file", mode, file.read())
    return found


def plant(root: Path, what: Tree) -> None:
    """Make a new directory like the one that `tree` saw."""
    root.mkdir()
    for name, (kind, mode, data) in what.items():
        path = f"{root}/{name}"
        if kind == "dir":
            os.mkdir(path, mode)  # noqa: PTH102
        elif kind == "link":
            os.symlink(data, path)  # noqa: PTH211
        else:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT, mode)
            os.write(handle, data)
            os.close(handle)


V2 = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "pause:3.9"   # theirs\n'
K3S = "var/lib/rancher/k3s/agent/etc/containerd"
MICROK8S = "var/snap/microk8s/current/args/containerd-template.toml"
# The runtime's name, its socket, its files.
CASES: dict[str, tuple[str, str, dict[str, str]]] = {
    "containerd 1": (
        "containerd://1.7.2",
        "run/containerd/containerd.sock",
        {"etc/containerd/config.toml": "[plugins.cri]\nsandbox_image = 'p'"},
    ),
    "containerd 2": ("containerd://1.7.2", "run/containerd/containerd.sock", {"etc/containerd/config.toml": V2}),
    "containerd 3": (
        "containerd://2.1.0",
        "run/containerd/containerd.sock",
        {"etc/containerd/config.toml": "version = 3\nimports = ['/etc/containerd/other/*.toml'] # theirs\n"},
    ),
    "docker": ("docker://27.1", "run/docker.sock", {"etc/docker/daemon.json": '{\n\t"data-root":"/d"}'}),
    "docker, no file": ("docker://27.1", "run/docker.sock", {}),
    "cri-o": ("cri-o://1.30.0", "run/crio/crio.sock", {"etc/crio/crio.conf": "[crio.runtime]\n"}),
    "k3s": ("containerd://1.7.2-k3s1", "run/k3s/containerd/containerd.sock", {f"{K3S}/config.toml": V2}),
    "k0s": (
        "containerd://1.7.2",
        "run/k0s/containerd.sock",
        {"etc/k0s/containerd.toml": "# k0s_managed=true\nversion = 2\n", "run/k0s/containerd-cri.toml": V2},
    ),
    "microk8s": ("containerd://1.7.2", "var/snap/microk8s/common/run/containerd.sock", {MICROK8S: V2}),
}
OURS = ("var/lib/gpuplane", "usr/local/nvidia", "var/run", "run/nvidia", "run/gpuplane")


class Systemctl:
    """A service manager that reaches the runtime by a signal, which is seen as a call."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    async def run(self, command: Command) -> Completed:
        os.kill(self.pid, signal.SIGHUP)
        return Completed(command, 0)


async def no_time(_: float) -> None:
    pass


class State(msgspec.Struct, frozen=True):
    """A host's files, and those of them that its runtime has read, as they were then."""

    files: Tree
    loaded: Tree

    @property
    def key(self) -> Any:
        """All that can differ; not the process id in the lock."""
        return frozenset((path, entry[:2] if path == LOCK else entry) for path, entry in self.files.items()), frozenset(
            self.loaded.items()
        )


class Machine:
    """A host with a runtime that reads its files on a signal."""

    def __init__(self, root: Path, case: str, listener: tuple[Path, int], state: State) -> None:
        self.root, self.case, self.listener = root, case, listener
        self.said, path, _ = CASES[case]
        self.loaded = state.loaded
        plant(root, state.files)
        (root / path).hardlink_to(listener[0])

    def state(self) -> State:
        return State(tree(self.root), self.loaded)

    def like(self, name: str, state: State) -> Machine:
        """Another machine, as this kind of machine was."""
        return Machine(self.root.with_name(name), self.case, self.listener, state)

    def readable(self) -> Tree:
        """Return the files that a runtime may read."""
        return {
            path: entry
            for path, entry in tree(self.root).items()
            if entry[0] == "file" and not path.startswith(OURS) and not path.endswith(".gpuplane")
        }

    def told(self) -> None:
        self.loaded = self.readable()

    def configure(self, *, flush: bool = False) -> tuple[str, ...]:
        host = Host(self.root, Systemctl(self.listener[1]), flush=flush)
        facts = observe(host, gpus=GPUS, driver_version=VERSION, runtime=self.said)
        nodes = msgspec.structs.replace(facts.devices, nodes=frozenset(("nvidia0", "nvidia1")))
        return asyncio.run(apply(host, plan(msgspec.structs.replace(facts, devices=nodes)), sleep=no_time))

    def unconfigure(self, *, flush: bool = False) -> tuple[str, ...]:
        return asyncio.run(unconfigure(Host(self.root, Systemctl(self.listener[1]), flush=flush), sleep=no_time))

    def run(self, work: str, judge: Callable[[Call], Verdict | None]) -> tuple[int, str]:
        """Do `work` in a child. A signal only reaches `told`; flushes are taken for done."""

        def verdict(call: Call) -> Verdict:
            said = judge(call)
            if said is not None:
                return said
            if call.name == "kill":
                self.told()
            return Do.PRETEND if call.name in ("kill", "fsync") else Do.GO_ON

        status, said = mortal.live(lambda: getattr(self, work)(flush=True), verdict)
        return status, said.decode()


def fresh(case: str) -> State:
    """A host with runtime and driver, before us."""
    _, socket_path, files = CASES[case]
    programs = [f"usr/bin/{name}" for name in ("nvidia-container-runtime", "nvidia-cdi-hook")]
    libraries = ["usr/lib64/libcuda.so.1", "usr/lib64/libnvidia-ml.so.1"]
    found = {path: text.encode() for path, text in {**files, **dict.fromkeys([*programs, *libraries], "elf")}.items()}
    made: Tree = {}
    for path in (*found, socket_path, "run/x", "var/lib/x", "etc/docker/x"):
        for parent in [*Path(path).parents][-2::-1]:
            made[str(parent)] = ("dir", 0o755, b"")
    made.update((path, ("file", 0o640, data)) for path, data in found.items())
    return State(made, {path: made[path] for path in found})


def here(machine: Machine, work: str) -> None:
    """`work` in this process, to its end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "kill", lambda pid, number: machine.told())
        getattr(machine, work)()
