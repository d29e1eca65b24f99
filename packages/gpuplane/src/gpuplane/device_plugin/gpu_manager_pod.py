"""`gpuplane run gpu-manager`: runs in gpu-manager's own pod, where gpuplane's device plugin does its work.

It serves the paths of gpu-manager on its port, with the answers of the device plugin's pod on the same node. So the
Service, the annotations and the dashboards of gpu-manager's users keep working. It holds no GPU and needs no right on
the node.
"""

from __future__ import annotations

import asyncio
import logging
import os
from argparse import Namespace
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from gpuplane import names
from kubekit.api.core import Pod
from kubekit.errors import Retryable, UsageError
from kubekit.http_server import HttpAnswer, serving
from kubekit.kube import Client, Informer
from kubekit.kube.http import HttpPool

log = logging.getLogger("gpuplane.gpu-manager")
PORT: Final = 5678
PATHS: Final = ("/metric", "/metrics", "/usage", "/graph", "/version")
_DEVICE_PLUGIN: Final = "app.kubernetes.io/component=device-plugin"
_READ_SECONDS: Final = 10.0
Fetch = Callable[[str, int, str], Awaitable[HttpAnswer]]
"""(address, port, path) -> the answer to a GET."""


async def run(options: Namespace) -> None:
    """Serve until cancelled. Raises UsageError without a node."""
    node = options.node_name or os.environ.get("NODE_NAME", "")
    if not node:
        raise UsageError("which node?", where="gpuplane run gpu-manager", cure="--node-name, or NODE_NAME")
    port = PORT if options.port is None else options.port
    async with Client.connect(options.kubeconfig, options.context, user_agent="gpuplane-gpu-manager") as client:
        plugins: Informer[Pod] = Informer(
            client, Pod, names.OPERATOR_NAMESPACE, labels=_DEVICE_PLUGIN, fields=f"spec.nodeName={node}"
        )
        plugins.start()
        try:
            await plugins.synced()
            stand_in = GpuManagerPod(plugins.items, fetch)
            handlers = {path: stand_in.handler(path) for path in PATHS}
            async with serving(handlers, os.environ.get("POD_IP", ""), port) as at:
                log.info("serving port=%d node=%s", at, node)
                await asyncio.Event().wait()
        finally:
            await plugins.stop()


class GpuManagerPod:
    """Answers for the device plugin of its node.

    Args:
        pods: returns the pods of the device plugin on this node.
        fetch: asks the device plugin.
    """

    def __init__(self, pods: Callable[[], list[Pod]], fetch: Fetch) -> None:
        self._pods = pods
        self._fetch = fetch

    def handler(self, path: str) -> Callable[[], Awaitable[HttpAnswer]]:
        async def answer() -> HttpAnswer:
            address = next((pod.status.pod_ip for pod in self._pods() if pod.status.pod_ip), "")
            if not address:
                text = "no device plugin runs on this node: gpuplane status reports what the node waits for\n"
                return HttpAnswer(text.encode(), HTTPStatus.SERVICE_UNAVAILABLE)
            return await self._fetch(address, PORT, path)

        return answer


async def fetch(address: str, port: int, path: str) -> HttpAnswer:
    """Return the answer to a GET; 503 with the reason when there is none."""
    pool = HttpPool(address, port)
    head = f"GET {path} HTTP/1.1\r\nHost: {address}:{port}\r\nConnection: close\r\n\r\n".encode()
    try:
        response = await pool.request(head, timeout=_READ_SECONDS, replay=True)
    except Retryable as error:
        text = f"the device plugin offers no shares on this node, or does not answer: {error}\n"
        return HttpAnswer(text.encode(), HTTPStatus.SERVICE_UNAVAILABLE)
    finally:
        await pool.aclose()
    content_type = response.header(b"content-type") or "text/plain"
    return HttpAnswer(response.body, HTTPStatus(response.status), content_type)
