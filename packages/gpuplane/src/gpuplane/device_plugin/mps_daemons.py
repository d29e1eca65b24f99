"""Checks that the MPS control daemons of a configuration run: replicas are offered only then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from gpuplane.api.pluginconfig import PluginConfig
from gpuplane.hardware import GPUFacts
from gpuplane.host import Host
from gpuplane.sharing.dialects import Dialect
from gpuplane.sharing.findings import NO_SHARES
from gpuplane.sharing.mps import FAILED, READY, daemons, ready_text
from kubekit.errors import InvalidInput, Retryable
from kubekit.kube.tasks import first_of

PATIENCE_SECONDS: Final = 60.0
_CURE: Final = "kubectl -n gpu-operator logs ds/nvidia-device-plugin-mps-control-daemon"


class MpsDaemons:
    """The daemons of one configuration; none where GPUs are not shared by MPS."""

    def __init__(self, host_root: Path, inventory: Sequence[GPUFacts], config: PluginConfig) -> None:
        """Raises InvalidInput for GPUs that MPS cannot share so."""
        self._host = Host(host_root)
        self._root = config.mps_root
        self._wanted = daemons(inventory, config)

    def refuse(self, dialects: Collection[Dialect]) -> None:
        """Raises InvalidInput where programs that are no clients of MPS would get the same GPUs."""
        if self._wanted and set(dialects) != {Dialect.NVIDIA}:
            what = f"sharing.mps: {NO_SHARES}, and this node offers shares"
            cure = "take the label nvidia-device-enable off the node, or sharing.mps out of its configuration"
            raise InvalidInput(what, cure=cure, findings=(what,))

    def ready(self) -> bool:
        """Return whether all of them run, with the limits of this configuration."""
        found = self._host.read_text(f"{self._root}/{READY}")
        return not self._wanted or found == ready_text(self._wanted)

    async def come(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Returns once they are ready. Raises Retryable when they are not, with what they say."""
        await first_of(self._until(True), sleep(PATIENCE_SECONDS))
        if not self.ready():
            why = self._host.read_text(f"{self._root}/{FAILED}") or "no MPS control daemon is ready"
            raise Retryable(why, where=f"{self._root}/{READY}", cure=_CURE)

    async def gone(self) -> None:
        """Returns when they are not ready any more; never without any."""
        await self._until(False)

    async def _until(self, ready: bool) -> None:
        """Until they are ready or not; what has failed is not waited for."""
        if self._wanted:
            async for _ in self._host.watch(f"{self._root}/{READY}", f"{self._root}/{FAILED}"):
                failed = ready and self._host.exists(f"{self._root}/{FAILED}")
                if self.ready() is ready or failed:
                    return
        await asyncio.Event().wait()
