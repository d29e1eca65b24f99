"""Speaks to device plugins, and gives their devices to pods.

Invariants:

- A registration is answered before the plugin is called back; its devices count from its first ListAndWatch on.
- A plugin whose stream ends leaves its devices unhealthy at once (allocatable 0); its capacity goes after five minutes.
- Starting deletes all sockets in the directory: that is how plugins learn to register again.
- Allocations stand in the checkpoint before the pod starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import msgspec

from kubekit.api.quantity import whole
from kubekit.protocol import deviceplugin_pb2 as pb
from kubekit.protocol.sockets import address
from tinykube.kubelet.clock import KubeletClock
from tinykube.kubelet.devices import checkpoint
from tinykube.kubelet.devices.ledger import (
    NOTHING,
    ContainerDevices,
    DeviceHolding,
    DeviceLedger,
    ListedDevice,
    candidates,
    choose,
)
from tinykube.kubelet.pod import KubeletPod, SpecContainer, all_containers, passing
from tinykube.kubelet.rejected import PodRejected
from tinykube.protocol import deviceplugin_pb2_grpc as rpc

log = logging.getLogger("tinykube.kubelet")

VERSION: Final = "v1beta1"
SOCKET: Final = "kubelet.sock"
GONE_AFTER_SECONDS: Final = 300.0
# Source: kubelet's devicemanager. Allocate and GetPreferredAllocation have no deadline; a plugin may wait for others.
_PRE_START_SECONDS: Final = 30.0


class _Unanswered(Exception):
    """A plugin did not answer a call."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"rpc error: code = {code} desc = {details}")
        self.details = details


async def _answered(method: Callable[..., Any], request: Any, seconds: float | None = None) -> Any:
    """The answer to one call, within `seconds` where given. Raises _Unanswered."""
    try:
        return await method(request, timeout=seconds)
    except grpc.aio.AioRpcError as error:
        raise _Unanswered(error.code().name, error.details() or "") from error
    except grpc.aio.UsageError as error:
        raise _Unanswered("Canceled", "grpc: the client connection is closing") from error
    except asyncio.CancelledError:
        # NB: a call ends like this when its channel is closed, since another plugin has registered. No caller cancels.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise _Unanswered("Canceled", "grpc: the client connection is closing") from None


class _Plugin(msgspec.Struct, kw_only=True):
    """One registered plugin. `channel` and `stub` are set once it was called back."""

    resource: str
    endpoint: str
    options: Any
    channel: Any = None
    stub: Any = None
    task: asyncio.Task[None] | None = None
    stopped: bool = False


