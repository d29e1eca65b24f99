"""Writes the health of a node's GPUs into GPUNode: the newest state only, for as long as it takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from gpuplane.api.gpunode import GPUNode
from gpuplane.operand import OperandContext, write_health
from kubekit.errors import KubekitError

log = logging.getLogger("gpuplane.device-plugin")

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0


class HealthReport:
    """`written` is what stands in GPUNode at the start; UUID -> why it is not usable."""

    def __init__(self, context: OperandContext, written: Mapping[str, str]) -> None:
        self._context = context
        self._written = dict(written)
        self._wanted = dict(written)
        self._changed = asyncio.Event()

    def set(self, health: Mapping[str, str]) -> None:
        self._wanted = dict(health)
        if self._wanted != self._written:
            self._changed.set()

    async def run(self) -> None:
        pause, said = FIRST_PAUSE_SECONDS, ""
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self._wanted
            try:
                await self._write(wanted)
                self._written = wanted
                pause, said = FIRST_PAUSE_SECONDS, ""
            except KubekitError as error:
                if said != str(error):
                    said = str(error)
                    log.warning("health not written yet: %s", error)
                self._changed.set()
                await self._context.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _write(self, health: dict[str, str]) -> None:
        node = await self._context.client.get(GPUNode, self._context.node_name)
        if node.status.health == health:
            return
        await write_health(self._context, node, health)
        log.info("health written unusable=%s", ",".join(sorted(health)) or "none")
