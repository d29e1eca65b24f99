"""Drivers of dynamic resource allocation that registered with the kubelet, and the calls to them.

Invariants:

- A socket in `plugins_registry` is a registration; when it goes, or another file takes its place, the driver has gone.
- Of several instances of a driver the newest that is connected is called.
- The resource slices of a driver that has no connected instance for 30 s are deleted, and those of all drivers when
  the kubelet starts: no driver would prepare their devices.

Source: pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra/plugin of Kubernetes 1.36.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from kubekit.errors import KubekitError, Retryable
from kubekit.kube import Client, NotFound
from kubekit.protocol import dra_pb2 as pb
from kubekit.protocol import drahealth_pb2 as health_pb
from kubekit.protocol import pluginregistration_pb2 as registration_pb
from kubekit.protocol.sockets import address
from kubekit.rpc import RpcError, call
from tinykube.kubelet.clock import KubeletClock
from tinykube.kubelet.volumes import inside_root

log = logging.getLogger("tinykube.kubelet")

TYPE: Final = "DRAPlugin"
SERVICES: Final[Mapping[str, str]] = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
"""The names by which drivers list their services, with the full names; the first one that a driver lists is called."""
WATCH_HEALTH: Final = "/v1alpha1.DRAResourceHealth/NodeWatchResources"
REGISTRATION: Final = "/pluginregistration.Registration/"
LOOK_SECONDS: Final = 1.0
CALL_SECONDS: Final = 45.0
REGISTER_SECONDS: Final = 10.0
WIPE_AFTER_SECONDS: Final = 30.0
HEALTH_AGAIN_SECONDS: Final = 5.0
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 120.0

OnHealth = Callable[[str, health_pb.NodeWatchResourcesResponse | None], None]
"""Called with a driver and its report, None when its stream ended."""


class RegistrationRefused(Retryable):
    """A plugin that cannot be registered."""


class DriverInstance:
    """One registered instance of a driver."""

    def __init__(self, driver: str, endpoint: Path, service: str) -> None:
        self.driver = driver
        self.endpoint = endpoint
        self.connected = False
        self._service = SERVICES[service]
        self._stack = contextlib.ExitStack()
        self.channel: Any = grpc.aio.insecure_channel(self._stack.enter_context(address(endpoint)))

    async def close(self) -> None:
        await self.channel.close()
        self._stack.close()

    async def prepare(self, claims: list[pb.Claim]) -> pb.NodePrepareResourcesResponse:
        """Raises Retryable where there is no answer."""
        request = pb.NodePrepareResourcesRequest(claims=claims)
        answer: pb.NodePrepareResourcesResponse = await self._call(
            "NodePrepareResources", request, pb.NodePrepareResourcesResponse
        )
        return answer

    async def unprepare(self, claims: list[pb.Claim]) -> pb.NodeUnprepareResourcesResponse:
        """Raises Retryable where there is no answer."""
        request = pb.NodeUnprepareResourcesRequest(claims=claims)
        answer: pb.NodeUnprepareResourcesResponse = await self._call(
            "NodeUnprepareResources", request, pb.NodeUnprepareResourcesResponse
        )
        return answer

    async def _call(self, method: str, request: Any, answer: Any) -> Any:
        stub = self.channel.unary_unary(
            f"/{self._service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            return await stub(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            code = "".join(word.capitalize() for word in error.code().name.split("_"))
            raise Retryable(f"{method}: rpc error: code = {code} desc = {error.details() or ''}") from error
        except (grpc.aio.UsageError, DecodeError) as error:
            raise Retryable(f"{method}: {error}") from error
        except asyncio.CancelledError:
            # NB: a call ends like this when its channel is closed, since the driver has gone. See the device manager.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise Retryable(f"{method}: rpc error: code = Canceled desc = the driver has gone") from None

    async def watch_connection(self, changed: Callable[[], None]) -> None:
        """Follow whether the driver listens at the endpoint, until cancelled."""
        while True:
            state = self.channel.get_state(try_to_connect=True)
            connected = state is grpc.ChannelConnectivity.READY
            if connected != self.connected:
                self.connected = connected
                log.info(
                    "driver %s at %s: %s", self.driver, self.endpoint, "connected" if connected else "not connected"
                )
                changed()
            await self.channel.wait_for_state_change(state)

    async def watch_health(self, clock: KubeletClock, on_health: OnHealth) -> None:
        """Follow the health of the driver's devices until cancelled, or until it proves to report none."""
        stub = self.channel.unary_stream(
            WATCH_HEALTH,
            request_serializer=health_pb.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health_pb.NodeWatchResourcesResponse.FromString,
        )
        while True:
            try:
                async for report in stub(health_pb.NodeWatchResourcesRequest(), wait_for_ready=True):
                    on_health(self.driver, report)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
                log.info("driver %s: no health: %s", self.driver, error.details() or error.code().name)
            on_health(self.driver, None)
            await clock.sleep(HEALTH_AGAIN_SECONDS)


