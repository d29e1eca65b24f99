"""The supervisor: keeps the processes of one embedded cluster alive.

It holds no state: `cluster.json` lists the wanted processes, `run/` the running ones, and processes are followed by pid
and start time, not as children. So it may be killed itself; the control plane then starts another one, which goes on
with what it finds. Only `down` ends a cluster. After SIGHUP it reads `cluster.json` again, see
`tinykube.cluster.membership`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import time
from typing import Final

import msgspec

from kubekit.errors import Terminal
from tinykube.cluster import processes
from tinykube.cluster.directory import ClusterDirectory, RunningProcess, write
from tinykube.cluster.kubeconfig import save
from tinykube.cluster.spec import ClusterSpec
from tinykube.kubelet.containers import MARK
from tinykube.kubelet.tokens import kubelet_token

CONTROL_PLANE: Final = "cluster"
SUPERVISOR: Final = "supervisor"
LIGHT_NODES: Final = "light-nodes"
FIRST_BACKOFF_S: Final = 0.1
LAST_BACKOFF_S: Final = 10.0
STABLE_S: Final = 10.0  # a process that ran this long starts its backoff again
STOP_S: Final = 5.0
_ENDPOINT_POLL_S: Final = 0.02
_PR_SET_CHILD_SUBREAPER: Final = 36
_log = logging.getLogger("tinykube.supervisor")


class ClusterProcess(msgspec.Struct, frozen=True):
    """A process of the cluster: its name, and the component with its arguments that the distribution starts."""

    name: str
    arguments: tuple[str, ...]


def programs(spec: ClusterSpec, directory: ClusterDirectory) -> tuple[ClusterProcess, ...]:
    """Everything that should run besides the control plane. Pure."""
    config = ("--config", str(directory.spec_file))
    found = []
    for node in spec.nodes:
        name = kubelet_process(node.name)
        kubeconfig = ("--kubeconfig", str(directory.kubeconfig_of(name)))
        found.append(ClusterProcess(name, ("kubelet", "--node-name", node.name, *kubeconfig, *config)))
    if spec.light_nodes:
        kubeconfig = ("--kubeconfig", str(directory.kubeconfig_of(LIGHT_NODES)))
        found.append(ClusterProcess(LIGHT_NODES, ("light-nodes", *kubeconfig, *config)))
    for name in spec.components:
        kubeconfig = ("--kubeconfig", str(directory.kubeconfig_of(name)))
        found.append(ClusterProcess(name, (name, *kubeconfig, *config)))
    return tuple(found)


def kubelet_process(node: str) -> str:
    """Return the name of the process that is a node's kubelet. Pure."""
    return f"kubelet-{node}"


def next_backoff(before: float, ran_s: float) -> float:
    """Seconds to wait before the next start of a process that ran for `ran_s`. Pure."""
    if ran_s >= STABLE_S or not before:
        return FIRST_BACKOFF_S
    return min(before * 2, LAST_BACKOFF_S)


async def supervise(directory: ClusterDirectory) -> None:
    """Supervise until cancelled, which stops the cluster. Returns at once where another supervisor lives."""
    lock = directory.lock()
    if lock is None:
        _log.info("cluster %s has a supervisor", directory.name)
        return
    _adopt_orphans()
    supervisor = Supervisor(directory)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, processes.reap)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reread)  # before the note, by which others signal this process
    directory.note_running(SUPERVISOR, _running(os.getpid(), 0))
    await supervisor.run()


