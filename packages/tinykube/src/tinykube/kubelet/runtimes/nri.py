"""A simulated runtime's side of NRI: plugins that connect, and what they make of containers.

As containerd does it: plugins are called one after the other, one container at a time, and no container is created
while a plugin synchronizes. A plugin that does not answer in time is dropped, and the container is created without it;
one that refuses keeps the container from being created.

Source: containerd/nri, pkg/adaptation.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from kubekit.errors import KubekitError, Terminal
from kubekit.protocol import nri_pb2 as pb
from kubekit.protocol.sockets import NRI_SERVICE
from kubekit.rpc import RpcError, Status, closed
from kubekit.ttrpc.connection import Connection
from kubekit.ttrpc.frames import PLUGIN, RUNTIME
from tinykube.kubelet.runtimes.listener import UnixListener

log = logging.getLogger("tinykube.kubelet")

REGISTRATION_SECONDS: Final = 5.0
REQUEST_SECONDS: Final = 2.0
AT_ONCE: Final = 500  # containers in one message to a plugin
_CREATE: Final = 1 << (pb.CREATE_CONTAINER - 1)


class Refused(Terminal):
    """A plugin does not want this container."""


class Nri:
    """The plugins of one runtime; its socket can be opened and closed any number of times, in an event loop.

    Args:
        before: the NRI of the runtime before its restart, with its containers.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        version: str,
        before: Nri | None = None,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        self.path = path
        self._listener = UnixListener(path, self._serve)
        self._name = name
        self._version = version
        self._seconds = request_seconds
        self._plugins: dict[str, Connection] = {}
        self._known: dict[tuple[str, str], tuple[pb.PodSandbox, pb.Container]] = {}
        if before is not None:
            self._known = before._known
        self._turn = asyncio.Lock()
        self.plugged = asyncio.Event()  # set while there is a plugin

    def open(self) -> None:
        """Listen; what an earlier one left there is removed."""
        self._listener.open()

    def close(self) -> None:
        """The runtime ends; as there, the socket's file stays."""
        self._listener.close()
        self._plugins.clear()
        self.plugged.clear()

    def forget(self, pod_uid: str) -> None:
        """The containers of a pod are removed."""
        self._known = {key: known for key, known in self._known.items() if key[0] != pod_uid}

    async def create(self, pod: pb.PodSandbox, container: pb.Container) -> pb.ContainerAdjustment:
        """Return the adjustments of all plugins for a container. Raises Refused."""
        adjustment = pb.ContainerAdjustment()
        async with self._turn:
            request = pb.CreateContainerRequest(pod=pod, container=container).SerializeToString()
            for name, connection in sorted(self._plugins.items()):
                try:
                    answer = await connection.call(
                        f"{NRI_SERVICE}.Plugin/CreateContainer", request, timeout=self._seconds
                    )
                    adjustment.MergeFrom(pb.CreateContainerResponse.FromString(answer).adjust)
                except RpcError as error:
                    if error.status not in (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED):
                        raise Refused(f"failed to get NRI adjustment for container: {error.details}") from error
                    log.error("closing plugin %s, failed to handle CreateContainer request: %s", name, error)
                    self._drop(name, connection)
                except DecodeError as error:
                    raise Refused(f"failed to get NRI adjustment for container: {error}") from error
            self._known[pod.uid, container.name] = (pod, _created(container, adjustment))
        return adjustment

    # -- plugins ---------------------------------------------------------------------------------------------------

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        registered: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def register(request: bytes) -> pb.Empty:
            asked = pb.RegisterPluginRequest.FromString(request)
            if len(asked.plugin_idx) != 2 or not asked.plugin_idx.isdigit():
                raise Terminal(f'invalid plugin index "{asked.plugin_idx}", must be 2 digits')
            if not registered.done():
                registered.set_result(f"{asked.plugin_idx}-{asked.plugin_name}")
            return pb.Empty()

        methods = {f"{NRI_SERVICE}.Runtime/RegisterPlugin": register}
        connection = Connection(reader, writer, serves=RUNTIME, calls=PLUGIN, methods=methods)
        running = asyncio.create_task(connection.run())
        running.add_done_callback(lambda _: registered.cancel())
        name = ""
        try:
            async with asyncio.timeout(REGISTRATION_SECONDS):
                name = await registered
            if await self._configured(connection):
                async with self._turn:
                    await self._synchronized(connection)
                    self._plugins[name] = connection
                    self.plugged.set()
                log.info("NRI plugin %s connected and synchronized", name)
            await running
        except (TimeoutError, KubekitError, DecodeError) as error:
            log.error("NRI plugin %s: %s", name or "that did not register", error)
        except asyncio.CancelledError:
            if not registered.cancelled():
                raise
            log.error("NRI plugin that did not register: it has gone")
        finally:
            self._drop(name, connection)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await closed(writer)

    def _drop(self, name: str, connection: Connection) -> None:
        if self._plugins.get(name) is connection:
            del self._plugins[name]
            connection.end()
        if not self._plugins:
            self.plugged.clear()

    async def _configured(self, connection: Connection) -> bool:
        """Return whether the plugin wants to be asked."""
        told = pb.ConfigureRequest(
            runtime_name=self._name,
            runtime_version=self._version,
            registration_timeout=int(REGISTRATION_SECONDS * 1000),
            request_timeout=int(self._seconds * 1000),
        )
        answer = await connection.call(
            f"{NRI_SERVICE}.Plugin/Configure", told.SerializeToString(), timeout=REQUEST_SECONDS
        )
        events = pb.ConfigureResponse.FromString(answer).events
        return not events or bool(events & _CREATE)

    async def _synchronized(self, connection: Connection) -> None:
        left = list(self._known.values())
        more = True
        while more:
            part, left = left[:AT_ONCE], left[AT_ONCE:]
            more = bool(left)
            pods = {pod.uid: pod for pod, _ in part}
            told = pb.SynchronizeRequest(pods=pods.values(), containers=[one for _, one in part], more=more)
            answer = await connection.call(
                f"{NRI_SERVICE}.Plugin/Synchronize", told.SerializeToString(), timeout=REQUEST_SECONDS
            )
            if pb.SynchronizeResponse.FromString(answer).more != more:
                raise Terminal("plugin does not handle split sync requests")


def _created(container: pb.Container, adjustment: pb.ContainerAdjustment) -> pb.Container:
    """Return the container as it is reported from now on."""
    created = pb.Container()
    created.CopyFrom(container)
    created.state = pb.CONTAINER_RUNNING
    before = dict(entry.split("=", 1) for entry in container.env)
    del created.env[:]
    created.env.extend(f"{key}={value}" for key, value in variables(before, adjustment).items())
    return created


def variables(env: Mapping[str, str], adjustment: pb.ContainerAdjustment) -> dict[str, str]:
    """A container's variables with what plugins make of them.

    NB: a name that begins with a minus asks to take a variable away, which containerd's NRI (0.12) drops too.
    """
    return {**env, **{one.key: one.value for one in adjustment.env if not one.key.startswith("-")}}
