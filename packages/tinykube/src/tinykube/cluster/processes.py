"""Processes by pid and start time: are they alive, tell me when they end, and which belong to a cluster.

Nothing here needs to be the parent: a supervisor that was killed and started again follows the processes it finds. A
pid file alone is not trusted, since pids are reused; the start time in /proc tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tinykube.cluster.directory import RunningProcess
from tinykube.kubelet.containers import MARK

_PROC: Final = Path("/proc")
_MARK: Final = f"{MARK}=".encode()
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")  # a space, tab, newline or backslash of a path in /proc
_STARTED: Final = 19  # fields after the command's name in /proc/<pid>/stat, counted from 0
_PPID: Final = 1
_THREADS: Final = 17


def _stat(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when it is gone (or a zombie).

    A killed process of many threads looks like a zombie as soon as the first one has ended. Until the last one has,
    its ports stay taken.
    """
    fields = _stat(pid)
    if fields is None or (fields[0] in ("Z", "X") and int(fields[_THREADS]) <= 1):
        return None
    return int(fields[_STARTED])


def alive(process: RunningProcess) -> bool:
    return started(process.pid) == process.started


def signal_(process: RunningProcess, number: signal.Signals) -> bool:
    """Sends a signal to exactly this process; False when it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # Between looking and sending, the descriptor keeps the pid from meaning another process.
        if not alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


async def ended(process: RunningProcess) -> None:
    """Returns when the process is gone; a child is reaped."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()

    def readable() -> None:
        loop.remove_reader(descriptor)
        if not gone.done():
            gone.set_result(None)

    try:
        if alive(process):
            loop.add_reader(descriptor, readable)
            await gone
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        reap(process.pid)


def reap(pid: int = -1) -> None:
    """Takes the exit status of an ended child (-1: of all that ended), so that none stays a zombie; never waits."""
    with contextlib.suppress(ChildProcessError):  # no child of ours, or none left
        while os.waitpid(pid, os.WNOHANG)[0]:
            pass


def descendants(roots: Iterable[int]) -> set[int]:
    """All processes below some, by parent."""
    children: dict[int, list[int]] = {}
    for pid in pids():
        fields = _stat(pid)
        if fields is not None:
            children.setdefault(int(fields[_PPID]), []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def of_directory(directory: Path) -> set[int]:
    """Return the processes that were started for a cluster's directory, by their mark or their root file system.

    Containers are found this way also if their kubelet was killed. A path of the directory elsewhere in the
    environment, on the command line or among the mounts does not count. That may be a user's shell or editor.
    """
    mark = f"{directory}/".encode()
    own_mounts = _link("self")
    found = set()
    for pid in pids():
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            environment = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
            if any(entry.startswith(_MARK + mark) for entry in environment) or (
                _link(str(pid)) != own_mounts
                and root_source((_PROC / str(pid) / "mountinfo").read_bytes()).startswith(mark)
            ):
                found.add(pid)
    return found


def container_of(pid: int) -> Path | None:
    """Return a path in the directory of the container that a process belongs to; None for a process of no container.

    A container without a mount namespace has a mark in its environment. A program that clears the environment of its
    children is found by its parents.
    """
    own_mounts = _link("self")
    while pid > 1:
        try:
            if _link(str(pid)) != own_mounts:
                source = root_source((_PROC / str(pid) / "mountinfo").read_bytes())
                return Path(os.fsdecode(source)) if source.startswith(b"/") else None
            environment = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:  # gone meanwhile, or another user's
            return None
        for entry in environment:
            if entry.startswith(_MARK):
                return Path(os.fsdecode(entry.removeprefix(_MARK)))
        fields = _stat(pid)
        pid = int(fields[_PPID]) if fields is not None else 0
    return None


def family_of_directory(directory: Path) -> set[int]:
    """Return the processes that were started for a cluster's directory, and those that they started."""
    marked = of_directory(directory)
    return marked | descendants(marked)


def root_source(mountinfo: bytes) -> bytes:
    """Return the source of the root file system. Format: proc_pid_mountinfo(5). Pure."""
    for line in mountinfo.splitlines():
        mount, _, filesystem = line.partition(b" - ")
        if mount.split(b" ")[4] == b"/":
            return _OCTAL.sub(lambda match: bytes([int(match.group(1), 8)]), filesystem.split(b" ")[1])
    return b""


def _link(pid: str) -> str:
    return str((_PROC / pid / "ns" / "mnt").readlink())


def pids() -> list[int]:
    """Return the processes of the machine."""
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def kill(pids: Iterable[int]) -> int:
    """SIGKILL; answers how many were there."""
    count = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            count += 1
    return count
