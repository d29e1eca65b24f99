"""Nodes that join, leave and restart in a running cluster, as the instances of a cloud do.

A node that is listed in `cluster.json` has a kubelet: the supervisor sees to that. So to join is to be listed, and to
leave is to be listed no more. Both may be repeated, after a crash too.

NB: only one process may change the nodes of a running cluster.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Final

import msgspec

from tinykube.cluster import processes
from tinykube.cluster.directory import ClusterDirectory
from tinykube.cluster.spec import MachineSpec
from tinykube.cluster.supervisor import STOP_S, SUPERVISOR, kubelet_process
from tinykube.kubelet.containers import remove_tree

_POLL_S: Final = 0.02
_RESTART: Final = "restart"  # a file in a node's directory: its machine is to restart


def add_node(directory: ClusterDirectory, node: MachineSpec) -> None:
    """List a node, or list it with other settings; its kubelet starts meanwhile. Raises Terminal for no cluster."""
    spec = directory.spec()
    others = tuple(known for known in spec.nodes if known.name != node.name)
    directory.write_spec(msgspec.structs.replace(spec, nodes=(*others, node)))
    _wake(directory)


async def remove_node(directory: ClusterDirectory, name: str) -> None:
    """Return when a node's kubelet and containers have ended and its directory is removed. Its log stays.

    The Node object stays. Raises Terminal for no cluster, OSError when the directory cannot be removed.
    """
    spec = directory.spec()
    others = tuple(known for known in spec.nodes if known.name != name)
    if others != spec.nodes:
        directory.write_spec(msgspec.structs.replace(spec, nodes=others))
    _wake(directory)
    while directory.running(kubelet_process(name)) is not None:  # noqa: ASYNC110 - another process writes that file
        await asyncio.sleep(_POLL_S)  # the supervisor ends it, and notes that
    place = directory.nodes / name
    until = time.monotonic() + STOP_S
    # A kubelet that was killed leaves containers, also such that it had not recorded yet.
    while (left := await asyncio.to_thread(processes.family_of_directory, place)) and time.monotonic() < until:
        processes.kill(left)
        await asyncio.sleep(_POLL_S)
    if place.exists():
        await asyncio.to_thread(remove_tree, place)
    directory.kubeconfig_of(kubelet_process(name)).unlink(missing_ok=True)
    directory.token_of(kubelet_process(name)).unlink(missing_ok=True)


def ask_restart(directory: ClusterDirectory, name: str) -> None:
    """Let the machine of a node restart: its containers end, and its kubelet starts again.

    The wish is on disk before the kubelet gets its signal, and the next kubelet fulfils it. A crash in between loses
    nothing, since the caller asks again. Raises OSError when the directory cannot be written.
    """
    place = directory.nodes / name
    if not place.is_dir():
        return  # the machine was never on
    (place / _RESTART).touch()
    kubelet = directory.running(kubelet_process(name))
    if kubelet is not None:
        processes.signal_(kubelet, signal.SIGTERM)  # it ends its containers; the supervisor starts it again


def restart_due(place: Path) -> bool:
    """Return whether the machine in a node's directory has to restart before its kubelet may start."""
    return (place / _RESTART).exists()


def end_processes(place: Path) -> None:
    """Kill what a killed kubelet left of a node."""
    processes.kill(processes.family_of_directory(place))


def note_restarted(place: Path) -> None:
    (place / _RESTART).unlink(missing_ok=True)


def _wake(directory: ClusterDirectory) -> None:
    """Let the supervisor read the specification. Where there is none, the next one reads it at its start."""
    running = directory.running(SUPERVISOR)
    if running is not None:
        processes.signal_(running, signal.SIGHUP)
