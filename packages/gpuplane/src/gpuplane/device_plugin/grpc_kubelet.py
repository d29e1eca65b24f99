"""A real kubelet: offers a plugin over the unix sockets in the kubelet's `device-plugins` directory.

Order matters: the plugin's socket answers before it is registered, because the kubelet calls back at once. A kubelet
that restarts deletes all sockets in the directory and forgets every plugin; then `serve` returns and is called again.

Source: Kubernetes, "Device Plugins"; kubelet device plugin API v1beta1.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final, cast

from gpuplane.device_plugin.kubelet_api import Allocation, PluginDevice, ResourcePlugin
from gpuplane.host import Host
from kubekit.errors import Retryable
from kubekit.protocol import deviceplugin_pb2 as pb
from kubekit.protocol.sockets import DEVICE_PLUGIN_DIR
from kubekit.rpc import RpcError, call
from kubekit.rpc_server import Method, serving

log = logging.getLogger("gpuplane.device-plugin")

VERSION: Final = "v1beta1"
REGISTER: Final = f"/{VERSION}.Registration/Register"
KUBELET_SOCKET: Final = "kubelet.sock"
REGISTER_TIMEOUT_SECONDS: Final = 1.0
FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0
REFUSALS_AT_MOST: Final = 10  # about half a minute: longer than any start of a kubelet


class GrpcKubelet:
    """The kubelet whose directory (`/var/lib/kubelet`) is `kubelet_dir`; see `gpuplane.operand.Kubelet`."""

    def __init__(self, kubelet_dir: Path, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._directory = kubelet_dir / DEVICE_PLUGIN_DIR
        self._sleep = sleep

    async def serve(self, resource: str, plugin: ResourcePlugin) -> None:
        """Offer `plugin` until the kubelet's socket goes away or is another one, or ours was deleted.

        Raises Retryable when the directory cannot be watched, the socket cannot be opened, or the kubelet goes on
        refusing.
        """
        ours = self._directory / (resource.replace("/", "-").replace(".com", "") + ".sock")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            # The watch stands before anything is looked at, so no change between a look and a wait is lost.
            watch = Host(self._directory).watch(KUBELET_SOCKET, ours.name)
            async with aclosing(cast("AsyncGenerator[None, None]", watch)) as changes:
                await anext(changes)
                await self._serve(resource, plugin, ours, changes)
        except OSError as error:
            raise Retryable(
                f"the kubelet's device plugin directory cannot be used: {error}",
                where=str(self._directory),
                cure="mount the kubelet's directory into the pod, or give --kubelet-dir",
            ) from error

    async def _serve(
        self, resource: str, plugin: ResourcePlugin, ours: Path, changes: AsyncGenerator[None, None]
    ) -> None:
        ours.unlink(missing_ok=True)
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(serving(methods(plugin), ours))
            except OSError as error:
                raise Retryable(f"the socket cannot be opened: {error}", where=str(ours)) from error
            made = _identity(ours)
            try:
                kubelet = await self._register(resource, plugin, ours, made, changes)
                while (_identity(self._directory / KUBELET_SOCKET), _identity(ours)) == (kubelet, made):
                    await anext(changes)
                log.info("kubelet sockets changed resource=%s", resource)
            finally:
                if _identity(ours) == made:
                    ours.unlink(missing_ok=True)

    async def _register(
        self, resource: str, plugin: ResourcePlugin, ours: Path, made: _Identity, changes: AsyncGenerator[None, None]
    ) -> _Identity:
        """Register, however long it takes for a kubelet to appear; returns which kubelet socket it was.

        NB: a kubelet that starts empties the directory first; a socket that it deleted must not be registered. Then it
        is None.
        """
        socket = self._directory / KUBELET_SOCKET
        request = pb.RegisterRequest(
            version=VERSION, endpoint=ours.name, resource_name=resource, options=_options(plugin)
        )
        pause, said, refusals = FIRST_PAUSE_SECONDS, "", 0
        while _identity(ours) == made:
            kubelet = _identity(socket)
            if kubelet is None:
                if said != "absent":
                    log.info("waiting for kubelet resource=%s socket=%s", resource, socket)
                    said = "absent"
                await anext(changes)
                continue
            try:
                await call(socket, REGISTER, request.SerializeToString(), timeout=REGISTER_TIMEOUT_SECONDS)
            except RpcError as error:
                reason = error.details or error.status.name
                if said != reason:
                    log.warning("registration failed, retrying resource=%s: %s", resource, reason)
                    said = reason
                refusals += 1
                if refusals == REFUSALS_AT_MOST:
                    raise Retryable(
                        f"the kubelet refuses the registration: {reason}",
                        where=str(socket),
                        cure="look at the kubelet's log: journalctl -u kubelet",
                    ) from error
                await self._sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                continue
            log.info("registered with kubelet resource=%s", resource)
            return kubelet
        return None


_Identity = tuple[int, int] | None


def _identity(path: Path) -> _Identity:
    """Inode and birth of the socket at `path`, None when there is none. The time: inode numbers are used again."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return (status.st_ino, status.st_mtime_ns)


