"""`gpuplane run gpu-manager`: runs in gpu-manager's own pod, where gpuplane's device plugin does its work.

It serves the paths of gpu-manager on its port, with the answers of the device plugin's pod on the same node. So the
Service, the annotations and the dashboards of gpu-manager's users keep working. It holds no GPU and needs no right on
the node.
"""

from __future__ import annotations

import asyncio
import logging
import os
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from gpuplane import names
from kubekit.api.core import Pod
from kubekit.errors import UsageError
from kubekit.http_server import HttpAnswer, serving
from kubekit.kube import Client, Informer

log = logging.getLogger("gpuplane.gpu-manager")
PORT: Final = 5678
PATHS: Final = ("/metric", "/metrics", "/usage", "/graph", "/version")
_DEVICE_PLUGIN: Final = "app.kubernetes.io/component=device-plugin"
_READ_SECONDS: Final = 10.0
Fetch = Callable[[str], Awaitable[HttpAnswer]]


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
        fetch: returns the answer to a GET of a URL.
    """

    def __init__(self, pods: Callable[[], list[Pod]], fetch: Fetch) -> None:
        self._pods = pods
        self._fetch = fetch

    def handler(self, path: str) -> Callable[[], Awaitable[HttpAnswer]]:
        async def answer() -> HttpAnswer:
            address = next((pod.status.pod_ip for pod in self._pods() if pod.status.pod_ip), "")
            if not address:
                text = "no device plugin runs on this node: gpuplane status says what the node waits for\n"
                return HttpAnswer(text.encode(), HTTPStatus.SERVICE_UNAVAILABLE)
            return await self._fetch(f"http://{address}:{PORT}{path}")

        return answer


async def fetch(url: str) -> HttpAnswer:
    """Return the answer to a GET; 503 with the reason when the device plugin does not answer."""
    return await asyncio.to_thread(_fetch, url)


def _fetch(url: str) -> HttpAnswer:
    try:
        with urllib.request.urlopen(url, timeout=_READ_SECONDS) as reply:
            return HttpAnswer(reply.read(), content_type=reply.headers.get("Content-Type", "text/plain"))
    except urllib.error.HTTPError as error:
        return HttpAnswer(error.read(), HTTPStatus(error.code))
    except OSError as error:
        why = getattr(error, "reason", error)
        text = f"the device plugin offers no shares on this node, or does not answer: {why}\n"
        return HttpAnswer(text.encode(), HTTPStatus.SERVICE_UNAVAILABLE)
