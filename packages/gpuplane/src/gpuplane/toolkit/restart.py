"""Telling a runtime to read its configuration again, and looking whether it comes back.

containerd and docker get SIGHUP, sent to the process at the other end of their socket: no process name, no service
manager has to be guessed. docker reads its configuration again; containerd ends and is started by its service. cri-o,
k3s, rke2 and microk8s are restarted through systemd, as a configuration has to be made first or a signal does
nothing. k0s looks at its files itself and is waited for.

A runtime is back when something else than the old process answers its socket, or, where the old process stays, the
same; and where CRI (or docker's /_ping) was answered before, when it is answered again: containerd goes on without CRI
when it cannot use its table.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import struct
import time
from collections.abc import Awaitable, Callable

from gpuplane.host import Host
from gpuplane.toolkit import health
from gpuplane.toolkit.facts import ToolkitError
from gpuplane.toolkit.places import RuntimeName, RuntimePaths, Way

log = logging.getLogger("gpuplane.toolkit")

_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: struct ucred of socket(7)
_PATIENCE, _STEP = 30.0, 0.1  # seconds
_FIRST_STEP = 0.02  # a runtime may be back at once; each look doubles what we wait for the next, up to _STEP
_READING = 5.0  # seconds in which docker has read its configuration again
_ITS_OWN_TIME = 10.0  # seconds in which k0s (three, by its source) begins by itself
# How long the process that has to end may still answer: docker's stays.
_GRACE = 0.3
Sleep = Callable[[float], Awaitable[None]]


async def tell(
    host: Host, place: RuntimePaths, sleep: Sleep = asyncio.sleep, wanted: frozenset[str] = frozenset()
) -> bool:
    """Make the runtime read its configuration; False when it does not run, and will read it when it starts.

    Args:
        wanted: the runtimes that docker has to know afterwards. It goes on as it was with a configuration that it
            refuses, and would not start with it the next time.

    Raises:
        ToolkitError: RuntimeNotVisible, RestartFailed, RuntimeDown when it does not come back, or ConfigurationRefused.
    """
    pid = peer(host, place)
    if pid is None:
        log.info("runtime not running, reads its configuration at its start runtime=%s", place.name)
        return False
    served = await health.answers(host, place)
    log.info("reloading runtime=%s pid=%d", place.name, pid)
    if place.way is Way.SERVICE:
        await _restart(host, place)
    elif place.way is Way.SIGNAL or not await _changes(host, place, pid, sleep):
        _signal(host, place, pid)
    await _comes_back(host, place, pid, served, sleep)
    if wanted and place.runtime is RuntimeName.DOCKER:
        await _takes(host, place, wanted, sleep)
    return True


async def forgets(
    host: Host, place: RuntimePaths, gone: frozenset[str], default: str, sleep: Sleep = asyncio.sleep
) -> None:
    """Have docker read a file without the runtimes `gone`, and wait until it knows none of them and has this default.

    Raises:
        ToolkitError: as `tell`.
    """
    await tell(host, place, sleep)
    waited, step = 0.0, _FIRST_STEP
    while (known := await health.info(host, place)) is not None:
        if known.default_runtime == default and not gone & known.runtimes.keys():
            return
        if waited >= _READING:
            log.warning(
                "docker keeps the runtimes %s until `systemctl restart %s`", ", ".join(sorted(gone)), place.units[0]
            )
            return
        await sleep(step)
        waited += step
        step = min(2 * step, _STEP)


async def revive(host: Host, place: RuntimePaths, sleep: Sleep = asyncio.sleep) -> bool:
    """Bring a runtime back whose configuration is the old one again; whether it answers.

    systemd gives up a runtime that died over and over, so its service is started as well.
    """
    try:
        if peer(host, place) is not None:
            return await tell(host, place, sleep)
        for unit in place.units:
            await host.run("systemctl", "reset-failed", unit)
            await host.run("systemctl", "start", unit)
        await _comes_back(host, place, 0, False, sleep)
    except ToolkitError as error:
        log.error("runtime down with its old configuration runtime=%s: %s", place.name, error)
        return False
    return True


def peer(host: Host, place: RuntimePaths) -> int | None:
    """The process that serves the runtime's socket, 0 when it is in a namespace we do not see; None without one."""
    client = host.connect(place.socket)
    if client is None:
        return None
    with client:
        pid, _, _ = _CREDENTIALS.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid)


def by_hand(place: RuntimePaths, *, forget: bool = False) -> str:
    """The command with which a person does what `tell` does.

    Args:
        forget: ours has gone from the file, and a reload of docker's would keep it.
    """
    verb = "reload" if place.runtime is RuntimeName.DOCKER and not forget else "restart"
    return f"systemctl {verb} {place.units[0]}"


async def _comes_back(host: Host, place: RuntimePaths, pid: int, served: bool, sleep: Sleep) -> None:
    """Return when the runtime is back. Time counts as `sleep` passes it, and what the questions themselves take."""
    waited = 0.0
    step = _FIRST_STEP
    now = None
    while waited < _PATIENCE:
        await sleep(step)
        waited += step
        step = min(2 * step, _STEP)
        asked = time.monotonic()
        now = peer(host, place)
        grace = 0.0 if place.runtime is RuntimeName.DOCKER else _GRACE
        if now is not None and (now != pid or waited >= grace) and (not served or await health.answers(host, place)):
            return
        waited += time.monotonic() - asked
    mute = f" {health.question(place)}" if now is not None else ""
    raise ToolkitError(
        "RuntimeDown",
        f"{place.name} does not answer{mute} {_PATIENCE:.0f} s after a reload of its configuration",
        where=host.shown(place.socket),
        cure=f"see `journalctl -u {place.units[0]}` on the node",
    )


async def _takes(host: Host, place: RuntimePaths, wanted: frozenset[str], sleep: Sleep) -> None:
    waited, step = 0.0, _FIRST_STEP
    while (known := await health.info(host, place)) is not None and not wanted <= known.runtimes.keys():
        if waited >= _READING:
            raise ToolkitError(
                "ConfigurationRefused",
                f"docker refuses its configuration: it has no runtime {min(wanted - known.runtimes.keys())}",
                where=host.shown(place.config),
                cure=f"see `journalctl -u {place.units[0]}` on the node; a setting may also be on its command line",
            )
        await sleep(step)
        waited += step
        step = min(2 * step, _STEP)


async def _changes(host: Host, place: RuntimePaths, pid: int, sleep: Sleep) -> bool:
    waited = 0.0
    while waited < _ITS_OWN_TIME:
        await sleep(_STEP)
        waited += _STEP
        if peer(host, place) != pid:
            return True
    return False


def _signal(host: Host, place: RuntimePaths, pid: int) -> None:
    try:
        if pid <= 0:
            raise ProcessLookupError
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        raise ToolkitError(
            "RuntimeNotVisible",
            f"the process behind {place.name}'s socket cannot be signalled",
            where=host.shown(place.socket),
            cure=f"give this pod hostPID: true, or run `{by_hand(place)}` on the node",
        ) from error


async def _restart(host: Host, place: RuntimePaths) -> None:
    unit = place.units[0]
    if len(place.units) > 1:  # a server or an agent: the one that runs
        for name in place.units:
            if (await host.run("systemctl", "is-active", "--quiet", name)).code == 0:
                unit = name
                break
    done = await host.run("systemctl", "restart", unit)
    if done.code != 0:
        raise ToolkitError(
            "RestartFailed",
            done.last_words,
            where=f"{done.command}, in {host.root}",
            cure=f"see `journalctl -u {unit}` on the node",
        )
