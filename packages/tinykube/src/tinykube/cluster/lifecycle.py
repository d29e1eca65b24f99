"""`up`, `down` and `load`: an embedded cluster as a whole, for the command line and for tests."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Final

import msgspec

from kubekit.errors import NoAnswer, Terminal
from tinykube.cluster import processes
from tinykube.cluster.command_lock import command_lock, usable
from tinykube.cluster.directory import ClusterDirectory, RunningProcess, remove_with_parts
from tinykube.cluster.kubeconfig import save
from tinykube.cluster.room import read_room, shortage
from tinykube.cluster.spec import ClusterSpec
from tinykube.cluster.supervisor import CONTROL_PLANE, STOP_S, SUPERVISOR, start_supervisor
from tinykube.distribution import Distribution
from tinykube.kubelet.containers import IsolationMode, find_mode, remove_tree

HOST: Final = "127.0.0.1"
_POLL_S: Final = 0.02
_LOG_LINES: Final = 5
_PATIENCE_S: Final = 2 * STOP_S + 3
_PORT_CURES: Final = {
    errno.EADDRINUSE: "end the process that listens there, or set another --port (0: any free one)",
    errno.EACCES: "set a --port that an ordinary user may take, such as 6443 (0: any free one)",
}

Progress = Callable[[str], None]


class ClusterHandle(msgspec.Struct, frozen=True):
    """A running cluster. `kubeconfig` is for people and clients; `server` the API server's URL."""

    name: str
    directory: Path
    kubeconfig: Path
    server: str
    spec: ClusterSpec
    containers: IsolationMode | None = None  # how its nodes start them; of a cluster that `up` started, and has nodes


def _quiet(_: str) -> None:
    """Discard progress, for callers that want none."""


async def up(
    distribution: Distribution,
    spec: ClusterSpec,
    *,
    base: Path | None = None,
    timeout: float = 30.0,
    progress: Progress = _quiet,
) -> ClusterHandle:
    """Starts a cluster, detached, and returns when its API server answers. Nodes come up meanwhile.

    A cluster of this name that was stopped with its files kept, or died, is started again: with `persist` with its
    objects. `progress` gets a few words before each step. When cancelled, `up` ends what it started, and removes the
    files unless they are an earlier run's.

    Raises InvalidInput for a wrong spec; Terminal when the cluster runs already, the port is taken, the directory is
    not a cluster's or cannot be made, or the API server cannot start; NoAnswer when it does not answer in time.
    """
    spec.check(distribution.check_machine)
    directory = ClusterDirectory(distribution, spec.name, base)
    with usable(distribution, directory.path):
        async with _lock(directory, progress):
            earlier = directory.spec_file.exists()
            try:
                _prepare(directory, spec, progress)
                handle, mode = await asyncio.gather(_start(directory, spec, timeout, progress), _containers(spec))
            except asyncio.CancelledError:
                await _clear(directory, keep_files=earlier, progress=progress)
                raise
    return msgspec.structs.replace(handle, containers=mode)


def require_startable(distribution: Distribution, spec: ClusterSpec, *, base: Path | None = None) -> None:
    """Raise what `up` would raise for a wrong spec, a cluster that runs or does not fit, or another's directory.

    Changes nothing: for callers with minutes of work before `up`.
    """
    spec.check(distribution.check_machine)
    directory = ClusterDirectory(distribution, spec.name, base)
    with usable(distribution, directory.path):
        _require_free(directory)
        _require_room(directory, spec)


async def _containers(spec: ClusterSpec) -> IsolationMode | None:
    """Return how the kubelets of tinykube start containers; None where there are none."""
    return await asyncio.to_thread(find_mode) if spec.nodes and not spec.containerd else None


def _lock(directory: ClusterDirectory, progress: Progress) -> AbstractAsyncContextManager[None]:
    """Let no other command start or end a cluster meanwhile."""
    said = "waiting for another command that starts or ends a cluster"
    return command_lock(directory.distribution, directory.path.parent, lambda: progress(said))