def methods(plugin: ResourcePlugin) -> dict[str, Method]:
    """The kubelet's calls, translated into those of a Plugin. An error's message reaches the pod's events."""

    async def options(request: bytes) -> AsyncIterator[bytes]:
        yield _options(plugin).SerializeToString()

    async def list_and_watch(request: bytes) -> AsyncIterator[bytes]:
        async for devices in plugin.watch():
            yield pb.ListAndWatchResponse(devices=[_device(device) for device in devices]).SerializeToString()

    async def preferred(request: bytes) -> AsyncIterator[bytes]:
        response = pb.PreferredAllocationResponse()
        for wanted in pb.PreferredAllocationRequest.FromString(request).container_requests:
            must = wanted.must_include_deviceIDs
            ids = await plugin.steered(wanted.available_deviceIDs, must, wanted.allocation_size)
            response.container_responses.add(deviceIDs=ids)
        yield response.SerializeToString()

    async def allocate(request: bytes) -> AsyncIterator[bytes]:
        response = pb.AllocateResponse()
        for wanted in pb.AllocateRequest.FromString(request).container_requests:
            response.container_responses.append(_allocated(plugin.allocate(wanted.devices_ids)))
        yield response.SerializeToString()

    async def pre_start(request: bytes) -> AsyncIterator[bytes]:
        await plugin.started(pb.PreStartContainerRequest.FromString(request).devices_ids)
        yield pb.PreStartContainerResponse().SerializeToString()

    table = {
        "GetDevicePluginOptions": options,
        "ListAndWatch": list_and_watch,
        "GetPreferredAllocation": preferred,
        "Allocate": allocate,
        "PreStartContainer": pre_start,
    }
    return {f"/{VERSION}.DevicePlugin/{name}": method for name, method in table.items()}


def _options(plugin: ResourcePlugin) -> pb.DevicePluginOptions:
    return pb.DevicePluginOptions(get_preferred_allocation_available=True, pre_start_required=plugin.starts)


def _device(device: PluginDevice) -> pb.Device:
    message = pb.Device(ID=device.id, health="Healthy" if device.healthy else "Unhealthy")
    for node in device.numa:
        message.topology.nodes.add(ID=node)
    return message


def _allocated(allocation: Allocation) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=allocation.envs,
        mounts=[
            pb.Mount(host_path=mount.host_path, container_path=mount.container_path, read_only=mount.read_only)
            for mount in allocation.mounts
        ],
        devices=[
            pb.DeviceSpec(host_path=node.host_path, container_path=node.container_path, permissions="rw")
            for node in allocation.devices
        ],
        annotations=allocation.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in allocation.cdi_devices],
    )
