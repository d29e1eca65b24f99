"""Starts containers through their shims and says when they end.

Invariants:

- The shim owns pipes and exit status, so a container does not notice that its kubelet died.
- Every wait for an end waits on a pidfd: own children and containers found again after a restart are alike.
- Without mount namespaces containers still run (see `rootfs.plain_words`); which way it is, is found out once
  (`modes.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import signal
import stat
import sys
import sysconfig
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from kubekit.errors import Terminal
from tinykube.images import NATIVE
from tinykube.kubelet.containers.groups import ControlGroups, entering
from tinykube.kubelet.containers.modes import Isolation, IsolationMode, UserIdentity, candidates, fit, observe_identity
from tinykube.kubelet.containers.records import (
    ContainerRecord,
    Exit,
    Records,
    is_running,
    process_start,
    signal_container,
)
from tinykube.kubelet.containers.rootfs import (
    PROCESSES,
    ContainerSpec,
    Hardware,
    isolated_words,
    observe_machine,
    plain_words,
    process_words,
    view,
)
from tinykube.kubelet.containers.tmpfs import unmount_below
from tinykube.kubelet.logs import last_lines

# In the environment of a cluster's processes: the cluster's directory or a container's below it. A container with a
# mount namespace has the environment of its image alone; there the root file system's source is that directory.
MARK: Final = "TINYKUBE_DIRECTORY"
_SHIM: Final = NATIVE / "container-shim"
_REPORT_FD: Final = 3
_LOOK_AGAIN_SECONDS: Final = 0.01
_PROBLEM_CHARACTERS: Final = 500
_PLAIN_ENV: Final = {"PATH": "/usr/bin:/bin"}


class StartFailed(Terminal):
    """The container could not be started: no such program, no such mount source."""


class ProgramMissing(StartFailed):
    """The container's file system has no such program."""

    def __init__(self, what: str, program: str, where: str) -> None:
        super().__init__(what, where=where)
        self.program = program


def start_failed(answer: str, container: str) -> StartFailed:
    """Return the error for what the shim answered."""
    where = f"container {container}"
    found = re.match(r'exec: "(.+)": (executable file not found in \$PATH|no such file or directory)$', answer)
    return ProgramMissing(answer, found[1], where) if found else StartFailed(answer or "the shim died", where=where)


def find_mode(wanted: Collection[Isolation] = tuple(Isolation), who: UserIdentity | None = None) -> IsolationMode:
    """The best of the `wanted` modes, found out by starting a container that does nothing. Raises Terminal."""
    if not _SHIM.is_file():
        raise Terminal("the container shim is not built", where=str(_SHIM), cure="python native/build.py")
    problem = ""
    for mode in candidates(observe_identity() if who is None else who):
        if mode.isolation not in wanted:
            continue
        if problem and not mode.lacks:
            mode = msgspec.structs.replace(mode, lacks=problem)
        if mode.isolation is Isolation.NONE:
            return mode
        problem = _closed(_own_paths()) if mode.isolation is Isolation.USERS else ""
        if problem:
            continue
        problem = _try(mode)
        if not problem:
            return mode
        shared = msgspec.structs.replace(mode, own_processes=False, lacks=f"no PID namespaces: {problem}")
        if not _try(shared):
            return shared
    raise Terminal("this machine has no such containers", where=", ".join(wanted), cure=problem)


def _try(mode: IsolationMode) -> str:
    """Why no container starts in this mode, "" when one does."""
    spec, _ = fit(ContainerSpec(argv=("true",), env=_PLAIN_ENV, hostname="probe"), mode)
    with tempfile.TemporaryDirectory() as directory:
        stage = Path(directory)
        return _run(mode, isolated_words(spec, observe_machine(_own_paths()), stage=stage, node_root=stage))


def run_as_root(mode: IsolationMode, *argv: str) -> None:
    """Run a program on the machine's own files with the users that containers of this mode have. Raises OSError."""
    spec = ContainerSpec(argv=argv, env=_PLAIN_ENV)
    if problem := _run(mode, process_words(spec.argv, spec.env, spec)):
        raise OSError(f"{argv[0]}: {problem}")


