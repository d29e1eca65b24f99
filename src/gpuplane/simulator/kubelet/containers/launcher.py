"""Starts containers through their shims and says when they end.

Invariants:

- The shim owns pipes and exit status, so a container does not notice that its kubelet died.
- Everybody who waits for an end waits on a pidfd: own children and containers found again after a restart are alike.
- Without mount namespaces containers still run (see `rootfs.plain_words`); which way it is, is found out once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

import gpuplane
from gpuplane.errors import Terminal
from gpuplane.simulator.kubelet.containers.records import (
    Exit,
    Record,
    Records,
    is_running,
    process_start,
    signal_container,
)
from gpuplane.simulator.kubelet.containers.rootfs import (
    ContainerSpec,
    isolated_words,
    observe_machine,
    plain_words,
    process_words,
)
from gpuplane.simulator.nodes.images import NATIVE

log = logging.getLogger("gpuplane.kubelet")

_SHIM: Final = NATIVE / "container-shim"
_REPORT_FD: Final = 3


class StartFailed(Terminal):
    """The container could not be started: no such program, no such mount source."""


class Isolation(StrEnum):
    ROOT = "root"  # mount namespaces, as root
    USER = "user"  # mount namespaces inside a user namespace
    NONE = "none"  # rewritten paths


def find_isolation() -> Isolation:
    """What this machine allows, found out by starting a container that does nothing. Raises Terminal."""
    if not _SHIM.is_file():
        raise Terminal("the container shim is not built", where=str(_SHIM), cure="python native/build.py")
    how = Isolation.ROOT if os.geteuid() == 0 else Isolation.USER
    spec = ContainerSpec(argv=("true",), env={"PATH": "/usr/bin:/bin"}, hostname="probe")
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        (home / "stage").mkdir()
        words = isolated_words(spec, observe_machine(_own_paths()), how=how.value, stage=home / "stage", node_root=home)
        write_words(home / "spec", ["log", str(home / "log"), "exit", str(home / "exit"), *words])
        pid, report = _spawn(home / "spec")
        with os.fdopen(report) as file:
            answer = file.read()
        os.waitpid(pid, 0)
    if answer.startswith("ok "):
        return how
    log.warning("no mount namespaces here (%s); containers run without", answer.strip())
    return Isolation.NONE


def _own_paths() -> list[Path]:
    """What a container needs of this installation, wherever it lies."""
    package = Path(gpuplane.__file__).parent.parent
    return [Path(sys.prefix), Path(sys.base_prefix), package, NATIVE, Path(sysconfig.get_path("purelib"))]


def _spawn(spec: Path) -> tuple[int, int]:
    """Starts a shim: its pid, and the descriptor on which it says how the start went."""
    read, write = os.pipe()
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
    try:
        pid = os.posix_spawn(
            _SHIM,
            [str(_SHIM), "run", str(spec)],
            {},
            file_actions=[*actions, (os.POSIX_SPAWN_DUP2, write, _REPORT_FD)],
            setsigdef=[signal.SIGPIPE, signal.SIGHUP, signal.SIGTERM, signal.SIGINT],
        )
    except OSError:
        os.close(read)
        raise
    finally:
        os.close(null)
        os.close(write)
    return pid, read


class Launcher:
    """The containers of one node.

    Args:
        node_root: the node's file system.
        records: where each container has its directory.
        isolation: None finds out.
    """

    def __init__(self, node_root: Path, records: Records, isolation: Isolation | None = None) -> None:
        self.node_root = node_root
        self.records = records
        self.isolation = find_isolation() if isolation is None else isolation
        self._execs = itertools.count()
        self._machine = observe_machine(_own_paths())

    async def start(self, record: Record, spec: ContainerSpec, now: str) -> Record:
        """Starts a container and returns its record with the pids. Raises StartFailed."""
        home = self.records.home(record.id)
        # NB: first the record: a directory without one counts as half-made and is removed by whoever lists them.
        self.records.save(record)
        Path(record.log).parent.mkdir(parents=True, exist_ok=True)
        if self.isolation is Isolation.NONE:
            words = plain_words(spec, device_dir=self._device_dir(home, spec))
        else:
            stage = home / "rootfs"
            stage.mkdir(exist_ok=True)
            words = isolated_words(spec, self._machine, how=self.isolation.value, stage=stage, node_root=self.node_root)
        (home / "spec.json").write_bytes(msgspec.json.encode(spec))  # who execs into it later may be another kubelet
        words = ["log", record.log, "exit", str(home / "exit"), *words]
        write_words(home / "spec", words)
        shim, report = _spawn(home / "spec")
        answer = (await read_all(report)).strip()
        if not answer.startswith("ok "):
            await self._reap(shim)
            raise StartFailed(answer or "the shim died", where=f"container {record.name}")
        started = msgspec.structs.replace(
            record,
            started=now,
            shim_pid=shim,
            shim_start=process_start(shim),
            pid=int(answer.split()[1]),
            isolated=self.isolation is not Isolation.NONE,
        )
        self.records.save(started)
        return started

    async def wait(self, record: Record) -> Exit:
        """Returns once the container has ended. One whose shim was killed ends like a container that was: 137."""
        await self._reap(record.shim_pid, record.shim_start)
        return self.exit_of(record)

    def exit_of(self, record: Record) -> Exit:
        """How a container that does not run any more ended."""
        found = self.records.exit_of(record.id)
        if found is None:
            # NB: the kernel kills the main process with its shim; descendants of it have lost their tree.
            found = Exit(137, int(signal.SIGKILL), (self.records.home(record.id) / "record.json").stat().st_mtime)
        return found

    async def _reap(self, pid: int, start: int | None = None) -> None:
        if start is not None and process_start(pid) != start:
            _collect(pid)
            return
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            await readable(fd)
        finally:
            os.close(fd)
        _collect(pid)

    def exec_command(self, record: Record, argv: Sequence[str], *, tty: bool = False) -> list[str]:
        """The command line that runs `argv` inside a running container."""
        home = self.records.home(record.id)
        spec = msgspec.json.decode((home / "spec.json").read_bytes(), type=ContainerSpec)
        words = ["tty"] if tty else []
        inside = msgspec.structs.replace(spec, argv=tuple(argv))
        number = next(self._execs)
        place = home / f"exec-{os.getpid()}-{number}"
        if record.isolated:
            words += process_words(inside.argv, inside.env, inside)
        else:
            words += plain_words(inside, device_dir=self._device_dir(home, spec))
        write_words(place, words)
        return [str(_SHIM), "exec", str(record.pid), str(place)]

    def _device_dir(self, home: Path, spec: ContainerSpec) -> Path:
        if spec.privileged:
            return self.node_root / "dev"
        directory = home / "dev"
        directory.mkdir(exist_ok=True)
        for device in spec.devices:
            link = directory / Path(device.target).name
            link.unlink(missing_ok=True)
            link.symlink_to(device.source)
        return directory


def _collect(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # found again after a restart: somebody else's child
        os.waitpid(pid, os.WNOHANG)


def write_words(path: Path, words: Sequence[str]) -> None:
    """NUL-terminated words. A NUL inside one cannot come from JSON that the API server let through as a path."""
    path.write_bytes(b"".join(os.fsencode(word.replace("\0", "")) + b"\0" for word in words))


async def readable(fd: int) -> None:
    """Returns when `fd` can be read (a pidfd: when its process has ended)."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


async def read_all(fd: int) -> str:
    """Everything until the other end closes; closes `fd`."""
    os.set_blocking(fd, False)
    parts: list[bytes] = []
    try:
        while True:
            await readable(fd)
            try:
                part = os.read(fd, 65536)
            except BlockingIOError:
                continue
            if not part:
                return b"".join(parts).decode(errors="replace")
            parts.append(part)
    finally:
        os.close(fd)


def kill_all(directory: Path) -> int:
    """Kills every container below a node's `containers` directory; how many there were. For `down`, without a
    kubelet."""
    count = 0
    for record in Records(directory).all():
        if is_running(record):
            count += 1
            signal_container(record, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.pid, signal.SIGKILL)
    return count
