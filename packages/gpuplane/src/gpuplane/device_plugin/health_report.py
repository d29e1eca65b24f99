"""Writes the health of a node's GPUs into GPUNode: the newest state only, for as long as it takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPUNode, summarize
from gpuplane.operand import OperandContext
from kubekit.api.meta import to_dict
from kubekit.errors import KubekitError

log = logging.getLogger("gpuplane.device-plugin")

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
MANAGER: Final = names.FIELD_MANAGER_PREFIX + "health"


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
        client, name = self._context.client, self._context.node_name
        node = await client.get(GPUNode, name)
        if node.status.health == health:
            return
        status = msgspec.structs.replace(node.status, health=health)
        gone = dict.fromkeys(set(node.status.health) - set(health))
        # A merge patch, not an apply: a removed entry must go, also if another writer owns it. With its version,
        # because the summary has to be made from what others wrote meanwhile.
        patch = {
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "status": {"health": {**health, **gone}, "summary": to_dict(summarize(status))},
        }
        await client.patch(GPUNode, name, patch, manager=MANAGER)
        log.info("health written unusable=%s", ",".join(sorted(health)) or "none")
