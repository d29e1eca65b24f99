"""The replacements for ports, processes and pods that operands of light nodes are passed.

A light node has no network, starts no program, and none of its containers computes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuplane.api.requests import GpuOffer
    from gpuplane.hardware import GPUFacts, GPUSource
    from gpuplane.operand import OperandContext
    from gpuplane.sharing.mps import Daemon
    from kubekit.http_server import Handler


@contextlib.asynccontextmanager
async def serve_nobody(paths: Mapping[str, Handler], address: str, port: int) -> AsyncIterator[int]:
    """As `operand.http.serving`, but the port never opens."""
    await asyncio.Event().wait()
    yield port


async def prove_plugin(context: OperandContext, offer: GpuOffer) -> None:
    """As `validator.run_pod`, without a pod: the kubelet, which is an object in this process, offers the GPUs."""


@contextlib.asynccontextmanager
async def hold_no_shares(
    context: OperandContext, inventory: Sequence[GPUFacts], source: GPUSource
) -> AsyncIterator[None]:
    """As `device_plugin.hold_shares`, for containers without processes."""
    yield None


class NoDaemons:
    """As `mps.NodeDaemons`, without daemons."""

    def __init__(self, context: OperandContext, root: str) -> None:
        pass

    async def start(self, wanted: Sequence[Daemon]) -> None:
        pass

    async def fail(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        pass
