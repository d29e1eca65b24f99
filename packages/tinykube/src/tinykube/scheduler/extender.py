"""Scheduler extenders over HTTP: filter, prioritize, bind and preempt as kube-scheduler calls them.

The wire format is `k8s.io/kube-scheduler/extender/v1`: arguments with capitalised names; with `nodeCacheCapable` only
names of nodes travel. Calls run in a thread (plain http.client, one connection per extender, opened again after an
error), so that a slow extender never holds up the API server that shares this process. A Service in the URL is reached
at a ready pod behind it, under its own name as far as TLS is concerned. Certificates are read at each call, so that a
renewal needs no restart.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from kubekit.documents import DocumentError, decode_json
from kubekit.errors import Retryable
from kubekit.scheduling.podinfo import PodInfo
from kubekit.scheduling.preemption import Candidate
from tinykube.scheduler.config import ExtenderConfig
from tinykube.scheduler.extender_service import service_of
from tinykube.scheduler.extender_tls import ExtenderTls, ReadFile, read_disk

_MAX_EXTENDER_PRIORITY: Final = 10
_LONGEST_ANSWER: Final = 64 << 20  # bytes; whole nodes of a large cluster
_SCALE: Final = 100 // _MAX_EXTENDER_PRIORITY
Object = Mapping[str, Any]
# (namespace, service name, port) -> the address of a ready pod behind it, None when no pod is ready
Resolve = Callable[[str, str, int], tuple[str, int] | None]


class ExtenderError(Retryable):
    """The extender could not be asked, or said that it failed."""


class Filtered(msgspec.Struct, frozen=True):
    """`kept` node names; why others are out; `unresolvable` ones cannot be helped by preemption."""

    kept: tuple[str, ...]
    failed: dict[str, str]
    unresolvable: dict[str, str]


class ExtenderClient:
    """One configured extender. Every call raises ExtenderError when there is no good answer."""

    def __init__(self, config: ExtenderConfig, resolve: Resolve, read: ReadFile = read_disk) -> None:
        self.config = config
        self.service = service_of(config.url_prefix)
        self._resolve = resolve
        self._url = urlsplit(config.url_prefix.rstrip("/"))
        self._connection: http.client.HTTPConnection | None = None
        self._tls = ExtenderTls(config, self._url.scheme == "https", read)
        self._connected_to: tuple[tuple[str, int], ssl.SSLContext | None] = (("", 0), None)
        self._lock = threading.Lock()  # calls of one extender share its connection

    @property
    def ignored_resources(self) -> frozenset[str]:
        return frozenset(r.name for r in self.config.managed_resources if r.ignored_by_scheduler)

    def wants(self, pod: PodInfo, raw: Object) -> bool:
        """Return whether this pod is its business: no managed resources (all pods), or the pod names one of them."""
        managed = {resource.name for resource in self.config.managed_resources}
        return not managed or bool(managed & _named(raw["spec"]))

    async def filter(self, raw: Object, nodes: Sequence[Object]) -> Filtered:
        answer = await self._post(self.config.filter_verb, {"Pod": _bare(raw), **self._nodes(nodes)})
        if answer.get("error"):
            raise ExtenderError(answer["error"])
        names = answer.get("nodenames")
        if not self.config.node_cache_capable or names is None:
            items = (answer.get("nodes") or {}).get("items")
            names = [item["metadata"]["name"] for item in items or ()]
        known = {node["metadata"]["name"] for node in nodes}
        for name in names:
            if name not in known:
                claim = f'claims a filtered node "{name}" which is not found in the input node list'
                raise ExtenderError(f'extender "{self.config.url_prefix}" {claim}')
        return Filtered(
            tuple(names),
            answer.get("failednodes") or {},
            answer.get("failedandunresolvablenodes") or {},
        )

    async def prioritize(self, raw: Object, nodes: Sequence[Object]) -> dict[str, int]:
        """Scores to add, already weighted, on the scale of the built-in ones."""
        answer = await self._post(self.config.prioritize_verb, {"Pod": _bare(raw), **self._nodes(nodes)})
        return {item["host"]: item["score"] * self.config.weight * _SCALE for item in answer}

    async def bind(self, pod: PodInfo, node: str) -> None:
        body = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node}
        answer = await self._post(self.config.bind_verb, body)
        if answer and answer.get("error"):
            raise ExtenderError(answer["error"])

    async def preempt(
        self, raw: Object, candidates: Sequence[Candidate], pods: Mapping[str, Object]
    ) -> tuple[Candidate, ...]:
        """Return the remaining candidates, with the victims that the extender agrees to. `pods`: raw victims by key."""
        names_only = self.config.node_cache_capable
        victims = {
            c.node: {
                "Pods": [{"UID": v.uid} if names_only else _bare(pods[v.key]) for v in c.victims],
                "NumPDBViolations": c.violations,
            }
            for c in candidates
        }
        field = "NodeNameToMetaVictims" if names_only else "NodeNameToVictims"
        answer = await self._post(self.config.preempt_verb, {"Pod": _bare(raw), field: victims})
        kept = answer.get("nodenametometavictims") or {}
        remaining = []
        for candidate in candidates:
            agreed = kept.get(candidate.node)
            if agreed is None:
                continue
            lowered = _lowered(agreed)
            uids = {_lowered(pod).get("uid") for pod in lowered.get("pods") or ()}
            chosen = tuple(v for v in candidate.victims if v.uid in uids)
            remaining.append(Candidate(candidate.node, chosen, lowered.get("numpdbviolations") or 0))
        return tuple(remaining)

    def _nodes(self, nodes: Sequence[Object]) -> dict[str, Any]:
        if self.config.node_cache_capable:
            return {"Nodes": None, "NodeNames": [node["metadata"]["name"] for node in nodes]}
        return {"Nodes": {"metadata": {}, "items": [_bare(node) for node in nodes]}, "NodeNames": None}

    async def _post(self, verb: str, body: Mapping[str, Any]) -> Any:
        address = self._address(verb)
        try:
            tls = self._tls.context()
        except (OSError, ValueError) as error:  # of ssl too
            raise self._failure(f"{self._url.path}/{verb}", error) from error
        data = await asyncio.to_thread(self._exchange, verb, msgspec.json.encode(body), (address, tls))
        try:
            answer = decode_json(data, limit=_LONGEST_ANSWER) if data.strip() else {}
        except DocumentError as error:
            raise ExtenderError(f"extender at {self.config.url_prefix} answered no JSON: {error}") from error
        if isinstance(answer, list):
            return [_lowered(item) for item in answer]
        return _lowered(answer) if isinstance(answer, dict) else {}

    def _address(self, verb: str) -> tuple[str, int]:
        """Return the address to connect to; of a Service the address of a ready pod."""
        if self.service is None:
            return self._url.hostname or "", self._url.port or (443 if self._tls.is_used else 80)
        found = self._resolve(*self.service)
        if found is None:
            why = OSError(f'no endpoints available for service "{self.service.name}"')
            raise self._failure(f"{self._url.path}/{verb}", why)
        return found

    def _exchange(self, verb: str, body: bytes, place: tuple[tuple[str, int], ssl.SSLContext | None]) -> bytes:
        path = f"{self._url.path}/{verb}"
        with self._lock:
            if place != self._connected_to:
                self._close()  # its pod or a certificate is another one now
            self._connected_to = place
            reused = self._connection is not None
            try:
                return self._send(path, body)
            except (OSError, http.client.HTTPException) as error:
                self._close()
                # A kept connection may have been closed by the other side meanwhile; that is no answer yet.
                if not reused or isinstance(error, TimeoutError):
                    raise self._failure(path, error) from error
            try:
                return self._send(path, body)
            except (OSError, http.client.HTTPException) as error:
                self._close()
                raise self._failure(path, error) from error

    def _failure(self, path: str, error: Exception) -> ExtenderError:
        place = f"{self._url.scheme}://{self._url.netloc}{path}"
        # The words of Go's net package: people search for them.
        refused = isinstance(error, ConnectionRefusedError)
        why = f"dial tcp {self._url.netloc}: connect: connection refused" if refused else str(error)
        return ExtenderError(f'Post "{place}": {why}')

    def _send(self, path: str, body: bytes) -> bytes:
        if self._connection is None:
            self._connection = self._connect()
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        data = response.read()
        if response.status != 200:
            where = f"extender at URL {self.config.url_prefix}/{path.rsplit('/', 1)[-1]}"
            raise ExtenderError(f"failed {path.rsplit('/', 1)[-1]} with {where}, code {response.status}")
        return data

    def _connect(self) -> http.client.HTTPConnection:
        host, timeout = self._url.hostname or "", self.config.timeout_s
        address, tls = self._connected_to
        plain = socket.create_connection(address, timeout=timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = http.client.HTTPConnection(host, self._url.port, timeout=timeout)
        connection.auto_open = 0  # a lost connection is replaced by us, with an address that is looked up again
        try:
            name = self._tls.server_name or host
            connection.sock = plain if tls is None else tls.wrap_socket(plain, server_hostname=name)
        except BaseException:
            plain.close()
            raise
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        with self._lock:
            self._close()


def _bare(obj: Object) -> dict[str, Any]:
    """Without apiVersion and kind, which kube-scheduler's typed objects do not carry."""
    return {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}


def _lowered(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Go decodes field names in any case, so extenders write them in any case."""
    return {key.lower(): value for key, value in answer.items()}


def _named(spec: Mapping[str, Any]) -> set[str]:
    names: set[str] = set()
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        resources = container.get("resources") or {}
        names.update(resources.get("requests") or {}, resources.get("limits") or {})
    return names
