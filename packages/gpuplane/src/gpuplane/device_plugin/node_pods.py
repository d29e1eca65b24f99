"""The pods of this node, as the API server has them and as the kubelet shows what they hold."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import msgspec

from gpuplane.device_plugin.container_lookup import KubeletContainer
from gpuplane.operand import OperandContext
from kubekit.api.core import Pod
from kubekit.kube import Client, Informer, NotFound
from kubekit.pod_resources import PodResourcesClient
from kubekit.protocol import podresources_pb2 as pb


class NodePods:
    """The pods that are bound to one node; made by `node_pods`."""

    def __init__(
        self,
        client: Client,
        informer: Informer[Pod],
        kubelet_dir: Path,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._informer = informer
        self._kubelet = PodResourcesClient(kubelet_dir, sleep)
        self._living: set[str] = set()
        informer.add_handler(self._told)

    def _told(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None:
            self._living.discard(old.metadata.uid)
        if new is not None and not new.status.ended:
            self._living.add(new.metadata.uid)

    async def shown(self) -> tuple[KubeletContainer, ...]:
        """List the kubelet's containers now. Raises RpcError when it does not answer."""
        return tuple(
            KubeletContainer(pod.namespace, pod.name, container.name, _ids(container.devices))
            for pod in (await self._kubelet.list()).pod_resources
            for container in pod.containers
        )

    async def find(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Pod]:
        """The pods of these names, those that the watch has not told yet from the server."""
        found = {}
        for namespace, name in dict.fromkeys(keys):
            pod = self._informer.get(f"{namespace}/{name}")
            if pod is None:
                pod = await self.now(namespace, name)
            if pod is not None:
                found[namespace, name] = pod
        return found

    async def now(self, namespace: str, name: str) -> Pod | None:
        """The pod as the server has it this moment; None for none. Raises ApiError when that cannot be asked."""
        try:
            return await self._client.get(Pod, name, namespace)
        except NotFound:
            return None

    def lives(self, uid: str) -> bool:
        """Return whether a pod is here and has not ended. May be asked from any thread."""
        return uid in self._living

    def all(self) -> list[Pod]:
        """The pods that have not ended."""
        return [pod for pod in self._informer.items() if not pod.status.ended]


def _ids(devices: Iterable[pb.ContainerDevices]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for one in devices:
        # One entry for each NUMA node.
        found[one.resource_name] = (*found.get(one.resource_name, ()), *one.device_ids)
    return found


def _slim(pod: Pod) -> Pod:
    """Drop the fields that no reader uses: commands, environments, conditions."""
    spec = msgspec.structs.replace(
        pod.spec,
        containers=tuple(msgspec.structs.replace(c, command=(), args=(), env=()) for c in pod.spec.containers),
        init_containers=tuple(
            msgspec.structs.replace(c, command=(), args=(), env=()) for c in pod.spec.init_containers
        ),
    )
    status = type(pod.status)(phase=pod.status.phase, reason=pod.status.reason)
    return msgspec.structs.replace(pod, spec=spec, status=status)


@contextlib.asynccontextmanager
async def node_pods(context: OperandContext) -> AsyncIterator[NodePods]:
    """The node's pods while in the context; the first list is there when it begins."""
    informer = Informer(context.client, Pod, fields=f"spec.nodeName={context.node_name}", keep=_slim)
    informer.start()
    try:
        await informer.synced()
        yield NodePods(context.client, informer, context.kubelet_dir, context.sleep)
    finally:
        await informer.stop()
