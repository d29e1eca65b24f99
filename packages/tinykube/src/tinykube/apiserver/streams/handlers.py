"""Subresources that lead to a pod or a kubelet: log, exec, attach, port-forward, and proxy, of services and nodes too.

Each finds the pod's node and container, asks the kubelet and carries bytes both ways until one side is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from kubekit.kube.tasks import first_of
from tinykube.apiserver.asgi import HttpRequest, HttpResponse
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import bad_request, method_not_allowed, not_found
from tinykube.apiserver.hooks import Connect, Find, Object
from tinykube.apiserver.streams import portforward, upgrade
from tinykube.apiserver.streams.channels import (
    CLOSE,
    ERROR,
    RESIZE,
    STDIN,
    Channels,
    accept,
    require_spoken,
)
from tinykube.apiserver.streams.kubelet import KubeletClient
from tinykube.apiserver.streams.proxy import forwarded, service_address, split_name, split_service
from tinykube.apiserver.streams.websockets import send_log
from tinykube.kubelet.execute import PROTOCOL as EXEC_PROTOCOL
from tinykube.kubelet.hangup import end
from tinykube.kubelet.portforward import PROTOCOL as FORWARD_PROTOCOL
from tinykube.kubelet.websocket import Closed, WebSocket

logger = logging.getLogger("tinykube.apiserver")

_LOG_OPTIONS: Final = (
    "follow", "tailLines", "timestamps", "sinceSeconds", "sinceTime", "previous", "limitBytes",
)  # fmt: skip
_BEFORE_A_NODES_PATH: Final = 5  # api, v1, nodes, NAME, proxy
_EXEC_OPTIONS: Final = ("stdin", "stdout", "stderr", "tty")
_LOST: Final = {
    "metadata": {},
    "status": "Failure",
    "reason": "InternalError",
    "message": "the kubelet hung up before it said how the command ended",
}
# How reading from a kubelet ends that goes away in the middle.
_HUNG_UP: Final = (asyncio.IncompleteReadError, ConnectionError, ValueError)


class Streams:
    """The handlers. `kubelet_secret` is that of the tokens of kubelets; it is set when they are started."""

    def __init__(self, find: Find) -> None:
        self.kubelet_secret = ""
        self._find = find

    def by_subresource(self) -> dict[tuple[str, str], Connect]:
        return {
            ("pods", "log"): self._log,
            ("pods", "exec"): self._exec,
            ("pods", "attach"): self._attach,
            ("pods", "portforward"): self._portforward,
            ("pods", "proxy"): self._proxy,
            ("services", "proxy"): self._service_proxy,
            ("nodes", "proxy"): self._node_proxy,
        }

    def _pod(self, info: ResourceInfo, namespace: str, name: str) -> Object:
        pod = self._find("pods", namespace, name)
        if pod is None:
            raise not_found(info, name)
        return pod

    def _kubelet(self, pod: Object) -> KubeletClient:
        name = pod["metadata"]["name"]
        node_name = (pod.get("spec") or {}).get("nodeName")
        if not node_name:
            raise bad_request(f"pod {name} does not have a host assigned")
        node = self._find("nodes", "", node_name)
        if node is None:
            raise bad_request(f"node {node_name} of pod {name} does not exist")
        return KubeletClient(node, self.kubelet_secret)

    async def _log(self, request: HttpRequest, info: ResourceInfo, namespace: str, name: str) -> HttpResponse | None:
        pod = self._pod(info, namespace, name)
        container = container_of(pod, request.query.get("container", ""))
        options = {key: request.query[key] for key in _LOG_OPTIONS if key in request.query}
        pieces, writer = await self._kubelet(pod).logs(_target("containerLogs", pod, options.items(), container))
        try:
            if upgrade.wanted(request) == "websocket":
                await send_log(request, pieces)
                return None
            await request.send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}
            )
            await first_of(_send_all(request, pieces), _disconnected(request))
        finally:
            writer.close()
        return None

    async def _exec(self, request: HttpRequest, info: ResourceInfo, namespace: str, name: str) -> HttpResponse | None:
        pod = self._pod(info, namespace, name)
        command = request.query_all("command")
        if not command:
            raise bad_request("you must specify at least 1 command for the container")
        container = container_of(pod, request.query.get("container", ""))
        options = [(key, request.query[key]) for key in _EXEC_OPTIONS if key in request.query]
        await self._bridged(request, pod, "exec", container, [*(("command", word) for word in command), *options])
        return None

    async def _attach(self, request: HttpRequest, info: ResourceInfo, namespace: str, name: str) -> HttpResponse | None:
        pod = self._pod(info, namespace, name)
        await self._bridged(request, pod, "attach", container_of(pod, request.query.get("container", "")), [])
        return None

    async def _bridged(
        self, request: HttpRequest, pod: Object, what: str, container: str, options: list[tuple[str, str]]
    ) -> None:
        """Carry the channels of an exec or attach between the client and the kubelet."""
        require_spoken(request)  # before the command is started
        socket, writer = await self._kubelet(pod).stream(_target(what, pod, options, container), EXEC_PROTOCOL)
        try:
            await _bridge(await accept(request), socket)
        except ConnectionError as problem:
            metadata = pod["metadata"]
            logger.debug("%s of %s/%s ended: %s", what, metadata["namespace"], metadata["name"], problem)
        finally:
            end(writer)

    async def _portforward(
        self, request: HttpRequest, info: ResourceInfo, namespace: str, name: str
    ) -> HttpResponse | None:
        pod = self._pod(info, namespace, name)
        socket, writer = await self._kubelet(pod).stream(_target("portForward", pod, []), FORWARD_PROTOCOL)
        try:
            await portforward.carry(request, socket)
        finally:
            end(writer)
        return None

    async def _proxy(self, request: HttpRequest, info: ResourceInfo, namespace: str, name: str) -> HttpResponse | None:
        scheme, pod_name, port = split_name(name)
        pod = self._pod(info, namespace, pod_name)
        ports = [one["containerPort"] for c in pod["spec"]["containers"] for one in c.get("ports") or ()]
        address = (pod.get("status") or {}).get("podIP")
        if not address:
            raise bad_request(f"address not allowed: pod {pod_name} has no address")
        return await forwarded(request, address, port or next(iter(ports), 80), scheme)

    async def _service_proxy(
        self, request: HttpRequest, info: ResourceInfo, namespace: str, name: str
    ) -> HttpResponse | None:
        scheme, service_name, port = split_service(name)
        service = self._find("services", namespace, service_name)
        if service is None:
            raise not_found(info, service_name)
        endpoints = self._find("endpoints", namespace, service_name)
        address, number = service_address(service, endpoints, port)
        return await forwarded(request, address, number, scheme)

    async def resource_metrics(self, node: Object) -> str:
        """Return the text of a node's /metrics/resource. Raises ApiFailure."""
        return await KubeletClient(node, self.kubelet_secret).text("/metrics/resource")

    async def _node_proxy(
        self, request: HttpRequest, info: ResourceInfo, namespace: str, name: str
    ) -> HttpResponse | None:
        """Pages of the node's kubelet, such as /stats/summary; nothing is written through it."""
        _, node_name, _ = split_name(name)
        node = self._find("nodes", "", node_name)
        if node is None:
            raise not_found(info, node_name)
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        path = "/".join(quote(part, safe="") for part in request.parts[_BEFORE_A_NODES_PATH:])
        query = request.scope["query_string"].decode("latin-1")
        status, kind, pieces, writer = await KubeletClient(node, self.kubelet_secret).page(
            f"/{path}{'?' if query else ''}{query}"
        )
        try:
            headers = [(b"content-type", kind.encode("latin-1"))]
            await request.send({"type": "http.response.start", "status": status, "headers": headers})
            await first_of(_send_all(request, pieces), _disconnected(request))
        finally:
            writer.close()
        return None