class Supervisor:
    """Starts what is missing, starts again what dies, and ends what the cluster's specification no longer lists."""

    def __init__(self, directory: ClusterDirectory) -> None:
        self._directory = directory
        self._changed = asyncio.Event()
        self._kept: dict[ClusterProcess, asyncio.Task[None]] = {}
        self._ending: set[str] = set()

    def reread(self) -> None:
        """Follow the cluster's specification as it is now."""
        self._changed.set()

    async def run(self) -> None:
        config = ("--config", str(self._directory.spec_file))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep(ClusterProcess(CONTROL_PLANE, ("cluster", *config))))
                server = await self._served()
                while True:
                    self._changed.clear()
                    try:
                        self._follow(self._directory.spec(), server, group)
                    except (Terminal, OSError) as problem:
                        _log.error("the cluster's specification is not followed: %s", problem)
                        if isinstance(problem, OSError):  # such as a full disk: it may have room later
                            asyncio.get_running_loop().call_later(LAST_BACKOFF_S, self._changed.set)
                    await self._changed.wait()
        finally:
            await self._stop()

    async def _served(self) -> str:
        """Return the address of the API server once there is one."""
        while (endpoint := self._directory.endpoint()) is None:  # noqa: ASYNC110 - another process writes that file
            await asyncio.sleep(_ENDPOINT_POLL_S)
        return endpoint.server

    def _follow(self, spec: ClusterSpec, server: str, group: asyncio.TaskGroup) -> None:
        """Begin to keep the processes of a specification, and to end all others. Raises Terminal."""
        self._give_access(spec, server)
        wanted = programs(spec, self._directory)
        for program in [program for program in self._kept if program not in wanted]:
            self._kept.pop(program).cancel()
        known = {CONTROL_PLANE, SUPERVISOR, *(program.name for program in wanted), *self._ending}
        for name, running in self._directory.processes().items():
            if name not in known:
                self._ending.add(name)
                group.create_task(self._end(name, running))
        for program in wanted:
            if program not in self._kept and program.name not in self._ending:
                self._kept[program] = group.create_task(self._keep(program))

    def _give_access(self, spec: ClusterSpec, server: str) -> None:
        """Write the kubeconfig of every process, and the token that each kubelet knows the API server by."""
        directory = self._directory
        tokens = directory.ensure_tokens(spec)
        users = {kubelet_process(name): (f"system:node:{name}", token) for name, token in tokens.nodes.items()}
        users |= {name: (name, token) for name, token in tokens.components.items()}
        if spec.light_nodes:
            users[LIGHT_NODES] = (LIGHT_NODES, tokens.light_nodes)
        ca = (directory.pki / "ca.crt").read_bytes()
        for process, (user, token) in users.items():
            path = directory.kubeconfig_of(process)
            save(path, context=directory.context, server=server, ca=ca, user=user, token=token)
        for name in tokens.nodes:
            token = kubelet_token(tokens.kubelet_secret, name)
            write(directory.token_of(kubelet_process(name)), token.encode(), 0o600)

    async def _end(self, name: str, running: RunningProcess) -> None:
        await _ended(running)
        self._directory.note_running(name, None)
        self._ending.discard(name)
        self._changed.set()  # a process of this name may be wanted again
        _log.info("%s (pid %d) ended: the cluster has no such process any more", name, running.pid)

    async def _keep(self, program: ClusterProcess) -> None:
        backoff = 0.0
        restarts = 0
        while True:
            running = self._directory.running(program.name)
            if running is None or not processes.alive(running):
                try:
                    running = self._start(program, restarts)
                except OSError as problem:
                    # NB: a full disk, or too many processes, must not end the others.
                    backoff = next_backoff(backoff, 0.0)
                    _log.error("%s does not start, trying again: %s", program.name, problem)
                    await asyncio.sleep(backoff)
                    continue
            else:
                _log.info("%s runs already (pid %d)", program.name, running.pid)
            await processes.ended(running)
            ran = time.time() - running.since
            backoff = next_backoff(backoff, ran)
            restarts = running.restarts + 1
            _log.warning("%s (pid %d) ended after %.1f s; starting it again", program.name, running.pid, ran)
            await asyncio.sleep(backoff)

    def _start(self, program: ClusterProcess, restarts: int) -> RunningProcess:
        """Start a process and note it. Raises OSError, and nothing runs then."""
        running = _running(spawn(self._directory, program), restarts)
        try:
            self._directory.note_running(program.name, running)
        except OSError:
            processes.signal_(running, signal.SIGKILL)
            raise
        return running

    async def _stop(self) -> None:
        """Ask all processes to end, the control plane last, and kill them after a while."""
        noted = self._directory.processes()
        noted.pop(SUPERVISOR, None)
        last = noted.pop(CONTROL_PLANE, None)
        await _ended(*noted.values())
        if last is not None:
            await _ended(last)
        for name in self._directory.processes():
            self._directory.note_running(name, None)
        _log.info("cluster %s is down", self._directory.name)


async def keep_supervised(directory: ClusterDirectory) -> None:
    """Starts a supervisor whenever there is none; the control plane runs this.

    A control plane started by hand, without a supervisor's note, is left alone.
    """
    while True:
        running = directory.running(SUPERVISOR)
        if running is None:
            return
        await processes.ended(running)
        if directory.running(SUPERVISOR) != running:
            continue  # another one is there, or the cluster is going down
        _log.warning("the supervisor (pid %d) is gone; starting another one", running.pid)
        start_supervisor(directory)
        async with asyncio.timeout(LAST_BACKOFF_S):
            while directory.running(SUPERVISOR) == running:  # noqa: ASYNC110 - another process writes that file
                await asyncio.sleep(_ENDPOINT_POLL_S)


def start_supervisor(directory: ClusterDirectory) -> int:
    """Starts a supervisor in a session of its own; answers its pid."""
    config = ("--config", str(directory.spec_file))
    return spawn(directory, ClusterProcess(SUPERVISOR, ("cluster-supervisor", *config)))


def spawn(directory: ClusterDirectory, program: ClusterProcess) -> int:
    """Start a process of the cluster detached from the caller, its output appended to its log."""
    distribution = directory.distribution
    # The mark is inherited by whatever these processes start; `down` finds it by that.
    marks = {distribution.home_variable: str(directory.base), MARK: f"{directory.path}/"}
    with directory.log_of(program.name).open("ab") as log:
        process = subprocess.Popen(
            [*distribution.command, *program.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **marks},
            start_new_session=True,
        )
    # NB: followed by pid file descriptor, see processes.ended; without this, Popen warns when it is collected.
    process.returncode = 0
    return process.pid


async def _ended(*all_running: RunningProcess) -> None:
    """Ask processes to end, and kill them after a while."""
    for running in all_running:
        processes.signal_(running, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_S):
            for running in all_running:
                await processes.ended(running)
    for running in all_running:
        processes.signal_(running, signal.SIGKILL)


def _running(pid: int, restarts: int) -> RunningProcess:
    return RunningProcess(pid, processes.started(pid) or 0, time.time(), restarts)


def _adopt_orphans() -> None:
    """Processes whose parent dies (the containers of a killed kubelet) become ours, and `down` finds them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        _log.warning("cannot adopt orphans: %s", os.strerror(ctypes.get_errno()))
