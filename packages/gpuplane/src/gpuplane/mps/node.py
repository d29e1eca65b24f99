"""The MPS control daemons of one node as processes, with the GPUs and the shared memory that they need.

Invariant: a GPU's compute mode goes back to what it was before the first daemon, also when this process was killed
meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.hardware import find_library
from gpuplane.mps.control import Control
from gpuplane.mps.shm import mount_root, mount_shm, unmount, unmount_root
from gpuplane.operand import OperandContext
from gpuplane.sharing.mps import MODES, SHM, Daemon, pipe
from kubekit.errors import KubekitError
from kubekit.kube.tasks import first_of

log = logging.getLogger("gpuplane.mps")

CHECK_SECONDS: Final = 30.0
PROOF_SECONDS: Final = 120.0


class NodeDaemons:
    """The daemons from start to stop. `root` is the MPS root, a path of the host."""

    def __init__(self, context: OperandContext, root: str) -> None:
        self._context = context
        self._root = root
        self._host = context.host
        self._shm = context.host_root / root.lstrip("/") / SHM
        self._pipes: list[Path] = []
        self._in_driver_root: Path | None = None  # where the MPS root is mounted for the driver's programs
        self._controls: list[Control] = []

    async def start(self, wanted: Sequence[Daemon]) -> None:
        """Start a daemon for each resource, and tell it its limits. Raises KubekitError."""
        self._controls = [self._control(daemon) for daemon in wanted]
        if wanted:
            await self._proved()
            in_driver_root = self._driver_root / self._root.lstrip("/")
            if mount_root(self._shm.parent, in_driver_root):
                self._in_driver_root = in_driver_root
            mount_shm(self._shm, self._context.host_root, self._driver_root)
            self._pipes = [self._context.host_root / pipe(self._root, one.resource).lstrip("/") for one in wanted]
            self._exclude(wanted)
        for control in self._controls:
            await control.start()

    async def fail(self) -> None:
        """Raise Retryable when a daemon ends or does not answer; does not return."""
        if not self._controls:
            await asyncio.Event().wait()
        endings = (control.ended() for control in self._controls)
        await first_of(*endings, *(self._check(control) for control in self._controls))

    async def stop(self) -> None:
        """End the daemons, and give GPUs and memory back."""
        await asyncio.gather(*(control.stop() for control in self._controls))
        self._restore()
        for directory in (self._shm, *self._pipes):
            unmount(directory)
        if self._in_driver_root is not None:
            unmount_root(self._in_driver_root)
            self._in_driver_root = None

    async def _proved(self) -> None:
        """After a boot CUDA is proved again, by a program that is no client of MPS: the GPU has to be free for it."""
        if await first_of(self._host.wait_for(names.CUDA_READY), self._context.sleep(PROOF_SECONDS)) == 1:
            log.warning("CUDA not proved on this node; going on")

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
            runner=self._host.runner,
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
                log.warning("compute mode not set, programs without MPS can use the GPU gpu=%s", uuid)

    def _restore(self) -> None:
        from gpuplane.hardware.compute_mode import set_compute_mode

        for uuid, mode in self._modes().items():
            try:
                if mode is not None:
                    set_compute_mode(uuid, mode)
            except KubekitError as error:
                log.warning("compute mode not restored gpu=%s: %s", uuid, error)
        self._host.remove(f"{self._root}/{MODES}")

    def _modes(self) -> dict[str, int | None]:
        data = self._host.read(f"{self._root}/{MODES}")
        try:
            return msgspec.json.decode(data or b"{}", type=dict[str, int | None])
        except msgspec.DecodeError:
            return {}