def container_of(pod: Object, wanted: str) -> str:
    """The container meant. Raises ApiFailure 400 when that is not one, or not said where there are several."""
    spec, name = pod.get("spec") or {}, pod["metadata"]["name"]
    plain = [c["name"] for c in spec.get("containers") or ()]
    every = plain + [c["name"] for key in ("initContainers", "ephemeralContainers") for c in spec.get(key) or ()]
    if not wanted:
        if len(plain) == 1:
            return str(plain[0])
        raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{' '.join(every)}]")
    if wanted not in every:
        raise bad_request(f"container {wanted} is not valid for pod {name}")
    return wanted


def _target(what: str, pod: Object, query: Iterable[tuple[str, str]], *container: str) -> str:
    metadata = pod["metadata"]
    path = "/".join(quote(part, safe="") for part in (metadata["namespace"], metadata["name"], *container))
    return f"/{what}/{path}?{urlencode(list(query))}"


async def _disconnected(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _send_all(request: HttpRequest, pieces: AsyncIterator[bytes]) -> None:
    with contextlib.suppress(*_HUNG_UP):  # what came is what there is
        async for piece in pieces:
            await request.send({"type": "http.response.body", "body": piece, "more_body": True})
    await request.send({"type": "http.response.body", "body": b""})


async def _bridge(client: Channels, kubelet: WebSocket) -> None:
    """Carry an exec or attach until the kubelet reports its end, or the client disconnects, which ends the command."""
    try:
        # NB: while the kubelet does not read, `_to_kubelet` cannot detect that the client disconnects.
        await first_of(_to_client(client, kubelet), _to_kubelet(client, kubelet), client.hung_up())
    finally:
        with contextlib.suppress(ConnectionError):
            await client.close()


async def _to_kubelet(client: Channels, kubelet: WebSocket) -> None:
    try:
        async for channel, data in client.messages():
            if data is None:
                await kubelet.send(bytes([CLOSE, channel]))
            elif channel in (STDIN, RESIZE):
                await kubelet.send(bytes([channel]) + data)
    except Closed:
        await asyncio.get_running_loop().create_future()  # the other direction sees the end, and ends this task


async def _to_client(client: Channels, kubelet: WebSocket) -> None:
    told = False
    with contextlib.suppress(Closed):
        while True:
            message = await kubelet.receive()
            if message and message[0] != CLOSE:
                told = told or message[0] == ERROR
                await client.send(message[0], message[1:])
    if not told:
        await client.send(ERROR, msgspec.json.encode(_LOST))