class DriverRegistry:
    """The drivers of one node. `run` follows them until cancelled.

    Args:
        root: the machine's file system; `directory` is its `plugins_registry`.
        registered: returns once the Node exists.
    """

    def __init__(
        self,
        root: Path,
        directory: Path,
        node: str,
        client: Client,
        clock: KubeletClock,
        on_health: OnHealth,
        registered: Callable[[], Awaitable[object]],
    ) -> None:
        self._root = root
        self._directory = directory
        self._node = node
        self._client = client
        self._clock = clock
        self._on_health = on_health
        self._registered = registered
        self._instances: dict[str, list[DriverInstance]] = {}
        self._sockets: dict[Path, tuple[tuple[int, int], asyncio.Task[None]]] = {}
        self._wipes: dict[str, asyncio.Task[None]] = {}
        self._tried = asyncio.Event()  # the slices of all drivers are deleted, or could not be

    def get(self, driver: str) -> DriverInstance:
        """Return the instance of a driver to call. Raises Retryable when there is none."""
        known = self._instances.get(driver)
        if not known:
            raise Retryable(f"DRA driver {driver} is not registered")
        return next((one for one in reversed(known) if one.connected), known[-1])

    async def run(self) -> None:
        self._wipe_later("", 0.0)
        try:
            await self._tried.wait()  # so that the slices of a driver that registers now are not deleted
            while True:
                await self._look()
                await self._clock.sleep(LOOK_SECONDS)
        finally:
            tasks = [*self._wipes.values(), *(task for _, task in self._sockets.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        """Begin to follow new sockets, and end with those that are gone."""
        found = _sockets_in(self._directory)
        for path, (identity, task) in list(self._sockets.items()):
            if found.get(path) != identity:
                del self._sockets[path]
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for path, identity in found.items():
            if path not in self._sockets:
                self._sockets[path] = identity, asyncio.create_task(self._follow(path), name=f"plugin {path.name}")

    async def _follow(self, path: Path) -> None:
        """Register the plugin of a socket, and follow it until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            try:
                instance = await self._register(path)
                break
            except (RegistrationRefused, RpcError, OSError, DecodeError) as error:
                log.warning("plugin %s is not registered: %s", path.name, error)
                await self._clock.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        driver = instance.driver

        def changed() -> None:
            self._settle(driver)

        changed()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(instance.watch_connection(changed))
                group.create_task(instance.watch_health(self._clock, self._on_health))
        finally:
            self._instances[driver].remove(instance)
            log.info("driver %s at %s is gone", driver, instance.endpoint)
            if not self._instances[driver]:
                del self._instances[driver]
                self._on_health(driver, None)
            changed()
            await instance.close()

    async def _register(self, path: Path) -> DriverInstance:
        answer = await call(path, f"{REGISTRATION}GetInfo", b"", timeout=REGISTER_SECONDS)
        info = registration_pb.PluginInfo.FromString(answer)
        instance = None
        try:
            instance = self._instance(path, info)
        except RegistrationRefused as refused:
            await self._notify(path, refused.what)
            raise
        try:
            await self._notify(path, "")
        except BaseException:
            self._instances[instance.driver].remove(instance)
            await instance.close()
            raise
        log.info("driver %s registered at %s", instance.driver, instance.endpoint)
        return instance

    def _instance(self, path: Path, info: registration_pb.PluginInfo) -> DriverInstance:
        if info.type != TYPE:
            text = f"no handler registered for plugin type: {info.type} at socket {path.name}"
            raise RegistrationRefused(f"RegisterPlugin error -- {text}")
        failed = "RegisterPlugin error -- plugin validation failed with err"
        service = next((one for one in info.supported_versions if one in SERVICES), "")
        if not service:
            listed = (
                f"none of services supported by the plugin ({_listed(info.supported_versions)}) are supported by the "
            )
            empty = "empty list of supported gRPC services (aka supported versions)"
            why = f"{listed}kubelet ({_listed(SERVICES)})" if info.supported_versions else empty
            about = f"invalid supported gRPC versions of DRA driver plugin {info.name} at endpoint {info.endpoint}"
            raise RegistrationRefused(f"{failed}: {about}: {why}")
        endpoint = inside_root(self._root, info.endpoint) if info.endpoint else path
        known = self._instances.setdefault(info.name, [])
        if any(one.endpoint == endpoint for one in known):
            text = f"endpoint {info.endpoint} already registered for DRA driver plugin {info.name}"
            raise RegistrationRefused(f"RegisterPlugin error -- plugin registration failed with err: {text}")
        instance = DriverInstance(info.name, endpoint, service)
        known.append(instance)
        return instance

    async def _notify(self, path: Path, error: str) -> None:
        status = registration_pb.RegistrationStatus(plugin_registered=not error, error=error)
        method = f"{REGISTRATION}NotifyRegistrationStatus"
        await call(path, method, status.SerializeToString(), timeout=REGISTER_SECONDS)

    # -- resource slices ---------------------------------------------------------------------------------------------

    def _settle(self, driver: str) -> None:
        """Plan the end of a driver's slices while no instance is connected."""
        if any(one.connected for one in self._instances.get(driver, ())):
            task = self._wipes.pop(driver, None)
            if task is not None:
                task.cancel()
        elif driver not in self._wipes:
            self._wipe_later(driver, WIPE_AFTER_SECONDS)

    def _wipe_later(self, driver: str, seconds: float) -> None:
        task = asyncio.create_task(self._wipe(driver, seconds), name=f"resource slices of {driver or 'all drivers'}")
        self._wipes[driver] = task
        task.add_done_callback(lambda _: self._wipes.pop(driver, None) if self._wipes.get(driver) is task else None)

    async def _wipe(self, driver: str, seconds: float) -> None:
        await self._clock.sleep(seconds)
        await self._registered()
        fields = f"spec.driver={driver},spec.nodeName={self._node}" if driver else f"spec.nodeName={self._node}"
        pause = 1.0
        while True:
            try:
                path = "/apis/resource.k8s.io/v1/resourceslices"
                await self._client.request("DELETE", path, {"fieldSelector": fields})
                return
            except NotFound:  # an API server without these kinds
                return
            except KubekitError as error:
                log.warning("resource slices of %s are not deleted: %s", driver or "all drivers", error)
            finally:
                self._tried.set()
            await self._clock.sleep(pause)
            pause = min(pause * 2, 300.0)


def _sockets_in(directory: Path) -> dict[Path, tuple[int, int]]:
    """Return the sockets below a directory, with what changes when another file takes the place of one."""
    found = {}
    for path in sorted(directory.rglob("*")) if directory.is_dir() else ():
        with contextlib.suppress(OSError):
            if path.is_socket() and not path.name.startswith("."):
                status = path.stat()
                found[path] = (status.st_ino, status.st_mtime_ns)
    return found


def _listed(names: Any) -> str:
    return "[" + " ".join(f'"{name}"' for name in names) + "]"
