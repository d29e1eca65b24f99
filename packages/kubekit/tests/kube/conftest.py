"""A small API server to test the client against: one store, HTTP/1.1, and every fault a network or server can show.

It knows lists (limit and continue), watches (resource versions, bookmarks on demand), create, merge patch, apply as
merge, put with conflicts, delete, and nothing of schemas. `faults` are taken one a request, in order.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kubekit.kube import ApiEndpoint, Client
from kubekit.kube.auth import StaticAuth
from kubekit.kube.certificates import CLIENT, SERVER, Validity, issue, make_authority
from tests.support.virtual_time import VirtualClock


@dataclass
class Request:
    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Fault:
    """The fault of one request, instead of its answer or around it.

    `drop`: "before" nothing is read back and the connection closes, "during" half of the body is sent, "after" the
    connection closes once the answer is out. `status` with `headers` and `body` answers by itself. `hang` never does.
    """

    drop: str = ""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    hang: bool = False
    only: Callable[[Request], bool] = lambda request: True


class FakeServer:
    """The store and its HTTP face. `log` has every request, `faults` what to do to the next ones."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {}  # collection path -> key -> object
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []  # version, collection, type, object
        self.version = 0
        self.oldest = 0  # watches from before this version get 410
        self.gone_in_stream = False
        self.log: list[Request] = []
        self.arrived = asyncio.Event()
        self.faults: list[Fault] = []
        self.changed = asyncio.Condition()
        self.connections: set[asyncio.StreamWriter] = set()
        self.opened = 0
        self.watches = 0
        self.bookmark_now = 0
        self.close_watches = 0

    # -- the store, used by tests directly -------------------------------------------------------------------------

    async def put(self, collection: str, name: str, namespace: str = "", **rest: Any) -> dict[str, Any]:
        key = f"{namespace}/{name}" if namespace else name
        self.version += 1
        old = self.objects.setdefault(collection, {}).get(key)
        meta = dict(rest.pop("metadata", {})) | {"name": name, "resourceVersion": str(self.version)}
        if namespace:
            meta["namespace"] = namespace
        meta.setdefault("uid", old["metadata"]["uid"] if old else f"uid-{self.version}")
        obj = {"metadata": meta, **rest}
        self.objects[collection][key] = obj
        await self._emit(collection, "MODIFIED" if old else "ADDED", obj)
        return obj

    async def remove(self, collection: str, key: str) -> None:
        obj = self.objects[collection].pop(key)
        self.version += 1
        last = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        await self._emit(collection, "DELETED", last)

    async def _emit(self, collection: str, kind: str, obj: dict[str, Any]) -> None:
        self.history.append((self.version, collection, kind, obj))
        async with self.changed:
            self.changed.notify_all()

    async def compact(self) -> None:
        """Delete the history: a client that watches from an earlier version has to list again."""
        self.oldest = self.version
        self.history.clear()

    async def nudge(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def bookmark(self) -> None:
        self.bookmark_now += 1
        await self.nudge()

    async def end_watches(self) -> None:
        self.close_watches += 1
        await self.nudge()

    def cut(self) -> None:
        """All connections die at once."""
        for writer in list(self.connections):
            writer.transport.abort()

    def counts(self) -> Counter[str]:
        return Counter("WATCH" if "watch" in r.params else r.method for r in self.log)

    # -- HTTP ------------------------------------------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        self.opened += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, as tests make it do
        finally:
            self.connections.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        url = urlsplit(target)
        params = {k: v[0] for k, v in parse_qs(url.query).items()}
        request = Request(method, url.path, params, headers, json.loads(raw) if raw else None)
        self.log.append(request)
        self.arrived.set()
        fault = next((f for f in self.faults if f.only(request)), None)
        if fault is not None:
            self.faults.remove(fault)
            if fault.hang:
                await reader.read()
            if fault.drop == "before":
                return False
            if fault.status:
                self._answer(writer, fault.status, fault.body or b"", fault.headers)
                return True
        if "watch" in params:
            await self._watch(request, writer)
            return False
        status, data = await self._handle(request)
        body = json.dumps(data).encode()
        if fault is not None and fault.drop == "during":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body[: len(body) // 2])
            await writer.drain()
            return False
        self._answer(writer, status, body, {})
        await writer.drain()
        return not (fault is not None and fault.drop == "after")

    @staticmethod
    def _answer(writer: asyncio.StreamWriter, status: int, body: bytes, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += [f"{k}: {v}" for k, v in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def _handle(self, request: Request) -> tuple[int, Any]:
        collection, key = self._locate(request.path)
        store = self.objects.setdefault(collection, {})
        if request.method == "POST":
            meta = request.body["metadata"]
            name, space = meta["name"], meta.get("namespace", key.partition("/")[0] if "/" in key else "")
            if (f"{space}/{name}" if space else name) in store:
                return 409, status(409, "AlreadyExists", f"{name} already exists")
            return 201, await self.put(collection, name, space, **request.body)
        if request.method == "GET" and key in ("", *{k.partition("/")[0] + "/" for k in store}):
            return 200, self._list(collection, store, request.params, key)
        if key not in store and not (request.method == "PATCH" and "apply" in request.headers["content-type"]):
            return 404, status(404, "NotFound", f"{key} not found")
        if request.method == "GET":
            return 200, store[key]
        space, _, name = key.rpartition("/")
        if request.method == "DELETE":
            wanted = ((request.body or {}).get("preconditions") or {}).get("uid")
            if wanted and wanted != store[key]["metadata"]["uid"]:
                return 409, status(409, "Conflict", "the UID in the precondition differs")
            await self.remove(collection, key)
            return 200, {"kind": "Status", "status": "Success"}
        if request.method == "PUT":
            sent = request.body["metadata"].get("resourceVersion")
            if sent and sent != store[key]["metadata"]["resourceVersion"]:
                return 409, status(409, "Conflict", "the object has been modified")
            return 200, await self.put(collection, name, space, **request.body)
        return 200, await self.put(collection, name, space, **merge(store.get(key, {}), request.body))

    def _locate(self, path: str) -> tuple[str, str]:
        """(collection path without namespace, key); the key of a namespaced collection is "ns/"."""
        parts = path.strip("/").split("/")
        base = 2 if parts[0] == "api" else 3
        head, tail = parts[:base], parts[base:]
        if tail[0] == "namespaces" and len(tail) > 2:
            return "/" + "/".join([*head, tail[2]]), f"{tail[1]}/{tail[3] if len(tail) > 3 else ''}"
        return "/" + "/".join([*head, tail[0]]), tail[1] if len(tail) > 1 else ""

    def _list(
        self, collection: str, store: dict[str, dict[str, Any]], params: dict[str, str], prefix: str
    ) -> dict[str, Any]:
        keys = sorted(k for k in store if k.startswith(prefix))
        start, version = 0, self.version
        if "continue" in params:
            start, version = (int(part) for part in params["continue"].split("."))
        size = int(params.get("limit", "0")) or len(keys)
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        if start + size < len(keys):
            meta["continue"] = f"{start + size}.{version}"
        return {"kind": "List", "metadata": meta, "items": [store[k] for k in keys[start : start + size]]}

    async def _watch(self, request: Request, writer: asyncio.StreamWriter) -> None:
        collection, _ = self._locate(request.path)
        seen = int(request.params.get("resourceVersion") or self.version)
        if seen < self.oldest:
            gone = json.dumps(status(410, "Expired", "too old resource version")).encode()
            if not self.gone_in_stream:
                self._answer(writer, 410, gone, {})
                return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        if seen < self.oldest:
            self._line(writer, "ERROR", status(410, "Expired", "too old resource version"))
            writer.write(b"0\r\n\r\n")
            return
        self.watches += 1
        bookmarks, ends = self.bookmark_now, self.close_watches
        try:
            while not writer.is_closing():
                for version, where, kind, obj in list(self.history):
                    if version > seen and where == collection:
                        self._line(writer, kind, obj)
                        seen = version
                if self.bookmark_now > bookmarks:
                    bookmarks = self.bookmark_now
                    seen = self.version
                    self._line(writer, "BOOKMARK", {"metadata": {"resourceVersion": str(seen)}})
                if self.close_watches > ends:
                    writer.write(b"0\r\n\r\n")
                    return
                await writer.drain()
                async with self.changed:
                    await self.changed.wait()
        finally:
            self.watches -= 1

    @staticmethod
    def _line(writer: asyncio.StreamWriter, kind: str, obj: dict[str, Any]) -> None:
        line = json.dumps({"type": kind, "object": obj}).encode() + b"\n"
        # In two chunks, so that every test also sees an event cut in the middle.
        half = len(line) // 2
        for part in (line[:half], line[half:]):
            writer.write(b"%x\r\n" % len(part) + part + b"\r\n")


def status(code: int, reason: str, message: str, causes: list[dict[str, str]] | None = None) -> dict[str, Any]:
    details = {"causes": causes} if causes else {}
    return {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}


def merge(base: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(base) if isinstance(base, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


class Harness:
    """A running fake server and clients to it."""

    def __init__(self) -> None:
        self.server = FakeServer()
        self.slept: list[float] = []
        self._clients: list[Client] = []
        self._listener: asyncio.Server | None = None
        self.port = 0

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._listener = await asyncio.start_server(self.server.serve, "127.0.0.1", self.port, ssl=tls)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """The server goes away, its store stays."""
        if self._listener is not None:
            self._listener.close()
            self.server.cut()
            self._listener = None

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    def client(self, *, timeout: float = 10.0, token: str = "t0") -> Client:
        endpoint = ApiEndpoint(host="127.0.0.1", port=self.port, auth=StaticAuth(token=token))
        client = Client(endpoint, user_agent="test", sleep=self._sleep, timeout=timeout)
        self._clients.append(client)
        return client

    async def aclose(self) -> None:
        for client in self._clients:
            await client.aclose()
        await self.stop()
        while self.server.connections:
            await self.server.nudge()
            await asyncio.sleep(0)


class HurriedClock(VirtualClock):
    """Sleeps take no time at all: for code whose pauses do not matter to the test."""

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(scope="session")
def make_clock() -> type[VirtualClock]:
    return VirtualClock


@pytest.fixture(scope="session")
def hurried() -> type[HurriedClock]:
    return HurriedClock


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    harness = Harness()
    await harness.start()
    yield harness
    await harness.aclose()


@pytest.fixture(scope="session")
def fault() -> type[Fault]:
    return Fault


@pytest.fixture(scope="session")
def make_harness() -> type[Harness]:
    """For tests that build their own (hypothesis runs many examples in one test)."""
    return Harness


@pytest.fixture(scope="session")
def pki(tmp_path_factory) -> Path:
    """A CA, a certificate for 127.0.0.1, a client certificate."""
    directory = tmp_path_factory.mktemp("pki")

    now = datetime.datetime.now(datetime.UTC)
    validity = Validity(now - datetime.timedelta(hours=1), now + datetime.timedelta(days=2))
    authority = make_authority("ca", validity)
    (directory / "ca.crt").write_bytes(authority.certificate_pem)
    for name, hosts, usage in (("server", ("127.0.0.1",), SERVER), ("client", (), CLIENT)):
        made = issue(authority, name, validity, hosts=hosts, usages=(usage,))
        (directory / f"{name}.crt").write_bytes(made.certificate_pem)
        (directory / f"{name}.key").write_bytes(made.key_pem)
    return directory
