"""The HTTP side of the dashboard: an ASGI application that answers GET alone, to a browser that has the key.

Invariants:

- It listens on this machine only, and answers under its own address only: another site that has its name resolved to
  this machine is refused by the Host header, another user of the machine by the key.
- The key is in the address that the command prints; the browser has it in a cookie afterwards, which no script reads.
- The page loads nothing from elsewhere, runs no inline script and is shown in no frame: its Content-Security-Policy.
"""

from __future__ import annotations

import hmac
import logging
import mimetypes
from collections.abc import Awaitable, Callable, Iterable
from importlib import resources
from typing import Any, Final, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuplane.cli.terminal import harmless
from gpuplane.dashboard.board import Board
from kubekit.errors import InvalidInput, KubekitError, NoAnswer, Retryable
from kubekit.kube import Forbidden

log = logging.getLogger("gpuplane.dashboard")

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_YEARS: Final = 400 * 24 * 3600


class PageAnswers(Protocol):
    """The facts about single objects that the pages ask for."""

    async def node(self, name: str) -> dict[str, Any]: ...
    async def pod(self, namespace: str, name: str) -> dict[str, Any]: ...
    async def waiting(self) -> list[dict[str, Any]]: ...
    async def mine(self, namespace: str) -> dict[str, Any]: ...
    async def cost(self, by: str, since: str) -> dict[str, Any]: ...
    async def upgrades(self) -> dict[str, Any]: ...
    async def pools(self) -> dict[str, Any]: ...


def application(board: Board, answers: PageAnswers, key: str, hosts: Iterable[str]) -> ASGIApp:
    """Return the application.

    Args:
        key: a browser that has it gets the pages.
        hosts: the values of the Host header that it answers to.
    """
    files = _files()

    async def page(request: Request) -> Response:
        return Response(files["index.html"], media_type="text/html")

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            return Response("404 Not Found\n", 404, media_type="text/plain")
        return Response(files[name], media_type=mimetypes.guess_type(name)[0])

    async def snapshot(request: Request) -> Response:
        return Response(board.packed(), media_type="application/json", headers={"content-encoding": "gzip"})

    async def changes(request: Request) -> Response:
        # A browser that comes back names the last change that it has.
        number = request.headers.get("last-event-id") or request.query_params.get("after", "")
        after = int(number) if number.isdecimal() and len(number) < 20 else -1
        return StreamingResponse(board.changes(after), media_type="text/event-stream")

    async def node(request: Request) -> Response:
        return await _answered(lambda: answers.node(request.path_params["name"]))

    async def pod(request: Request) -> Response:
        return await _answered(lambda: answers.pod(request.path_params["namespace"], request.path_params["name"]))

    async def waiting(request: Request) -> Response:
        return await _answered(answers.waiting)

    async def cost(request: Request) -> Response:
        asked = request.query_params
        return await _answered(lambda: answers.cost(asked.get("by", "namespace"), asked.get("since", "30d")))

    async def mine(request: Request) -> Response:
        return await _answered(lambda: answers.mine(request.query_params.get("ns", "")))

    async def upgrades(request: Request) -> Response:
        return await _answered(answers.upgrades)

    async def pools(request: Request) -> Response:
        return await _answered(answers.pools)

    routes = [
        Route("/", page),
        Route("/cost", page),
        Route("/mine", page),
        Route("/upgrades", page),
        Route("/pools", page),
        Route("/node/{name}", page),
        Route("/pod/{namespace}/{name}", page),
        Route("/page/{name}", file),
        Route("/api/snapshot", snapshot),
        Route("/api/changes", changes),
        Route("/api/node/{name}", node),
        Route("/api/pod/{namespace}/{name}", pod),
        Route("/api/waiting", waiting),
        Route("/api/cost", cost),
        Route("/api/mine", mine),
        Route("/api/upgrades", upgrades),
        Route("/api/pools", pools),
    ]
    return _Guard(Starlette(routes=routes), key, frozenset(hosts))


def _files() -> dict[str, bytes]:
    """Return the files of the page. Read once, and by their names alone: no path leads elsewhere."""
    folder = resources.files("gpuplane.dashboard").joinpath("page")
    return {file.name: file.read_bytes() for file in folder.iterdir()}


async def _answered(answer: Callable[[], Awaitable[Any]]) -> Response:
    """Answer in JSON, also where there is no answer: what, where and cure."""
    try:
        return _json(await answer(), 200)
    except KubekitError as error:
        known: list[tuple[type[KubekitError], int]] = [(InvalidInput, 404), (Forbidden, 403), (NoAnswer, 504)]
        status = next((code for kind, code in known if isinstance(error, kind)), 503)
        if not isinstance(error, InvalidInput | Retryable):
            log.info("not answered: %s", error)
        texts = {"what": error.what, "where": error.where, "cure": error.cure}
        return _json({name: harmless(text, coloured=False) for name, text in texts.items()}, status)


def _json(data: Any, status: int) -> Response:
    return Response(msgspec.json.encode(data), status, media_type="application/json")


class _Guard:
    """Lets requests through that are for this address and have the key, and adds the headers to every answer."""

    def __init__(self, inner: ASGIApp, key: str, hosts: frozenset[str]) -> None:
        self._inner = inner
        self._key = key
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name.encode(), value.encode()) for name, value in _HEADERS.items()),
                ]
            await send(message)

        answer = self._inner if scope["type"] != "http" else self._refusal(Request(scope)) or self._inner
        await answer(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that comes no further; None for one that does."""
        host = request.headers.get("host", "")
        if host not in self._hosts:
            return _plain("421 Misdirected Request: the dashboard answers under the address that was printed\n", 421)
        cookie = f"gpuplane-{host.rpartition(':')[2]}"  # browsers do not tell ports of one machine apart
        if self._opens(request.query_params.get("key", "")):
            answer = RedirectResponse(request.url.path, 303)
            answer.set_cookie(cookie, self._key, max_age=_YEARS, httponly=True, samesite="lax")
            return answer
        if not self._opens(request.cookies.get(cookie, "")):
            return _plain("403 Forbidden: open the address that `gpuplane dashboard` printed, with its key\n", 403)
        return None

    def _opens(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._key.encode())


def _plain(text: str, status: int) -> Response:
    return Response(text, status, media_type="text/plain")
