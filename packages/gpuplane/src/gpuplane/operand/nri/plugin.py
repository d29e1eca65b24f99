"""A plugin's life with one runtime: register, be configured and told what runs, then adjust containers.

Invariant: what is asked is answered within the time that the runtime gives, with a refusal if need be. A runtime that
waits longer drops the plugin and starts the container as it is; one that is refused does not start it.

Source: containerd/nri, pkg/adaptation and pkg/stub.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from gpuplane.operand.nri.runtimes import REQUEST_SECONDS, NriRuntime, Unfit, refuse_unfit
from kubekit.errors import Retryable
from kubekit.kube.tasks import first_of
from kubekit.protocol import nri_pb2 as pb
from kubekit.protocol.sockets import NRI_SERVICE
from kubekit.rpc import RpcError, Status
from kubekit.ttrpc.connection import Connection, Method
from kubekit.ttrpc.frames import PLUGIN, RUNTIME

log = logging.getLogger("kubekit.nri")

NAME: Final = "gpuplane"
INDEX: Final = "50"  # plugins are called in this order; no plugin has to come before this one
REGISTER_SECONDS: Final = 5.0
SHARE_OF_TIME: Final = 0.7
"""The part of it after which a container is refused, which has to reach the runtime in time."""
EVENTS: Final = 1 << (pb.CREATE_CONTAINER - 1)


class NriPlugin(Protocol):
    """The callbacks of a plugin."""

    async def create(self, pod: pb.PodSandbox, container: pb.Container) -> pb.ContainerAdjustment | None:
        """Return the adjustment of a container that is about to be created, None for nothing. An exception prevents the
        creation.
        """
        ...

    def known(self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]) -> None:
        """All that the runtime has at this moment. From now on nothing is created without a question."""
        ...


async def serve(
    client: socket.socket,
    plugin: NriPlugin,
    ready: Callable[[NriRuntime], None],
    *,
    name: str = NAME,
    index: str = INDEX,
) -> None:
    """Be a plugin of the runtime at `client`, which is closed at the end; returns when it goes away.

    Args:
        ready: called once nothing is created any more without a question.
        name, index: the plugin's; two of them may be connected.

    Raises:
        Unfit: see `refuse_unfit`.
        Retryable: the runtime does not take us.
        Malformed: it does not speak the protocol.
    """
    client.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=client)
    session = _Session(plugin, ready)
    connection = Connection(reader, writer, serves=PLUGIN, calls=RUNTIME, methods=session.methods())
    await first_of(session.unfit(), _registered(connection, name, index), connection.run())


async def _registered(connection: Connection, name: str, index: str) -> None:
    """Registers; never returns. Raises Retryable."""
    request = pb.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
    try:
        await connection.call(
            f"{NRI_SERVICE}.Runtime/RegisterPlugin", request.SerializeToString(), timeout=REGISTER_SECONDS
        )
    except RpcError as error:
        if error.status is not Status.UNAVAILABLE:  # else the connection ended, which says so itself
            raise Retryable(f"the runtime does not register the plugin: {error.details}", where="NRI") from error
    await asyncio.Event().wait()


class _Session:
    """The calls of one runtime."""

    def __init__(self, plugin: NriPlugin, ready: Callable[[NriRuntime], None]) -> None:
        self._plugin = plugin
        self._ready = ready
        self._runtime = NriRuntime("", "")
        self._unfit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pods: list[pb.PodSandbox] = []
        self._containers: list[pb.Container] = []

    def methods(self) -> dict[str, Method]:
        table: dict[str, Method] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create,
            "Shutdown": self._nothing,
        }
        return {f"{NRI_SERVICE}.Plugin/{name}": method for name, method in table.items()}

    async def unfit(self) -> None:
        """Raises Unfit once the runtime is known to be."""
        await self._unfit

    async def _configure(self, request: bytes) -> pb.ConfigureResponse:
        told = pb.ConfigureRequest.FromString(request)
        seconds = told.request_timeout / 1000 or REQUEST_SECONDS
        self._runtime = NriRuntime(told.runtime_name, told.runtime_version, seconds)
        try:
            refuse_unfit(self._runtime)
        except Unfit as error:
            with contextlib.suppress(asyncio.InvalidStateError):
                self._unfit.set_exception(error)
            raise
        return pb.ConfigureResponse(events=EVENTS)

    async def _synchronize(self, request: bytes) -> pb.SynchronizeResponse:
        told = pb.SynchronizeRequest.FromString(request)
        self._pods += told.pods
        self._containers += told.containers
        if not told.more:
            self._plugin.known(self._pods, self._containers)
            self._pods, self._containers = [], []
            self._ready(self._runtime)
        return pb.SynchronizeResponse(more=told.more)

    async def _create(self, request: bytes) -> pb.CreateContainerResponse:
        asked = pb.CreateContainerRequest.FromString(request)
        seconds = SHARE_OF_TIME * self._runtime.request_seconds
        try:
            async with asyncio.timeout(seconds):
                adjustment = await self._plugin.create(asked.pod, asked.container)
        except TimeoutError as error:
            where = f"{asked.pod.namespace}/{asked.pod.name}:{asked.container.name}"
            raise Retryable(f"its devices are still unknown after {seconds:.1f} s", where=where) from error
        return pb.CreateContainerResponse(adjust=adjustment)

    async def _nothing(self, request: bytes) -> pb.Empty:
        return pb.Empty()