class DeviceManager:
    """The devices of one node.

    Args:
        directory: the kubelet's `device-plugins` directory.
        changed: told when capacity or allocatable differ.
    """

    def __init__(self, directory: Path, clock: KubeletClock, changed: Callable[[], None]) -> None:
        self.directory = directory
        self.clock = clock
        self.recreated = True  # there is no checkpoint: the kubelet has not been here before
        self.devices: dict[str, dict[str, ListedDevice]] = {}
        self.ledger = DeviceLedger()
        self._changed = changed
        self._plugins: dict[str, _Plugin] = {}
        self._server: Any = None
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            if path.is_socket():
                path.unlink()
        known = checkpoint.load(self.directory / checkpoint.NAME)
        self.recreated = known is None
        if known is not None:
            self.ledger = DeviceLedger(known.holdings)
            # Until their plugins register again, these resources are known and have no device.
            self.devices = {resource: {} for resource in known.registered}
        self._server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(_Registration(self), self._server)
        with address(self.directory / SOCKET) as target:
            self._server.add_insecure_port(target)
            await self._server.start()

    async def stop(self) -> None:
        tasks = [*self._tasks, *(p.task for p in self._plugins.values() if p.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for plugin in self._plugins.values():
            if plugin.channel is not None:
                await plugin.channel.close()
        if self._server is not None:
            await self._server.stop(None)
        (self.directory / SOCKET).unlink(missing_ok=True)

    def keep_only(self, pod_uids: Iterable[str]) -> None:
        """After a restart: pods that went meanwhile hold nothing any more."""
        known = set(pod_uids)
        for uid in self.ledger.pods() - known:
            self.release(uid)

    # -- plugins ---------------------------------------------------------------------------------------------------

    async def register(self, request: pb.RegisterRequest) -> str:
        """Takes a plugin; returns why not, "" when it is taken."""
        if request.version != VERSION:
            asked = f"requested API version {request.version!r} is not supported by kubelet."
            return f"{asked} Supported version is {VERSION!r}"
        if "/" not in request.resource_name or not request.endpoint or "/" in request.endpoint:
            return f"the ResourceName {request.resource_name!r} is invalid"
        old = self._plugins.get(request.resource_name)
        if old is not None and old.task is not None:
            old.task.cancel()
        plugin = _Plugin(resource=request.resource_name, endpoint=request.endpoint, options=request.options)
        self._plugins[plugin.resource] = plugin
        plugin.task = asyncio.create_task(self._follow(plugin), name=f"plugin {plugin.resource}")
        log.info("device plugin for %s registered at %s", plugin.resource, plugin.endpoint)
        return ""

    async def _follow(self, plugin: _Plugin) -> None:
        try:
            with address(self.directory / plugin.endpoint) as target:
                plugin.channel = grpc.aio.insecure_channel(target)
                plugin.stub = rpc.DevicePluginStub(plugin.channel)
                async for response in plugin.stub.ListAndWatch(pb.Empty()):
                    self._listed(plugin.resource, response)
            why = "it ended the stream"
        except grpc.aio.AioRpcError as error:
            why = error.details() or error.code().name
        except OSError as error:
            why = str(error)
        finally:
            if plugin.channel is not None:
                await plugin.channel.close()
        log.warning("device plugin for %s is gone: %s", plugin.resource, why)
        plugin.stopped = True
        known = self.devices.get(plugin.resource, {})
        self.devices[plugin.resource] = {i: msgspec.structs.replace(d, healthy=False) for i, d in known.items()}
        self._changed()
        await self.clock.sleep(GONE_AFTER_SECONDS)
        if self._plugins.get(plugin.resource) is plugin:
            self.devices.pop(plugin.resource, None)
            self._changed()

    def _listed(self, resource: str, response: pb.ListAndWatchResponse) -> None:
        found = {
            device.ID: ListedDevice(device.health == "Healthy", tuple(node.ID for node in device.topology.nodes))
            for device in response.devices
        }
        if found != self.devices.get(resource):
            before = self.amounts()
            self.devices[resource] = found
            if before != self.amounts():
                log.info("%s: %d of %d healthy", resource, sum(d.healthy for d in found.values()), len(found))
                self._changed()
            self._save()

    def amounts(self) -> dict[str, tuple[int, int]]:
        """Resource -> (capacity, allocatable)."""
        return {r: (len(known), sum(d.healthy for d in known.values())) for r, known in self.devices.items()}

    def forgotten(self) -> set[str]:
        """Resources that the checkpoint's pods hold but no plugin offers now: capacity 0."""
        return {holding.resource for holding in self.ledger.all()} - set(self.devices)

    # -- pods ------------------------------------------------------------------------------------------------------

    async def allocate(self, pod: KubeletPod) -> None:
        """Devices for all containers of a pod. Raises PodRejected, and then none are held."""
        uid = pod.metadata.uid
        try:
            for container in all_containers(pod):
                for resource, amount in container.resources.limits.items():
                    if resource in self._plugins or resource in self.devices:
                        await self._allocate(pod, container, resource, whole(amount))
        except PodRejected:
            self.release(uid)
            raise

    async def _allocate(self, pod: KubeletPod, container: SpecContainer, resource: str, wanted: int) -> None:
        uid = pod.metadata.uid
        if wanted <= 0 or any(h.resource == resource for h in self.ledger.of(uid, container.name)):
            return
        plugin = self._plugins.get(resource)
        reusable = self.ledger.reusable(uid, resource, passing(pod))
        known = self.devices.get(resource, {})
        choice = candidates(known, self.ledger.in_use(resource), reusable, wanted)
        if choice is None or plugin is None or plugin.stub is None or plugin.stopped:
            free = sum(d.healthy for i, d in known.items() if i not in self.ledger.in_use(resource))
            raise PodRejected(
                "UnexpectedAdmissionError",
                f"Allocate failed due to requested number of devices unavailable for {resource}. "
                f"Requested: {wanted}, Available: {free}, which is unexpected",
            )
        try:
            preferred: list[str] = []
            if plugin.options.get_preferred_allocation_available:
                asked = pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=choice.available, must_include_deviceIDs=choice.must, allocation_size=wanted
                )
                asking = pb.PreferredAllocationRequest(container_requests=[asked])
                answer = await _answered(plugin.stub.GetPreferredAllocation, asking)
                preferred = list(answer.container_responses[0].deviceIDs) if answer.container_responses else []
            ids = choose(choice, preferred, wanted)
            wanting = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
            response = await _answered(plugin.stub.Allocate, wanting)
        except _Unanswered as error:
            raise PodRejected(
                "UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected"
            ) from error
        if not response.container_responses:
            raise PodRejected(
                "UnexpectedAdmissionError", f"Allocate failed: no response for {resource}, which is unexpected"
            )
        given = checkpoint.given_of(response.container_responses[0])
        self.ledger.hold(DeviceHolding(pod_uid=uid, container=container.name, resource=resource, ids=ids, given=given))
        self._save()
        log.info(
            "%s/%s: %s holds %s %s", pod.metadata.namespace, pod.metadata.name, container.name, resource, ",".join(ids)
        )

    async def prepare_start(self, pod: KubeletPod, container: str) -> ContainerDevices:
        """Return the container's devices, and call PreStartContainer of the plugins that require it. Raises
        Rejected.
        """
        given = NOTHING
        for holding in self.ledger.of(pod.metadata.uid, container):
            plugin = self._plugins.get(holding.resource)
            if plugin is not None and plugin.options.pre_start_required:
                try:
                    starting = pb.PreStartContainerRequest(devices_ids=holding.ids)
                    await _answered(plugin.stub.PreStartContainer, starting, _PRE_START_SECONDS)
                except _Unanswered as error:
                    what = f"PreStartContainer of {holding.resource}: {error.details}"
                    raise PodRejected("PreStartContainer", what) from error
            given = given.joined(holding.given)
        return given

    def release(self, pod_uid: str) -> None:
        """Gives a pod's devices back; a pod without any is no error."""
        if self.ledger.release(pod_uid):
            self._save()

    def _save(self) -> None:
        checkpoint.save(self.directory / checkpoint.NAME, self.ledger.all(), self.devices)


class _Registration(rpc.RegistrationServicer):
    def __init__(self, manager: DeviceManager) -> None:
        self._manager = manager

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        problem = await self._manager.register(request)
        if problem:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        return pb.Empty()
