"""Reads the queues for a command that looks at the cluster once."""

from __future__ import annotations

from gpuplane.api.gpuqueue import GPUQueue
from kubekit.kube import Client, Forbidden, NotFound


async def read_queues(client: Client) -> list[GPUQueue]:
    """Return all queues; none where they cannot be read."""
    try:
        return await client.list(GPUQueue)
    except (NotFound, Forbidden):
        return []
