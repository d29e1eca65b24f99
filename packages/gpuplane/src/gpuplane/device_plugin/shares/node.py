"""A node that offers shares: its two resources, the agent that watches the limits, and what it serves over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

import gpuplane
from gpuplane.device_plugin.container_lookup import AdmittedContainer
from gpuplane.device_plugin.node_pods import NodePods, node_pods
from gpuplane.device_plugin.shares import gpu_manager
from gpuplane.device_plugin.shares.held_report import HeldReport
from gpuplane.device_plugin.shares.limits import ShareLimits
from gpuplane.device_plugin.shares.settings import read_settings
from gpuplane.device_plugin.shares.steering import Steering
from gpuplane.hardware import GPUFacts, GPUSource
from gpuplane.limits import ESCAPED, Agent, Arbiter, Escape, Share, message, share_metrics
from gpuplane.operand import OperandContext
from gpuplane.sharing import Part
from gpuplane.sharing.units import sharable
from kubekit.api.core import ObjectReference
from kubekit.http_server import HttpAnswer, metrics_answer, serving
from kubekit.kube import EventRecorder
from kubekit.rpc import RpcError

log = logging.getLogger("gpuplane.device-plugin")

PORT: Final = 5678
JSON_TYPE: Final = "application/json"


class ShareNode:
    """The parts of a node with shares in addition to its plugins; made by `share_node`."""

    def __init__(self, context: OperandContext, gpus: Sequence[GPUFacts], source: GPUSource, pods: NodePods) -> None:
        self.gpus = tuple(gpus)
        self.steering = Steering(pods, gpus, context.sleep)
        settings = read_settings(context.variables)
        self.limits = ShareLimits(context.host_root, context.now, settings)
        self.pods = pods
        self._context = context
        self._events = EventRecorder(context.client, "gpuplane-device-plugin", instance=context.node_name)
        self._held = HeldReport(context, pods, (gpu.uuid for gpu in gpus))
        loop = asyncio.get_running_loop()

        def tell(escape: Escape, share: Share | None) -> None:
            # The agent looks in a thread of its own.
            loop.call_soon_threadsafe(self._report, message(escape, share), share)

        def tell_tampered(share: Share) -> None:
            text = f"{share.owner.name} has damaged the pages of its limits or of its use of GPUs; they were mended"
            loop.call_soon_threadsafe(self._report, text, share)

        self._arbiter = Arbiter(self.limits.store)
        self._agent = Agent(
            self.limits.store,
            source,
            arbiter=self._arbiter,
            is_gone=self.limits.is_gone(pods.lives),
            on_escape=tell,
            on_tamper=tell_tampered,
            stop=settings.stops_escapes,
        )

    def prove(self, holder: AdmittedContainer, core: Mapping[str, int]) -> Part:
        return self.steering.prove(holder, core)

    def write(self, share: str, holder: AdmittedContainer, part: Part) -> None:
        self.limits.write(share, holder, part)

    async def run(self) -> None:
        """The agent, the report of what is held, and the HTTP server. Raises Retryable when the port is taken."""
        context = self._context
        paths = {
            "/metric": self._metrics,
            "/metrics": self._metrics,
            "/usage": self._usage,
            "/graph": self._graph,
            "/version": self._version,
            "/healthz": self._healthy,
        }
        try:
            async with serving(paths, context.address, PORT if context.port is None else context.port) as port:
                log.info("serving metrics of shares port=%d", port)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._agent.run(context.sleep))
                    group.create_task(self._held.run())
        finally:
            await asyncio.to_thread(self._arbiter.close)
            await self._events.aclose()

    def _report(self, text: str, share: Share | None) -> None:
        node = ObjectReference(api_version="v1", kind="Node", name=self._context.node_name)
        self._events.event(node, "Warning", ESCAPED, text)
        if share is not None and share.owner.pod_uid:
            owner = share.owner
            pod = ObjectReference(
                api_version="v1", kind="Pod", name=owner.pod, namespace=owner.namespace, uid=owner.pod_uid
            )
            self._events.event(pod, "Warning", ESCAPED, text)

    async def _holders(self) -> list[gpu_manager.CoreHolder]:
        views = await asyncio.to_thread(self._agent.views)
        return gpu_manager.holders(await self.pods.shown(), self.pods.all(), self.gpus, views)

    async def _metrics(self) -> HttpAnswer:
        views = await asyncio.to_thread(self._agent.views)
        try:
            holders = await self._holders()
        except RpcError as error:
            log.warning("pod-resources not readable: %s", error)
            return HttpAnswer(f"the kubelet does not answer: {error}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)
        return metrics_answer([*gpu_manager.container_metrics(holders, self._context.node_name), *share_metrics(views)])

    async def _usage(self) -> HttpAnswer:
        return _json(gpu_manager.usage(await self._holders()))

    async def _graph(self) -> HttpAnswer:
        return _json(gpu_manager.graph(self.gpus, await self._holders()))

    async def _version(self) -> HttpAnswer:
        return _json({"version": gpuplane.__version__})

    async def _healthy(self) -> HttpAnswer:
        return HttpAnswer(b"ok\n")


def _json(data: Any) -> HttpAnswer:
    return HttpAnswer(msgspec.json.encode(data) + b"\n", content_type=JSON_TYPE)


@contextlib.asynccontextmanager
async def share_node(
    context: OperandContext, inventory: Sequence[GPUFacts], source: GPUSource
) -> AsyncIterator[ShareNode]:
    """The node with its libraries in place and its pods known.

    Raises Terminal when the driver's libraries or those that hold a share are missing, InvalidInput for settings.
    """
    async with node_pods(context) as pods:
        node = ShareNode(context, sharable(inventory), source, pods)
        await asyncio.to_thread(node.limits.prepare)
        yield node
