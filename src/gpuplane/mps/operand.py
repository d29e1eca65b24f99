"""The MPS control daemons of one node: there while its configuration shares GPUs by MPS, told what each client may use.

Invariants:

- `.ready` names what runs: it is there after the last limit was told, and goes before the first daemon is ended.
- A GPU's compute mode goes back to what it was before the first daemon, also when this process was killed meanwhile.
- A daemon that ends is started again, all of them together: clients of a daemon end with it in any case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.pluginconfig import load
from gpuplane.errors import GpuplaneError, InvalidInput
from gpuplane.hardware import find_library
from gpuplane.host import Host, SystemRunner
from gpuplane.kube.tasks import first_of
from gpuplane.mps.control import Control
from gpuplane.mps.shm import mount_shm, unmount_shm
from gpuplane.operand import OperandContext
from gpuplane.operand.configs import Chosen, NodeConfig, own_labels
from gpuplane.sharing.mps import FAILED, MODES, READY, SHM, Daemon, daemons, ready_text

log = logging.getLogger("gpuplane.mps")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
CHECK_SECONDS: Final = 30.0
PROOF_SECONDS: Final = 120.0


async def run(context: OperandContext) -> None:
    """Runs until cancelled; then the daemons end, and the GPUs are as they were."""
    async with own_labels(context) as labels:
        configs, pause = NodeConfig(context, context.variables, labels), FIRST_PAUSE
        while True:
            chosen = configs.attempt()
            try:
                if isinstance(chosen, InvalidInput):
                    raise chosen
                await _Session(context, chosen).run(configs)
                pause = FIRST_PAUSE
            except InvalidInput as error:
                log.error("%s", error)
                await configs.changed(chosen)
            except GpuplaneError as error:
                log.error("%s", error)
                await context.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)


class _Session:
    """From one configuration to the next."""

    def __init__(self, context: OperandContext, chosen: Chosen) -> None:
        self._context = context
        self._chosen = chosen
        self._config = load(chosen.text or b"", context.variables, where=chosen.where)
        self._root = self._config.mps_root
        self._host = Host(context.host_root, context.runner)

    async def run(self, configs: NodeConfig) -> None:
        """Returns when there is another configuration. Raises GpuplaneError, after all is as it was before."""
        context = self._context
        source = await asyncio.to_thread(context.open_gpus)
        try:
            inventory = await asyncio.to_thread(source.inventory)
            self._host.remove(f"{self._root}/{READY}")
            await self._serve(daemons(inventory, self._config), configs)
        except GpuplaneError as error:
            self._host.write_atomic(f"{self._root}/{FAILED}", error.what.encode(), durable=False)
            raise
        finally:
            source.close()

    async def _serve(self, wanted: Sequence[Daemon], configs: NodeConfig) -> None:
        controls = [self._control(daemon) for daemon in wanted]
        if self._context.in_process:
            controls = []  # a light node has no programs
        shm = self._context.host_root / self._root.lstrip("/") / SHM
        try:
            if controls:
                await self._proved()
                mount_shm(shm, self._context.host_root, self._driver_root)
                self._exclude(wanted)
            for control in controls:
                await control.start()
            self._host.remove(f"{self._root}/{FAILED}")
            if wanted:
                self._host.write_atomic(f"{self._root}/{READY}", ready_text(wanted).encode(), durable=False)
            else:
                log.info("no GPUs are shared by MPS here")
            checks: list[Coroutine[Any, Any, None]] = [self._check(control) for control in controls]
            await first_of(configs.changed(self._chosen), *(control.ended() for control in controls), *checks)
        finally:
            await _to_the_end(self._undo(controls, shm))

    async def _proved(self) -> None:
        """After a boot CUDA is proved again, by a program that is no client of MPS: the GPU has to be free for it."""
        if await first_of(self._host.wait_for(names.CUDA_READY), self._context.sleep(PROOF_SECONDS)) == 1:
            log.warning("no validator has proved CUDA on this node; going on")

    async def _undo(self, controls: Sequence[Control], shm: Path) -> None:
        self._host.remove(f"{self._root}/{READY}")
        await asyncio.gather(*(control.stop() for control in controls))
        if not self._context.in_process:
            self._restore()
            unmount_shm(shm)

    @property
    def _driver_root(self) -> Path:
        # An installed driver has a root of its own on the host; one of the host's own is in front.
        roots = (self._context.host_root, self._context.host_root / names.DRIVER_ROOT)
        return next((place for place in roots if find_library(place) is not None), self._context.host_root)

    def _control(self, daemon: Daemon) -> Control:
        return Control(
            daemon,
            host_root=self._context.host_root,
            driver_root=self._driver_root,
            root=self._root,
            runner=self._context.runner or SystemRunner(),
            sleep=self._context.sleep,
        )

    async def _check(self, control: Control) -> None:
        while True:
            await self._context.sleep(CHECK_SECONDS)
            await control.check()

    def _exclude(self, wanted: Sequence[Daemon]) -> None:
        """Leave the GPUs to the daemons; what they were like is written down first."""
        from gpuplane.hardware.compute_mode import EXCLUSIVE_PROCESS, compute_mode, set_compute_mode

        uuids = sorted({gpu.uuid for daemon in wanted for gpu in daemon.gpus})
        before = {**{uuid: compute_mode(uuid) for uuid in uuids}, **self._modes()}
        self._host.write_atomic(f"{self._root}/{MODES}", msgspec.json.encode(before), durable=False)
        for uuid in uuids:
            if not set_compute_mode(uuid, EXCLUSIVE_PROCESS):
                log.warning("%s: the compute mode cannot be set; programs without MPS can use the GPU", uuid)

    def _restore(self) -> None:
        from gpuplane.hardware.compute_mode import set_compute_mode

        for uuid, mode in self._modes().items():
            try:
                if mode is not None:
                    set_compute_mode(uuid, mode)
            except GpuplaneError as error:
                log.warning("%s: the compute mode is not restored: %s", uuid, error)
        self._host.remove(f"{self._root}/{MODES}")

    def _modes(self) -> dict[str, int | None]:
        data = self._host.read(f"{self._root}/{MODES}")
        try:
            return msgspec.json.decode(data or b"{}", type=dict[str, int | None])
        except msgspec.DecodeError:
            return {}


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Finish `work` also when this is cancelled meanwhile."""
    task, cancelled = asyncio.create_task(work), False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError
