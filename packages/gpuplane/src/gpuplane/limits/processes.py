"""Reads /proc: the identity of a process, also after its id was reused, and its container."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec

PROC: Final = Path("/proc")
_MACHINES: Final = 0xEFFFFFFC  # the inode of the machine's own pid namespace (Linux, PROC_PID_INIT_INO)


class ProcessIdentity(msgspec.Struct, frozen=True, order=True):
    """One process for all time: its id, and when it started, in clock ticks since the boot (stat's field 22)."""

    pid: int
    start: int


class ProcessFacts(msgspec.Struct, frozen=True):
    """A running process.

    `inner_pid` is its id in its own pid namespace, by which it knows itself, and `namespace` that one's inode, None
    where we may not see it; `cgroup` the path of its (v2 or first) control group, which carries the pod's UID and the
    container's id; `environment` the variables it was started with, empty where we may not read them.
    """

    pid: int
    start: int
    inner_pid: int
    namespace: int | None = None
    name: str = ""
    cgroup: str = ""
    environment: dict[str, str] = {}

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.start)


def start_of(pid: int, proc: Path = PROC) -> int | None:
    """When a process started; None when there is none, or it has ended and waits only for its parent to look."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def is_running(identity: ProcessIdentity, proc: Path = PROC) -> bool:
    return start_of(identity.pid, proc) == identity.start


def kill(identity: ProcessIdentity, proc: Path = PROC) -> bool:
    """Kill a process, and no other that has its id by now. Return whether it was there, and ours to kill."""
    try:
        handle = os.pidfd_open(identity.pid)
    except OSError:
        return False
    try:
        if not is_running(identity, proc):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def myself() -> ProcessIdentity:
    pid = os.getpid()
    return ProcessIdentity(pid, start_of(pid) or 0)


def facts_of(pid: int, wanted: Iterable[str] = (), proc: Path = PROC) -> ProcessFacts | None:
    """The facts of a process, of its environment only the variables `wanted`; None when it has ended."""
    start = start_of(pid, proc)
    if start is None:
        return None
    ids = _ids(proc, pid)
    environment = _environment(proc, pid) if wanted else {}
    return ProcessFacts(
        pid=pid,
        start=start,
        inner_pid=ids[-1],
        namespace=_namespace(proc, pid, ids),
        name=_text(proc / str(pid) / "comm").strip(),
        cgroup=_cgroup(_text(proc / str(pid) / "cgroup")),
        environment={name: environment[name] for name in wanted if name in environment},
    )


def living_namespaces(proc: Path = PROC) -> frozenset[int] | None:
    """The pid namespaces in which some process runs; None when not all processes of the machine are to be seen.

    From any namespace but the machine's own one sees only what is below it.
    """
    if _inode(proc / "self" / "ns" / "pid") != _MACHINES:
        return None
    found = {pid: _namespace(proc, pid, _ids(proc, pid)) for pid in running(proc)}
    if any(inode is None and start_of(pid, proc) is not None for pid, inode in found.items()):
        return None
    return frozenset(inode for inode in found.values() if inode is not None)


class VisibleProcesses(msgspec.Struct, frozen=True):
    """The processes that run in some pid namespaces: the pid as we see it, by (its own pid, start).

    `namespaces` has the processes of each namespace in which one is to be seen: then all of them are. `blind` are
    those whose namespace may not be read.
    """

    namespaces: dict[int, dict[tuple[int, int], int]] = {}
    blind: frozenset[tuple[int, int]] = frozenset()


def visible(wanted: Collection[int], proc: Path = PROC) -> VisibleProcesses:
    """The processes of the wanted pid namespaces; a namespace with a process of ours or below it is seen whole."""
    found: dict[int, dict[tuple[int, int], int]] = {}
    blind = set()
    for pid in running(proc):
        start = start_of(pid, proc)
        if start is None:
            continue
        ids = _ids(proc, pid)
        namespace = _namespace(proc, pid, ids)
        if namespace is None:
            blind.add((ids[-1], start))
        elif namespace in wanted:
            found.setdefault(namespace, {})[ids[-1], start] = pid
    return VisibleProcesses(found, frozenset(blind))


def running(proc: Path = PROC) -> tuple[int, ...]:
    """The ids of all processes that are to be seen."""
    return tuple(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())


def users_of(variable: str, value: str, proc: Path = PROC) -> bool:
    """Return whether some process was started with this in its environment. Those of other users count only
    for root.
    """
    wanted = f"{variable}={value}".encode()
    return any(wanted in _bytes(proc / str(pid) / "environ").split(b"\0") for pid in running(proc))


def _cgroup(text: str) -> str:
    """The unified hierarchy's path (`0::/...`), else the first that is not the root."""
    paths = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    unified = next((path for number, _, path in paths if number == "0"), "")
    if unified not in ("", "/"):
        return unified
    return next((path for _, _, path in paths if path != "/"), unified)


def _environment(proc: Path, pid: int) -> dict[str, str]:
    pairs = _bytes(proc / str(pid) / "environ").split(b"\0")
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in (pair.partition(b"=") for pair in pairs)}


def _ids(proc: Path, pid: int) -> list[int]:
    """The ids of a process in the pid namespaces that it is in, ours first, its own last."""
    status = _text(proc / str(pid) / "status")
    words = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return [int(word) for word in words] or [pid]


def _namespace(proc: Path, pid: int, ids: list[int]) -> int | None:
    # A process without another id is in our namespace, also where we may not look.
    return _inode(proc / str(pid) / "ns" / "pid") or (_inode(proc / "self" / "ns" / "pid") if len(ids) == 1 else None)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def _text(path: Path) -> str:
    return _bytes(path).decode(errors="replace")


def _bytes(path: Path) -> bytes:
    """The content; nothing of a process that has ended, or that we may not look at."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