def _run(mode: IsolationMode, words: Sequence[str]) -> str:
    """Run something in this mode and wait for its end; return why it did not start or failed, "" for success."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        write_words(home / "spec", ["log", str(home / "log"), "exit", str(home / "exit"), *mode.words, *words])
        pid, report = _spawn(home / "spec")
        with os.fdopen(report) as file:
            answer = file.read().strip()
        os.waitpid(pid, 0)
        if not answer.startswith("ok "):
            return answer or "the shim died"
        code = (home / "exit").read_text().partition(" ")[0]
        return "" if code == "0" else f"exit code {code}: {last_lines(str(home / 'log'), _PROBLEM_CHARACTERS)}"


def remove_tree(path: Path) -> None:
    """Removes a directory in which containers may have left files of other users, and volumes that lie in memory.

    Such files belong to ids of the machine that only a user namespace makes ours. Raises OSError.
    """
    unmount_below(path)
    try:
        shutil.rmtree(path)
    except PermissionError:
        mode = find_mode()
        if mode.isolation is not Isolation.USERS:
            raise
        run_as_root(mode, "rm", "-rf", str(path))


def _closed(paths: Iterable[Path]) -> str:
    """Return why other users cannot run this program, as in an installation made with umask 077; "" if they can."""
    program = [path for path in paths if path.is_dir()] + [Path(sys.executable).resolve(), Path(__file__)]
    closed = next((path for path in program if not path.stat().st_mode & stat.S_IROTH), None)
    return f"only you may read {closed}: chmod -R o+rX" if closed else ""


def _own_paths() -> list[Path]:
    """Return the paths of this installation that a container needs."""
    # Where Python looks for modules; the first place is the script's or the current directory, and no installation.
    sources = [Path(place) for place in sys.path[not sys.flags.safe_path :] if Path(place).is_dir()]
    return [Path(sys.prefix), Path(sys.base_prefix), *sources, NATIVE, Path(sysconfig.get_path("purelib"))]


def _spawn(spec: Path) -> tuple[int, int]:
    """Starts a shim: its pid, and the descriptor on which it says how the start went."""
    read, write = os.pipe()
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
    try:
        pid = os.posix_spawn(
            _SHIM,
            [str(_SHIM), "run", str(spec)],
            {MARK: f"{spec.parent}/"},
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
        isolation: None takes the best that this machine has. Raises Terminal where it has not the one given.
        private: directories of the machine that no container sees.
    """

    def __init__(
        self,
        node_root: Path,
        records: Records,
        isolation: Isolation | None = None,
        hardware: Hardware | None = None,
        private: Iterable[Path] = (),
    ) -> None:
        self.node_root = node_root
        self.records = records
        self.mode = find_mode() if isolation is None else find_mode((isolation,))
        self._hardware = hardware or Hardware()
        self._execs = itertools.count()
        self._machine = observe_machine(_own_paths(), self._hardware.state, private)
        self.groups = ControlGroups.of_this_process(node_root)
        (node_root / PROCESSES).mkdir(parents=True, exist_ok=True)

    async def start(self, record: ContainerRecord, spec: ContainerSpec, now: str) -> ContainerRecord:
        """Starts a container and returns its record with the pids. Raises StartFailed."""
        home = self.records.home(record.id)
        # NB: first the record: a directory without one counts as half-made and is removed when directories are listed.
        self.records.save(record)
        Path(record.log).parent.mkdir(parents=True, exist_ok=True)
        spec, _ = fit(spec, self.mode)
        spec = msgspec.structs.replace(spec, argv=spec.command(spec.argv))
        try:
            record = msgspec.structs.replace(record, groups=self.groups.make(record.id, spec.limits))
        except OSError as error:
            raise start_failed(f"set the limits of its control group: {error}", record.name) from error
        place = home / "rootfs"
        place.mkdir(exist_ok=True)
        if self.mode.isolation is Isolation.NONE:
            words = self._plain_words(home, spec)
        else:
            own = [] if spec.privileged else self.groups.words(record.groups)
            inside = isolated_words(spec, self._machine, stage=place, node_root=self.node_root, groups=own)
            words = [*self.mode.words, *inside]
        (home / "spec.json").write_bytes(msgspec.json.encode(spec))  # who execs into it later may be another kubelet
        listens = ["address", spec.address] if spec.address else []
        words = ["log", record.log, "exit", str(home / "exit"), *listens, *entering(record.groups), *words]
        write_words(home / "spec", words)
        shim, report = _spawn(home / "spec")
        answer = (await read_all(report)).strip()
        if not answer.startswith("ok "):
            await self._reap(shim)
            self.groups.remove(record.groups)
            raise start_failed(answer, record.name)
        started = msgspec.structs.replace(
            record,
            started=now,
            shim_pid=shim,
            shim_start=process_start(shim),
            pid=int(answer.split()[1]),
            isolated=self.mode.isolation is not Isolation.NONE,
            joined=spec.joins is not None,
        )
        self.records.save(started)
        return started

    async def wait(self, record: ContainerRecord) -> Exit:
        """Returns once the container has ended. One whose shim was killed ends like a container that was: 137."""
        await self._reap(record.shim_pid, record.shim_start)
        if record.joined or self.records.exit_of(record.id) is None:
            await asyncio.to_thread(self.end_leftovers, record)
        return self.exit_of(record)

    def end_leftovers(self, record: ContainerRecord) -> None:
        """End the processes of a container that its killed shim has left. Where it has a PID namespace, the kernel
        does; orphans of a container that joined another's namespace are that one's."""
        from tinykube.cluster import processes  # NB: not above, as that package starts kubelets

        home = self.records.home(record.id)
        while left := processes.family_of_directory(home):
            processes.kill(left)
            time.sleep(_LOOK_AGAIN_SECONDS)
        self.groups.remove(record.groups)

    def exit_of(self, record: ContainerRecord) -> Exit:
        """Return the exit of a container that does not run any more."""
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

    def exec_command(self, record: ContainerRecord, argv: Sequence[str], *, tty: bool = False) -> list[str]:
        """The command line that runs `argv` inside a running container."""
        home = self.records.home(record.id)
        spec = msgspec.json.decode((home / "spec.json").read_bytes(), type=ContainerSpec)
        words = [*entering(record.groups), *(["tty"] if tty else [])]
        inside = msgspec.structs.replace(spec, argv=spec.command(tuple(argv)))
        number = next(self._execs)
        place = home / f"exec-{os.getpid()}-{number}"
        if record.isolated:
            words += process_words(inside.argv, inside.env, inside)
        else:
            words += self._plain_words(home, inside)
        write_words(place, words)
        return [str(_SHIM), "exec", str(record.pid), str(place)]

    def _plain_words(self, home: Path, spec: ContainerSpec) -> list[str]:
        """Also makes what the words speak of: links to the container's libraries and devices."""
        place = home / "rootfs"
        for path, target in view(spec, place).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_symlink():
                path.symlink_to(target)
        variable, directory = self._hardware.variable, str(self._device_dir(home, spec))
        added = {MARK: f"{home}/", **({variable: directory} if variable else {})}
        return plain_words(spec, added=added, place=place, programs=self._hardware.programs)

    def _device_dir(self, home: Path, spec: ContainerSpec) -> Path:
        if spec.privileged:
            return self.node_root / "dev"
        directory = home / "dev"
        directory.mkdir(exist_ok=True)
        for device in spec.devices:
            link = directory / Path(device.target).name
            link.unlink(missing_ok=True)
            link.symlink_to(device.source)
        for mount in spec.mounts:
            if mount.target in self._hardware.sockets:
                link = home / mount.target.lstrip("/")
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(mount.source)
        return directory


def _collect(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # found again after a restart: the child of another process
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
    kubelet. The node's memory is empty then: it loses the volumes that lie there."""
    count = 0
    for record in Records(directory).all():
        if is_running(record):
            count += 1
            signal_container(record, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.pid, signal.SIGKILL)
    unmount_below(directory.parent)
    return count
