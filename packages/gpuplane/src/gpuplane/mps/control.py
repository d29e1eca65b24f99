"""One MPS control daemon of the driver: started in the foreground, told its limits, asked how it is, ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from gpuplane import names
from gpuplane.host import Command, Completed, Runner
from gpuplane.host.runner import NOT_FOUND
from gpuplane.mps.shm import mount_pipe
from gpuplane.sharing.mps import Daemon, log_dir, pipe
from kubekit.errors import Retryable, Terminal

log = logging.getLogger("gpuplane.mps")

PROGRAM: Final = "nvidia-cuda-mps-control"
START_SECONDS: Final = 10.0
QUIT_SECONDS: Final = 5.0
_PAUSE: Final = 0.1
_SELINUX: Final = b"system_u:object_r:container_file_t:s0"  # what containers may open


class Control:
    """The daemon of one resource.

    Args:
        host_root: the host's file system as this process sees it.
        driver_root: where the driver's programs lie, seen likewise.
        root: the MPS root, a path of the host.
    """

    def __init__(
        self,
        daemon: Daemon,
        *,
        host_root: Path,
        driver_root: Path,
        root: str,
        runner: Runner,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._daemon = daemon
        self._host_root = host_root
        self._driver_root = driver_root
        self._runner = runner
        self._sleep = sleep
        self._pipe, self._log = pipe(root, daemon.resource), log_dir(root, daemon.resource)
        self._running: asyncio.Task[Completed] | None = None
        # NB: as NVML counts the GPUs; CUDA by itself puts the fastest first.
        order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        self._env = {names.MPS_PIPE_ENV: self._pipe, names.MPS_LOG_ENV: self._log, **order}

    async def start(self) -> None:
        """Returns once the daemon has all limits. Raises Retryable, or Terminal where the driver has no MPS."""
        places = [self._host_root / directory.lstrip("/") for directory in (self._pipe, self._log)]
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
        await self._tell("quit")  # one that was left behind by a process that was killed
        mount_pipe(places[0], Path(self._pipe))
        if (self._host_root / "sys/fs/selinux/enforce").exists():
            for place in places:
                os.setxattr(place, "security.selinux", _SELINUX)
        command = self._command("-f", timeout=math.inf)
        self._running = asyncio.create_task(self._runner.run(command), name=f"mps {self._daemon.resource}")
        for _ in range(int(START_SECONDS / _PAUSE)):
            if self._running.done():
                raise self._ended()
            if (await self._tell("get_default_active_thread_percentage")).code == 0:
                break
            await self._sleep(_PAUSE)
        else:
            raise self._silent()
        done = await self._tell(*self._daemon.commands)
        if done.code or "nvalid" in done.stdout:
            raise Retryable(f"it does not take its limits: {done.last_words}", where=PROGRAM)
        log.info(
            "MPS daemon started resource=%s gpus=%s",
            self._daemon.resource,
            ",".join(gpu.uuid for gpu in self._daemon.gpus),
        )

    async def ended(self) -> None:
        """Raises Retryable when the daemon has ended; never returns."""
        assert self._running is not None, "started"
        await asyncio.wait([self._running])
        raise self._ended()

    async def check(self) -> None:
        """Raises Retryable when it does not answer."""
        if (await self._tell("get_default_active_thread_percentage")).code:
            raise self._silent()

    async def stop(self) -> None:
        """Ends the daemon and with it what its clients do; killed where it does not end in time."""
        running, self._running = self._running, None
        if running is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * QUIT_SECONDS):
                await self._tell(f"quit -t {QUIT_SECONDS:.0f}")
                await asyncio.wait([running])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def _tell(self, *commands: str) -> Completed:
        words = "".join(f"{command}\n" for command in commands)
        return await self._runner.run(self._command(timeout=10.0, stdin=words))

    def _command(self, *options: str, timeout: float, stdin: str = "") -> Command:
        inside = str(self._driver_root.relative_to(self._host_root)).removeprefix(".")
        return Command((PROGRAM, *options), self._host_root, timeout, self._env, stdin, inside)

    def _ended(self) -> Retryable | Terminal:
        assert self._running is not None, "started"
        done = self._running.result()
        if done.code == NOT_FOUND:
            cure = "install the driver's compute utilities; they are in the folder of nvidia-smi"
            return Terminal(f"the driver has no {PROGRAM}", where=str(self._driver_root), cure=cure)
        return Retryable(f"{PROGRAM} ended: {done.last_words}", where=self._log, cure="it is started again")

    def _silent(self) -> Retryable:
        return Retryable(
            f"{PROGRAM} does not answer", where=self._pipe, cure="it is started again; see its control.log"
        )
