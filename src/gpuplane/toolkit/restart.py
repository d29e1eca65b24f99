"""Telling a runtime to read its configuration again, and looking whether it comes back.

containerd and docker get SIGHUP, sent to the process at the other end of their socket: no process name, no service
manager has to be guessed. docker reads its configuration again; containerd ends and is started by its service. cri-o is
restarted through systemd.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import struct
from collections.abc import Awaitable, Callable

from gpuplane.host import Host
from gpuplane.toolkit import crio
from gpuplane.toolkit.facts import RuntimeName, ToolkitError
from gpuplane.toolkit.planning import SOCKETS

log = logging.getLogger("gpuplane.toolkit")

_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: struct ucred of socket(7)
_PATIENCE, _STEP = 30.0, 0.1  # seconds
# How long an answer may still come from the process that was told to end: only containerd ends at SIGHUP.
_GRACE = {RuntimeName.CONTAINERD: 0.3}
Sleep = Callable[[float], Awaitable[None]]


async def tell(host: Host, runtime: RuntimeName, sleep: Sleep = asyncio.sleep) -> bool:
    """Make the runtime read its configuration; False when it does not run, and will read it when it starts.

    Raises:
        ToolkitError: RuntimeNotVisible, RestartFailed, or RuntimeDown when it does not come back.
    """
    pid = peer(host, runtime)
    if pid is None:
        log.info("%s is not running; it reads its configuration when it starts", runtime.value)
        return False
    log.info("telling %s (process %d) to read its configuration", runtime.value, pid)
    if runtime is RuntimeName.CRIO:
        await _restart(host)
    else:
        _signal(host, runtime, pid)
    waited = 0.0
    while waited < _PATIENCE:
        await sleep(_STEP)
        waited += _STEP
        now = peer(host, runtime)
        if now is not None and (now != pid or waited >= _GRACE.get(runtime, 0.0)):
            return True
    raise ToolkitError(
        "RuntimeDown",
        f"{runtime.value} does not answer {_PATIENCE:.0f} s after it was told to read its configuration",
        where=host.shown(SOCKETS[runtime]),
        cure=f"see `journalctl -u {_unit(runtime)}` on the node",
    )


def peer(host: Host, runtime: RuntimeName) -> int | None:
    """The process that serves the runtime's socket, 0 when it is in a namespace we do not see; None without one."""
    client = host.connect(SOCKETS[runtime])
    if client is None:
        return None
    with client:
        pid, _, _ = _CREDENTIALS.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid)


def _signal(host: Host, runtime: RuntimeName, pid: int) -> None:
    try:
        if pid <= 0:
            raise ProcessLookupError
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        raise ToolkitError(
            "RuntimeNotVisible",
            f"the process behind {runtime.value}'s socket cannot be signalled",
            where=host.shown(SOCKETS[runtime]),
            cure=f"give this pod hostPID: true, or run `systemctl restart {_unit(runtime)}` on the node",
        ) from error


async def _restart(host: Host) -> None:
    done = await host.run("systemctl", "restart", crio.UNIT)
    if done.code != 0:
        raise ToolkitError(
            "RestartFailed",
            done.last_words,
            where=f"{done.command}, in {host.root}",
            cure=f"see `journalctl -u {crio.UNIT}` on the node",
        )


def _unit(runtime: RuntimeName) -> str:
    return crio.UNIT if runtime is RuntimeName.CRIO else runtime.value
