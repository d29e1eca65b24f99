"""`pods/NAME:PORT/proxy`: a page of a pod through the API server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tinykube.apiserver import ApiFailure, Registry, User
from tinykube.apiserver.extensions import install
from tinykube.apiserver.rest import Rest
from tinykube.apiserver.streams.proxy import split_name

PATH = "/api/v1/namespaces/default/pods"


class Page:
    """A server in a pod that answers with what it was asked."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(next(line[15:] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")))
        self.requests.append(head + await reader.readexactly(length))
        writer.write(b"HTTP/1.1 418 Teapot\r\nContent-Type: text/tea\r\nContent-Length: 4\r\n\r\nbrew")
        await writer.drain()
        writer.close()


async def made() -> tuple[Rest, str]:
    registry = Registry()
    extensions = install(registry)
    extensions.identity.add("admin", User("admin", ("system:masters",)))
    extensions.identity.add("guest", User("guest", ("system:authenticated",)))
    spec = {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 1}]}]}
    await registry.create("pods", "default", {"metadata": {"name": "p"}, "spec": spec})
    pod = registry.get("pods", "default", "p")
    assert pod is not None
    status = {**pod, "status": {**pod["status"], "phase": "Running", "podIP": "127.0.0.1"}}
    await registry.update("pods", "default", "p", status, subresource="status")
    return Rest(registry), "admin"


def received(body: bytes) -> Callable[[], Awaitable[dict[str, object]]]:
    """Return the `receive` of a caller that sends a request and stays."""
    messages: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": body})
    return messages.get