async def _start(directory: ClusterDirectory, spec: ClusterSpec, timeout: float, progress: Progress) -> ClusterHandle:
    """Return when the API server answers. Otherwise end what was started, and raise."""
    progress("starting the API server")
    # Where to read the log from, should it fail: earlier runs are not this one's reason.
    before = _size(directory.log_of(CONTROL_PLANE))
    supervisor = RunningProcess(pid := start_supervisor(directory), processes.started(pid) or 0)
    try:
        async with asyncio.timeout(timeout):
            server = await _answered(directory, before, supervisor)
    except TimeoutError:
        await _end(directory)
        raise NoAnswer(
            f"the API server did not answer within {timeout:.0f} s",
            where=str(directory.log_of(CONTROL_PLANE)),
            cure="look at the log, then try again",
        ) from None
    except Terminal:
        await _end(directory)
        raise
    return _handle(directory, spec, server)


def _require_free(directory: ClusterDirectory) -> None:
    if directory.supervised():
        raise Terminal(
            f"cluster {directory.name} runs already",
            where=str(directory.path),
            cure=f"{directory.distribution.name} down {directory.name}, or --name for another one",
        )
    if directory.path.exists() and not directory.spec_file.exists() and directory.others_files():
        raise Terminal(
            "this directory is not an embedded cluster's", where=str(directory.path), cure="move it away, or use --name"
        )


def _prepare(directory: ClusterDirectory, spec: ClusterSpec, progress: Progress) -> None:
    _require_free(directory)
    if directory.spec_file.exists():
        left = _leftovers(directory)
        if left:
            progress("ending processes of an earlier run")
            processes.kill(left)
        known = directory.endpoint()
        if spec.port and known is not None and known.port != spec.port:
            directory.endpoint_file.unlink()
        for name in directory.processes():
            directory.note_running(name, None)
    _check_port(directory, spec)
    _require_room(directory, spec)
    directory.create(spec)


def _require_room(directory: ClusterDirectory, spec: ClusterSpec) -> None:
    place = directory.path.parent
    if short := shortage(read_room(place), spec, directory.path, directory.distribution.home_variable):
        raise Terminal(short.what, where=short.where, cure=short.cure)


def _check_port(directory: ClusterDirectory, spec: ClusterSpec) -> None:
    """Report a port in use now, and not in a log; give up a port that was chosen by chance."""
    known = directory.endpoint()
    port = spec.port or (known.port if known is not None else 0)
    if not port:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if not spec.port:
                directory.endpoint_file.unlink()
                return
            raise Terminal(
                f"port {port} cannot be used: {error.strerror}",
                where=f"{HOST}:{port}",
                cure=_PORT_CURES.get(error.errno or 0, "set another --port (0: any free one)"),
            ) from error


async def _answered(directory: ClusterDirectory, log_from: int, supervisor: RunningProcess) -> str:
    """The API server's URL, once it says that it is ready. Raises Terminal when its process gives up."""
    while True:
        endpoint = directory.endpoint()
        if endpoint is not None and await _ready(directory, endpoint.port):
            return endpoint.server
        if not processes.alive(supervisor):
            raise Terminal(
                "the supervisor does not start: " + _last_lines(directory.log_of(SUPERVISOR), 0),
                where=str(directory.log_of(SUPERVISOR)),
                cure="look at the log",
            )
        running = directory.running(CONTROL_PLANE)
        if running is not None and running.restarts >= 2:
            raise Terminal(
                "the API server does not start: " + _last_lines(directory.log_of(CONTROL_PLANE), log_from),
                where=str(directory.log_of(CONTROL_PLANE)),
                cure="look at the log",
            )
        await asyncio.sleep(_POLL_S)


async def _ready(directory: ClusterDirectory, port: int) -> bool:
    ca = directory.pki / "ca.crt"
    if not ca.exists():
        return False
    context = ssl.create_default_context(cafile=str(ca))
    try:
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
    except (OSError, ssl.SSLError):
        return False
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        line = await reader.readline()
    except OSError:
        return False
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return b" 200 " in line


def _handle(directory: ClusterDirectory, spec: ClusterSpec, server: str) -> ClusterHandle:
    ca = (directory.pki / "ca.crt").read_bytes()
    token = directory.tokens().admin
    user = f"{directory.distribution.name}-admin"
    save(directory.kubeconfig, context=directory.context, server=server, ca=ca, user=user, token=token)
    return ClusterHandle(spec.name, directory.path, directory.kubeconfig, server, spec)


