"""Plugins of a test's own, next to the device plugin's, in a real containerd."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from gpulab.kubernetes.node import KubernetesNode
from gpuplane import names
from gpuplane.host import Host
from gpuplane.operand.nri.plugin import serve
from kubekit.protocol import nri_pb2 as pb

BEFORE, AFTER = "10", "90"
"""Indices of plugins that are asked before and after the device plugin."""


class _Told:
    def __init__(self, told: Callable[[str], object]) -> None:
        self.told = told

    async def create(self, pod: pb.PodSandbox, container: pb.Container) -> None:
        self.told(pod.name)

    def known(self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]) -> None:
        """Ignore pods and containers that run already."""


@contextlib.asynccontextmanager
async def plugged(node: KubernetesNode, index: str, told: Callable[[str], object]) -> AsyncIterator[None]:
    """While in the context `told` hears the name of each pod of which a container is created."""
    client = Host(Path(f"/proc/{node.pid('containerd')}/root")).connect(names.NRI_SOCKET)
    assert client is not None
    ready = asyncio.Event()
    task = asyncio.create_task(serve(client, _Told(told), lambda _: ready.set(), name=f"told{index}", index=index))
    await ready.wait()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
