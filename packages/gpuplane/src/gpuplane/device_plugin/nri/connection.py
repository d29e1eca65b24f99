"""The connection to the runtime's NRI: whether there is one, kept up, and what waits for it.

Invariant: with NRI no container with GPUs starts while the plugin is not connected; one that starts all the same has no
GPU (see `deferred`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from gpuplane import names
from gpuplane.host import Host
from gpuplane.operand.nri.plugin import NriPlugin, serve
from gpuplane.operand.nri.runtimes import NriRuntime, Unfit
from kubekit.errors import KubekitError, Retryable
from kubekit.kube.tasks import first_of

log = logging.getLogger("gpuplane.device-plugin")

READY_SECONDS: Final = 10.0
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0
GONE_AFTER_SECONDS: Final = 60.0
"""A runtime that is back for so long without NRI has none any more; no restart takes that long."""
START_WAITS_SECONDS: Final = 5.0
"""How long the start of a container waits for the connection; the kubelet gives 30 seconds and tries again later."""


class NriConnection:
    """The connection of one node.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        host: Host,
        plugin: NriPlugin,
        sleep: Callable[[float], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._plugin = plugin
        self._sleep = sleep
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._said = ""
        self._unfit = False  # what was found last; another runtime may have come since

    async def open(self) -> bool:
        """Connect; whether the runtime asks us from now on. False where it has no NRI, or none that is of use."""
        await self.aclose()
        client = await asyncio.to_thread(self._host.connect, names.NRI_SOCKET)
        if client is None:
            self._say("no runtime listens")
            return False
        self._unfit = False
        self._task = asyncio.create_task(serve(client, self._plugin, self._ready))
        self._task.add_done_callback(lambda _: self._up.clear())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                # NB: why the connection ended is asked below, and is no error here.
                await first_of(self._up.wait(), asyncio.wait([self._task]))
        if self._up.is_set():
            return True
        self._say(await self._ended() if self._task.done() else f"the runtime sends nothing for {READY_SECONDS:g} s")
        return False

    def _ready(self, runtime: NriRuntime) -> None:
        self._up.set()
        self._said = ""
        log.info("NRI connected runtime=%s version=%s", runtime.name, runtime.version)

    def _say(self, why: str) -> None:
        if why != self._said:
            log.info("NRI not available: %s", why)
            self._said = why

    async def _ended(self) -> str:
        """Why the connection ended, that has ended."""
        assert self._task is not None, "there was a connection"
        try:
            await self._task
        except (KubekitError, OSError) as error:
            self._unfit = isinstance(error, Unfit)
            return str(error)
        return "the runtime closed the connection"

    async def keep(self) -> None:
        """Stay connected; returns when the runtime has had no NRI for some time."""
        while self._task is not None:
            await asyncio.wait([self._task])
            log.warning("NRI connection lost: %s", await self._ended())
            since, pause = self._clock(), FIRST_PAUSE_SECONDS
            while not await self.open():
                if self._clock() - since > GONE_AFTER_SECONDS:
                    log.warning("NRI no longer offered by the runtime")
                    return
                await self._sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def comes(self) -> None:
        """Returns when a runtime that had no NRI has one."""
        async for _ in self._host.watch(names.NRI_SOCKET):
            # NB: the file exists a moment before the runtime listens, and remains after the runtime has ended.
            pause = FIRST_PAUSE_SECONDS
            while self._host.exists(names.NRI_SOCKET):
                if await self.open():
                    return
                if self._unfit:
                    break
                await self._sleep(pause)
                pause = min(2 * pause, GONE_AFTER_SECONDS)

    async def asked(self) -> None:
        """Returns when the runtime asks us, as it should. Raises Retryable when it does not for some time."""
        try:
            async with asyncio.timeout(START_WAITS_SECONDS):
                await self._up.wait()
        except TimeoutError:
            raise Retryable("the container runtime is not connected to the device plugin by NRI", where="NRI") from None

    async def aclose(self) -> None:
        self._up.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