def clusters(distribution: Distribution, base: Path | None = None) -> tuple[str, ...]:
    """The names of all clusters that have a directory."""
    root = (base or distribution.home()) / "clusters"
    with usable(distribution, root):
        if not root.exists():
            return ()
        # NB: Path.glob takes a directory that this user may not read for an empty one.
        return tuple(sorted(path.name for path in root.iterdir() if (path / "cluster.json").exists()))


def _named(distribution: Distribution, name: str, base: Path | None) -> ClusterDirectory:
    if not name:
        there = clusters(distribution, base)
        if len(there) != 1:
            if not there:
                where = str((base or distribution.home()) / "clusters")
                raise Terminal("there is no cluster", where=where, cure=f"{distribution.name} up starts one")
            raise Terminal(f"there are several clusters: {', '.join(there)}", cure="name one of them")
        name = there[0]
    return ClusterDirectory(distribution, name, base)


def load(distribution: Distribution, name: str = "", *, base: Path | None = None) -> ClusterHandle:
    """The running cluster of this name ("": the only one there is).

    Raises Terminal when there is none, NoAnswer when it is not running.
    """
    directory = _named(distribution, name, base)
    spec = directory.spec()
    endpoint = directory.endpoint()
    if endpoint is None or not directory.supervised():
        cure = f"{distribution.name} up --name {directory.name}, or down {directory.name}"
        raise NoAnswer(f"cluster {directory.name} is not running", where=str(directory.path), cure=cure)
    return _handle(directory, spec, endpoint.server)


async def down(
    distribution: Distribution,
    name: str = "",
    *,
    base: Path | None = None,
    keep_files: bool = False,
    progress: Progress = _quiet,
) -> str:
    """Ends every process of a cluster, containers too, and removes its files; answers its name.

    Raises Terminal when there is no such cluster.
    """
    directory = _named(distribution, name, base)
    with usable(distribution, directory.path):
        _require(directory)
        async with _lock(directory, progress):
            _require(directory)  # another `down` may have been first
            await _clear(directory, keep_files=keep_files, progress=progress)
    return directory.name


async def _clear(directory: ClusterDirectory, *, keep_files: bool, progress: Progress) -> None:
    progress("stopping")
    await _end(directory)
    if directory.distribution.release is not None:
        await asyncio.to_thread(directory.distribution.release, directory.path)
    remove_with_parts(directory.kubeconfig)
    if not keep_files:
        progress("removing its files")
        await asyncio.to_thread(_remove, directory.path)


def _require(directory: ClusterDirectory) -> None:
    if not directory.spec_file.exists():
        cure = f"{directory.distribution.name} up"
        raise Terminal(f"there is no cluster {directory.name}", where=str(directory.path), cure=cure)


async def _end(directory: ClusterDirectory) -> None:
    """Politely first, the supervisor ends the others; then whatever is left, wherever it came from."""
    running = directory.running(SUPERVISOR)
    if running is not None and processes.signal_(running, signal.SIGTERM):
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await processes.ended(running)
    # A note that is gone tells the control plane not to start another supervisor.
    directory.note_running(SUPERVISOR, None)
    until = time.monotonic() + STOP_S
    while (left := _leftovers(directory)) and time.monotonic() < until:
        processes.kill(left)
        await asyncio.sleep(_POLL_S)
    for process in directory.processes():
        directory.note_running(process, None)


def _leftovers(directory: ClusterDirectory) -> set[int]:
    noted = {r.pid for r in directory.processes().values() if processes.alive(r)}
    return noted | processes.descendants(noted) | processes.family_of_directory(directory.path)


def _remove(path: Path) -> None:
    try:
        remove_tree(path)
    except OSError as error:
        raise Terminal(f"cannot be removed: {error}", where=str(path), cure=f"as root: rm -rf {path}") from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _last_lines(path: Path, start: int) -> str:
    if not path.exists():
        return "it wrote no log"
    with path.open("rb") as file:
        file.seek(start)
        text = file.read().decode(errors="replace")
    return " | ".join(text.splitlines()[-_LOG_LINES:]) or "it wrote no log"