async def ask(
    app: Rest, method: str, path: str, token: str, body: bytes = b"", query: bytes = b""
) -> tuple[int, bytes]:
    sent = []

    receive = received(body)

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer " + token.encode()), (b"accept", b"*/*"), (b"x-mine", b"1")]
    await app(
        {"type": "http", "method": method, "path": path, "query_string": query, "headers": headers}, receive, send
    )
    return sent[0]["status"], sent[1]["body"]


async def test_the_request_and_the_answer_pass_as_they_are() -> None:
    app, token = await made()
    page = Page()
    server = await asyncio.start_server(page, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    answer = await ask(app, "POST", f"{PATH}/p:{port}/proxy/a b/\r\nX-Evil: 1/", token, b"milk", b"x=1")
    assert answer == (418, b"brew")
    head, _, body = page.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /a%20b/%0D%0AX-Evil%3A%201/?x=1 HTTP/1.1\r\n")
    assert b"x-mine: 1" in head and b"Bearer" not in head and b"X-Evil: 1" not in head
    assert body == b"milk"
    status, refused = await ask(app, "GET", f"{PATH}/p:{port}/proxy/", "guest")
    assert status == 403 and "pods/proxy" in json.loads(refused)["message"]
    server.close()


async def test_a_pod_that_does_not_answer_and_one_that_is_not_there() -> None:
    app, token = await made()
    status, answer = await ask(app, "GET", f"{PATH}/p/proxy/metrics", token)  # its first port, on which nothing listens
    assert status == 503 and "error trying to reach service" in json.loads(answer)["message"]
    assert (await ask(app, "GET", f"{PATH}/absent:80/proxy/", token))[0] == 404


async def test_a_service_leads_to_a_ready_pod_behind_its_port() -> None:
    app, token = await made()
    page = Page()
    server = await asyncio.start_server(page, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    registry = app.registry
    ports = [{"name": "web", "port": 80}, {"name": "other", "port": 81}]
    await registry.create("services", "default", {"metadata": {"name": "s"}, "spec": {"ports": ports}})
    services = PATH.replace("pods", "services")
    status, answer = await ask(app, "GET", f"{services}/s:web/proxy/", token)
    assert status == 503 and "no endpoints available" in json.loads(answer)["message"]
    subset = {"addresses": [{"ip": "127.0.0.1"}], "ports": [{"name": "web", "port": port}]}
    await registry.create("endpoints", "default", {"metadata": {"name": "s"}, "subsets": [subset]})
    for name in ("s:web", "s:80", "http:s:web"):
        assert await ask(app, "GET", f"{services}/{name}/proxy/a", token) == (418, b"brew")
    assert page.requests[0].startswith(b"GET /a HTTP/1.1\r\n")
    for name, status in (("s:other", 503), ("s:99", 503), ("s", 503), ("t:web", 404), ("ftp:s:web", 400)):
        assert (await ask(app, "GET", f"{services}/{name}/proxy/", token))[0] == status, name
    status, refused = await ask(app, "GET", f"{services}/s:web/proxy/", "guest")
    assert status == 403 and "services/proxy" in json.loads(refused)["message"]
    server.close()


async def test_an_answer_without_an_end_comes_piece_by_piece_until_the_caller_goes() -> None:
    app, token = await made()
    gone = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Own: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"3\r\none\r\n")
        await reader.read()
        gone.set()
        writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sent: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    messages: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": b""})
    scope = {"type": "http", "method": "GET", "path": f"{PATH}/p:{port}/proxy/", "query_string": b""}
    headers = [(b"authorization", b"Bearer " + token.encode())]
    asking = asyncio.create_task(app({**scope, "headers": headers}, messages.get, sent.put))
    async with asyncio.timeout(30):
        start = await sent.get()
        assert (start["status"], (b"x-own", b"1") in start["headers"]) == (200, True)  # type: ignore[operator]
        assert (await sent.get())["body"] == b"one"
        messages.put_nowait({"type": "http.disconnect"})
        await asking
        await gone.wait()
    server.close()


class Site:
    """A web site in a pod: a page with links, and a redirect for each other path."""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, path, _ = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)
        page = b'<a href="/next?x=1">/not a link</a> <img src=/pic.png><a href="rel"><a href="//other/"> ' + method
        length = str(len(page)).encode()
        if path.startswith(b"/page"):
            head = b"200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: " + length
            writer.write(b"HTTP/1.1 " + head + b"\r\n\r\n" + page)
        else:
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: /page\r\nContent-Length: 0\r\n\r\n")
        writer.close()


async def test_links_and_redirects_lead_through_the_api_server() -> None:
    app, token = await made()
    server = await asyncio.start_server(Site(), "127.0.0.1", 0)
    own = f"{PATH}/p:{server.sockets[0].getsockname()[1]}/proxy"
    status, page = await ask(app, "OPTIONS", f"{own}/page", token)
    wanted = (
        f'<a href="{own}/next?x=1">/not a link</a> <img src={own}/pic.png><a href="rel"><a href="//other/"> OPTIONS'
    )
    assert (status, page.decode()) == (200, wanted)
    status, headers = await head(app, f"{own}/elsewhere", token)
    assert (status, headers[b"location"].decode()) == (302, f"{own}/page")
    status, headers = await head(app, own, token, b"a=b")
    assert (status, headers[b"location"].decode()) == (301, f"{own}/?a=b")
    assert (await ask(app, "OPTIONS", f"{own}/page", "guest"))[0] == 403
    assert (await ask(app, "OPTIONS", f"{PATH}/p", token))[0] == 405
    server.close()


async def head(app: Rest, path: str, token: str, query: bytes = b"") -> tuple[int, dict[bytes, bytes]]:
    sent = await answered(app, path, [(b"authorization", b"Bearer " + token.encode())], query)
    return sent[0]["status"], dict(sent[0]["headers"])


async def answered(
    app: Rest, path: str, headers: list[tuple[bytes, bytes]], query: bytes = b""
) -> list[dict[str, Any]]:
    """Return the messages of the answer to a GET."""
    sent: list[dict[str, Any]] = []

    receive = received(b"")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": query, "headers": headers}
    await app(scope, receive, send)
    return sent


def test_names_of_pods_with_scheme_and_port() -> None:
    assert [split_name(name) for name in ("a", "a:80", "https:a:443", "https:a:")] == [
        ("http", "a", 0),
        ("http", "a", 80),
        ("https", "a", 443),
        ("https", "a", 0),
    ]
    for wrong in ("ftp:a:1", "a:web", "https:a:b:c"):
        with pytest.raises(ApiFailure, match="invalid pod request"):
            split_name(wrong)


@pytest.mark.parametrize("status", [200, 404])
async def test_head_has_the_length_of_the_page_and_no_body(status: int) -> None:
    app, token = await made()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} Any\r\nContent-Type: text/html\r\nContent-Length: 7\r\n\r\n".encode())
        await reader.read()  # no body follows, and the connection stays open
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    sent = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b""}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer " + token.encode())]
    path = f"{PATH}/p:{server.sockets[0].getsockname()[1]}/proxy/a"
    async with asyncio.timeout(10):
        await app(
            {"type": "http", "method": "HEAD", "path": path, "query_string": b"", "headers": headers}, receive, send
        )
    assert sent[0]["status"] == status and dict(sent[0]["headers"])[b"content-length"] == b"7"
    assert sent[1:] == [{"type": "http.response.body", "body": b""}]
    server.close()


async def test_nobody_in_a_pod_gets_the_token_or_the_names_of_the_caller() -> None:
    app, token = await made()
    page = Page()
    server = await asyncio.start_server(page, "127.0.0.1", 0)
    path = f"{PATH}/p:{server.sockets[0].getsockname()[1]}/proxy/a"
    secret = base64.urlsafe_b64encode(token.encode()).rstrip(b"=")
    protocol = b"base64url.bearer.authorization.k8s.io." + secret
    for protocols, wanted in ((b"chat, " + protocol, b"\r\nsec-websocket-protocol: chat\r\n"), (protocol, b"")):
        headers = [(b"sec-websocket-protocol", protocols), (b"x-mine", b"1")]
        headers += [(b"impersonate-user", b"jane"), (b"impersonate-group", b"system:masters")]
        assert (await answered(app, path, headers))[0]["status"] == 418
        found = page.requests[-1]
        assert (b"x-mine: 1" in found, b"impersonate" in found, secret in found) == (True, False, False)
        assert (wanted in found, b"sec-websocket-protocol" in found) == (True, bool(wanted))
    server.close()


class Fixed:
    """A server in a pod that answers every request with the same bytes, and leaves the connection open."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.gone = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self._answer)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            await reader.read()
        self.gone.set()
        writer.close()


@asynccontextmanager
async def path_to(server: Fixed) -> AsyncIterator[str]:
    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    yield f"{PATH}/p:{listening.sockets[0].getsockname()[1]}/proxy/a"
    listening.close()


@pytest.mark.parametrize("status", [200, 404])
async def test_each_cookie_of_a_pod_stays_one(status: int) -> None:
    app, token = await made()
    own = [b"a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT", b"b=2"]
    lines = b"".join(b"Set-Cookie: %s\r\n" % one for one in own)
    fixed = Fixed(b"HTTP/1.1 %d Any\r\n%sX-A: 1\r\nX-A: 2\r\nContent-Length: 2\r\n\r\nok" % (status, lines))
    async with path_to(fixed) as path:
        start, *bodies = await answered(app, path, [(b"authorization", b"Bearer " + token.encode())])
    assert (start["status"], b"".join(one["body"] for one in bodies)) == (status, b"ok")
    assert [value for name, value in start["headers"] if name == b"set-cookie"] == own
    assert dict(start["headers"])[b"x-a"] == b"1, 2"


async def test_an_answer_of_a_great_length_is_passed_on_as_it_comes() -> None:
    app, token = await made()
    fixed = Fixed(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 99999999999\r\n\r\none")
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    messages: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": b""})
    async with path_to(fixed) as path, asyncio.timeout(10):
        scope = {"type": "http", "method": "GET", "path": path, "query_string": b""}
        headers = [(b"authorization", b"Bearer " + token.encode())]
        asking = asyncio.create_task(app({**scope, "headers": headers}, messages.get, sent.put))
        start = await sent.get()
        assert (start["status"], dict(start["headers"])[b"content-length"]) == (200, b"99999999999")
        assert (await sent.get())["body"] == b"one"
        messages.put_nowait({"type": "http.disconnect"})
        await asking
        await fixed.gone.wait()


async def test_a_page_that_is_too_long_is_not_held_in_memory() -> None:
    app, token = await made()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 99999999999\r\n\r\n"
    async with path_to(Fixed(head + b"a" * (17 << 20))) as path, asyncio.timeout(20):
        start, body = await answered(app, path, [(b"authorization", b"Bearer " + token.encode())])
    assert start["status"] == 503 and "more than 16 MiB" in json.loads(body["body"])["message"]


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_may_have_a_length(status: int) -> None:
    app, token = await made()
    fixed = Fixed(b"HTTP/1.1 %d Any\r\nX-Own: 1\r\nContent-Length: 7\r\n\r\n" % status)
    async with path_to(fixed) as path, asyncio.timeout(10):
        start, *bodies = await answered(app, path, [(b"authorization", b"Bearer " + token.encode())])
    assert (start["status"], dict(start["headers"])[b"x-own"]) == (status, b"1")
    assert b"".join(one["body"] for one in bodies) == b""
