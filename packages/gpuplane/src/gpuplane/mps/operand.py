"""The MPS control daemons of one node: there while its configuration shares GPUs by MPS, told what each client may use.

Invariants:

- `.ready` names what runs: it is written after the last limit is set, and deleted before the first daemon is ended.
- A daemon that ends is started again, all of them together: clients of a daemon end with it in any case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from gpuplane.api.pluginconfig import load
from gpuplane.mps.node import NodeDaemons
from gpuplane.operand import OperandContext
from gpuplane.operand.configs import NodeConfig, NodeConfiguration, own_labels
from gpuplane.sharing.mps import FAILED, READY, Daemon, daemons, ready_text
from kubekit.errors import InvalidInput, KubekitError
from kubekit.kube.tasks import first_of

log = logging.getLogger("gpuplane.mps")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


class Daemons(Protocol):
    """The daemons of one node; see `NodeDaemons`."""

    async def start(self, wanted: Sequence[Daemon]) -> None: ...

    async def fail(self) -> None: ...

    async def stop(self) -> None: ...


MakeDaemons = Callable[[OperandContext, str], Daemons]


async def run(context: OperandContext, make_daemons: MakeDaemons = NodeDaemons) -> None:
    """Runs until cancelled; then the daemons end, and the GPUs are as they were."""
    async with own_labels(context) as labels:
        configs, pause = NodeConfig(context, context.variables, labels), FIRST_PAUSE
        while True:
            chosen = configs.attempt()
            try:
                if isinstance(chosen, InvalidInput):
                    raise chosen
                await _Session(context, chosen, make_daemons).run(configs)
                pause = FIRST_PAUSE
            except InvalidInput as error:
                log.error("%s", error)
                await configs.changed(chosen)
            except KubekitError as error:
                log.error("%s", error)
                await context.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)


class _Session:
    """From one configuration to the next."""

    def __init__(self, context: OperandContext, chosen: NodeConfiguration, make_daemons: MakeDaemons) -> None:
        self._context = context
        self._make_daemons = make_daemons
        self._chosen = chosen
        self._config = load(chosen.text or b"", context.variables, where=chosen.where)
        self._root = self._config.mps_root
        self._host = context.host

    async def run(self, configs: NodeConfig) -> None:
        """Returns when there is another configuration. Raises KubekitError, after all is as it was before."""
        context = self._context
        source = await asyncio.to_thread(context.open_gpus)
        try:
            inventory = await asyncio.to_thread(source.inventory)
            self._host.remove(f"{self._root}/{READY}")
            await self._serve(daemons(inventory, self._config), configs)
        except KubekitError as error:
            self._host.write_atomic(f"{self._root}/{FAILED}", error.what.encode(), durable=False)
            raise
        finally:
            source.close()

    async def _serve(self, wanted: Sequence[Daemon], configs: NodeConfig) -> None:
        daemons = self._make_daemons(self._context, self._root)
        try:
            await daemons.start(wanted)
            self._host.remove(f"{self._root}/{FAILED}")
            if wanted:
                self._host.write_atomic(f"{self._root}/{READY}", ready_text(wanted).encode(), durable=False)
            else:
                log.info("no GPUs shared by MPS")
            await first_of(configs.changed(self._chosen), daemons.fail())
        finally:
            await _to_the_end(self._undo(daemons))

    async def _undo(self, daemons: Daemons) -> None:
        self._host.remove(f"{self._root}/{READY}")
        await daemons.stop()


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
