"""The records of containers, stored in their directories so that they outlive the kubelet.

D/containers/<id>/ holds record.json (written at the start, once more with the pids), the shim's spec and, after the
end, `exit`. A kubelet that was killed reads them all at its next start and goes on with the containers that still run.

Invariant: a pid is believed only together with the time its process started, since pids are used again.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import msgspec

from kubekit.api.quantity import Quantity


class ContainerRecord(msgspec.Struct, kw_only=True, frozen=True):
    """One container. Times are RFC 3339; `kind` is "main", "init" or "sidecar"; `attempt` counts its restarts."""

    id: str
    pod_uid: str
    namespace: str
    pod: str
    name: str
    attempt: int
    image: str
    log: str
    created: str
    started: str = ""
    shim_pid: int = 0
    shim_start: int = 0
    pid: int = 0
    isolated: bool = True
    groups: dict[str, str] = {}  # directories of its control groups, by controller
    requests: dict[str, Quantity] = {}  # what it has now, which a resize changes
    limits: dict[str, Quantity] = {}
    joined: bool = False  # in the PID namespace of another container


class Exit(msgspec.Struct, frozen=True):
    """The end of a container; `finished` in seconds since the epoch; `oom`: the kernel killed for its memory limit."""

    code: int
    signal: int
    finished: float
    oom: bool = False


class Records:
    """The directory of all containers of a node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def home(self, container_id: str) -> Path:
        return self.directory / container_id

    def save(self, record: ContainerRecord) -> None:
        home = self.home(record.id)
        home.mkdir(parents=True, exist_ok=True)
        new = home / "record.json.new"
        new.write_bytes(msgspec.json.encode(record))
        new.rename(home / "record.json")

    def remove(self, container_id: str) -> None:
        shutil.rmtree(self.home(container_id), ignore_errors=True)

    def all(self) -> list[ContainerRecord]:
        """All records that can be read; a half-written directory is removed (its container never started)."""
        found = []
        for home in sorted(self.directory.glob("*/")):
            try:
                found.append(msgspec.json.decode((home / "record.json").read_bytes(), type=ContainerRecord))
            except (OSError, msgspec.DecodeError):
                shutil.rmtree(home, ignore_errors=True)
        return found

    def exit_of(self, container_id: str) -> Exit | None:
        try:
            code, number, finished, *more = (self.home(container_id) / "exit").read_text().split()
        except (OSError, ValueError):
            return None
        return Exit(int(code), int(number), float(finished), oom="oom" in more)


def process_start(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 when it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def is_running(record: ContainerRecord) -> bool:
    return record.shim_pid > 0 and process_start(record.shim_pid) == record.shim_start != 0


def handles_sigterm(pid: int) -> bool:
    """Return whether a process decides about SIGTERM. For the first of a PID namespace the kernel drops it, unless it
    has a handler.

    Source: pid_namespaces(7), SigCgt of proc_pid_status(5).
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    fields = dict(line.split(":", 1) for line in text.splitlines())
    if fields.get("NSpid", "").split()[1:] != ["1"]:
        return True
    decided = int(fields["SigCgt"], 16) | int(fields["SigIgn"], 16)
    return bool(decided >> (signal.SIGTERM - 1) & 1)


def signal_container(record: ContainerRecord, number: int) -> None:
    """Signal the main process of a container that runs; one that is gone is no error.

    NB: the kernel drops SIGTERM for process 1 of a PID namespace that does not handle it.
    """
    if record.pid and is_running(record):
        try:
            os.kill(record.pid, number)
        except ProcessLookupError:
            return


def end_container(record: ContainerRecord) -> None:
    """Signal a container whose machine is switched off: SIGKILL where the kernel would drop SIGTERM."""
    signal_container(record, signal.SIGTERM if handles_sigterm(record.pid) else signal.SIGKILL)
