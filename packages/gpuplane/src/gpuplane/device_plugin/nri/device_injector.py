"""Injects devices into containers when the container runtime creates them: the NRI plugin of one node.

Invariant: a container that holds a share starts with its own limits written, or not at all.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from gpuplane.device_plugin.container_lookup import AdmittedContainer
from gpuplane.device_plugin.nri.adjustment import DeviceNumbers, adjustment, started_without_devices
from gpuplane.device_plugin.nri.deferred import DeferredAllocation, deferred_of
from gpuplane.host import Host
from kubekit.api.core import Pod
from kubekit.errors import KubekitError, Retryable, Terminal
from kubekit.kube import ApiError
from kubekit.protocol import nri_pb2 as pb

if TYPE_CHECKING:
    from gpuplane.device_plugin.container_lookup import PodLookup
    from gpuplane.sharing import Part

log = logging.getLogger("gpuplane.device-plugin")


class ShareOwners(Protocol):
    """Finds the owner of a share and its limits; see `gpuplane.device_plugin.shares.node.ShareNode`."""

    @property
    def pods(self) -> PodLookup: ...

    def prove(self, holder: AdmittedContainer, core: Mapping[str, int]) -> Part:
        """Return the part that a container with these ids may use. Raises KubekitError when its pod is assigned
        another one.
        """
        ...

    def write(self, share: str, holder: AdmittedContainer, part: Part) -> None:
        """Its limits; blocks."""
        ...


class DeviceInjector:
    """See `gpuplane.operand.nri.plugin.Plugin`.

    Args:
        host: whose device nodes are passed on.
        shares: None where none are offered.
        empty_handed: called for each container that was created without its devices while the plugin was down.
    """

    def __init__(
        self,
        host: Host,
        shares: ShareOwners | None,
        empty_handed: Callable[[pb.PodSandbox, pb.Container], None],
    ) -> None:
        self._host = host
        self._shares = shares
        self._empty_handed = empty_handed

    async def create(self, pod: pb.PodSandbox, container: pb.Container) -> pb.ContainerAdjustment | None:
        try:
            found = deferred_of(container.annotations, pod.annotations)
            if not found:
                return None
            for given in found:
                if given.share:
                    await self._limit(pod, container.name, given)
            adjusted = adjustment(found, self._devices(found))
        except KubekitError as error:
            log.error("container refused pod=%s/%s container=%s: %s", pod.namespace, pod.name, container.name, error)
            raise
        log.info("container adjusted pod=%s/%s container=%s", pod.namespace, pod.name, container.name)
        return adjusted

    def known(self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]) -> None:
        by_id = {pod.id: pod for pod in pods}
        for container in containers:
            pod = by_id.get(container.pod_sandbox_id)
            running = container.state == pb.CONTAINER_RUNNING
            if pod is not None and running and started_without_devices(container):
                self._empty_handed(pod, container)

    async def _limit(self, sandbox: pb.PodSandbox, name: str, given: DeferredAllocation) -> None:
        if self._shares is None:
            raise Retryable("this node offers no shares now", where=f"{sandbox.namespace}/{sandbox.name}:{name}")
        holder = AdmittedContainer(await self._pod(self._shares.pods, sandbox), name)
        part = self._shares.prove(holder, given.core)
        await asyncio.to_thread(self._shares.write, given.share, holder, part)

    async def _pod(self, pods: PodLookup, sandbox: pb.PodSandbox) -> Pod:
        """The pod by its UID, with the annotations of its sandbox, which has no requests."""
        key, where = (sandbox.namespace, sandbox.name), f"{sandbox.namespace}/{sandbox.name}"
        try:
            pod = (await pods.find([key])).get(key)
            if pod is None or pod.metadata.uid != sandbox.uid:  # the watch may be behind
                pod = await pods.now(*key)
        except ApiError as error:
            raise Retryable(f"its pod cannot be read: {error}", where=where) from error
        if pod is None or pod.metadata.uid != sandbox.uid:
            raise Terminal("the pod is gone", where=where)
        annotations = {**pod.metadata.annotations, **sandbox.annotations}
        metadata = msgspec.structs.replace(pod.metadata, annotations=annotations)
        return msgspec.structs.replace(pod, metadata=metadata)

    def _devices(self, given: Sequence[DeferredAllocation]) -> DeviceNumbers:
        paths = {node.host_path for one in given for node in one.allocation.devices}
        found = {path: self._host.stat(path) for path in paths}
        return {
            path: (status.st_mode, os.major(status.st_rdev), os.minor(status.st_rdev))
            for path, status in found.items()
            if status is not None
        }
