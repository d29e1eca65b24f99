"""The HTTP side of the dashboard: an ASGI application that answers GET alone, to a browser that has the key.

The cluster's dashboard has the same pages behind another guard: `gate`.

Invariants:

- It listens on this machine only, and answers under its own address only: another site that has its name resolved to
  this machine is refused by the Host header, another user of the machine by the key.
- The key is in the address that the command prints; the browser has it in a cookie afterwards, which no script reads.
- The page loads nothing from elsewhere, runs no inline script and refuses frames: its Content-Security-Policy.
"""

from __future__ import annotations

import hmac
import logging
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Final, NamedTuple, Protocol

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
HEADERS: Final = {
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
    async def day(self) -> dict[str, Any]: ...
    async def sums(self, labels: Sequence[str], namespace: str, seconds: float) -> dict[str, Any]: ...


class ViewerPages(Protocol):
    """All that one viewer gets: the first page with its changes, and facts about single objects."""

    @property
    def answers(self) -> PageAnswers: ...
    def packed(self) -> bytes: ...
    def changes(self, after: int) -> AsyncIterator[bytes]: ...


class OwnPages(NamedTuple):
    """Those of a dashboard that has one viewer alone, the user that it runs for."""

    board: Board
    answers: PageAnswers

    def packed(self) -> bytes:
        """Return the snapshot of the first page, as `Board.packed` does."""
        return self.board.packed()

    def changes(self, after: int) -> AsyncIterator[bytes]:
        """Yield the changes of the first page, as `Board.changes` does."""
        return self.board.changes(after)


def own_pages(board: Board, answers: PageAnswers) -> ASGIApp:
    """Return the pages of a dashboard that has one viewer, without any guard."""
    own = OwnPages(board, answers)
    return pages_application(lambda request: own)


def guarded(pages: ASGIApp, key: str, hosts: Iterable[str]) -> ASGIApp:
    """Return an application.

    Args:
        pages: an application without any guard.
        key: a browser that has it gets the pages.
        hosts: the values of the Host header that it answers to.
    """
    return _Guard(pages, key, frozenset(hosts))


def pages_application(pages: Callable[[Request], ViewerPages]) -> ASGIApp:
    """Return the routes of the pages without any guard; `pages` returns what the viewer of a request gets."""
    files = page_files()

    def facts(request: Request) -> PageAnswers:
        return pages(request).answers

    async def page(request: Request) -> Response:
        return Response(files["index.html"], media_type="text/html")

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            return Response("404 Not Found\n", 404, media_type="text/plain")
        return Response(files[name], media_type=mimetypes.guess_type(name)[0])

    async def snapshot(request: Request) -> Response:
        return Response(pages(request).packed(), media_type="application/json", headers={"content-encoding": "gzip"})

    async def changes(request: Request) -> Response:
        # A browser that comes back names the last change that it has.
        number = request.headers.get("last-event-id") or request.query_params.get("after", "")
        after = int(number) if number.isdecimal() and len(number) < 20 else -1
        return StreamingResponse(pages(request).changes(after), media_type="text/event-stream")

    async def node(request: Request) -> Response:
        return await answered(lambda: facts(request).node(request.path_params["name"]))

    async def pod(request: Request) -> Response:
        return await answered(lambda: facts(request).pod(request.path_params["namespace"], request.path_params["name"]))

    async def viewer(request: Request) -> Response:
        return json_answer({}, 200)  # the user of the command: there is no other one

    async def waiting(request: Request) -> Response:
        return await answered(lambda: facts(request).waiting())

    async def cost(request: Request) -> Response:
        asked = request.query_params
        return await answered(lambda: facts(request).cost(asked.get("by", "namespace"), asked.get("since", "30d")))

    async def mine(request: Request) -> Response:
        return await answered(lambda: facts(request).mine(request.query_params.get("ns", "")))

    async def upgrades(request: Request) -> Response:
        return await answered(lambda: facts(request).upgrades())

    async def pools(request: Request) -> Response:
        return await answered(lambda: facts(request).pools())

    async def day(request: Request) -> Response:
        return await answered(lambda: facts(request).day())

    async def sums(request: Request) -> Response:
        asked = request.query_params
        labels = [one for one in asked.get("labels", "").split(",") if one]
        try:
            seconds = float(asked.get("seconds", ""))
        except ValueError:
            seconds = 0.0  # refused as a time
        return await answered(lambda: facts(request).sums(labels, asked.get("ns", ""), seconds))

    routes = [
        *page_routes(page),
        Route("/page/{name}", file),
        Route("/api/snapshot", snapshot),
        Route("/api/changes", changes),
        Route("/api/node/{name}", node),
        Route("/api/pod/{namespace}/{name}", pod),
        Route("/api/viewer", viewer),
        Route("/api/waiting", waiting),
        Route("/api/cost", cost),
        Route("/api/mine", mine),
        Route("/api/upgrades", upgrades),
        Route("/api/pools", pools),
        Route("/api/day", day),
        Route("/api/sums", sums),
    ]
    return Starlette(routes=routes)


def page_routes(page: Callable[[Request], Awaitable[Response]]) -> list[Route]:
    """Return the addresses of the pages; all have the same HTML."""
    paths = ("/", "/cost", "/mine", "/upgrades", "/pools", "/node/{name}", "/pod/{namespace}/{name}")
    return [Route(path, page) for path in paths]


def page_files() -> dict[str, bytes]:
    """Return the files of the page. Read once, and by their names alone: no path leads elsewhere."""
    folder = resources.files("gpuplane.dashboard").joinpath("page")
    return {file.name: file.read_bytes() for file in folder.iterdir()}


async def answered(answer: Callable[[], Awaitable[Any]]) -> Response:
    """Answer in JSON, also where there is no answer: what, where and cure."""
    try:
        return json_answer(await answer(), 200)
    except KubekitError as error:
        known: list[tuple[type[KubekitError], int]] = [(InvalidInput, 404), (Forbidden, 403), (NoAnswer, 504)]
        status = next((code for kind, code in known if isinstance(error, kind)), 503)
        if not isinstance(error, InvalidInput | Retryable):
            log.info("not answered: %s", error)
        texts = {"what": error.what, "where": error.where, "cure": error.cure}
        return json_answer({name: harmless(text, coloured=False) for name, text in texts.items()}, status)


def json_answer(data: Any, status: int) -> Response:
    """Return an answer in JSON."""
    return Response(msgspec.json.encode(data), status, media_type="application/json")


def with_headers(send: Send, headers: Mapping[str, str] = HEADERS) -> Send:
    """Return a `send` that adds headers to every answer."""

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message.get("headers", ()),
                *((name.encode(), value.encode()) for name, value in headers.items()),
            ]
        await send(message)

    return sent


class _Guard:
    """Lets requests through that are for this address and have the key, and adds the headers to every answer."""

    def __init__(self, inner: ASGIApp, key: str, hosts: frozenset[str]) -> None:
        self._inner = inner
        self._key = key
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._inner if scope["type"] != "http" else self._refusal(Request(scope)) or self._inner
        await answer(scope, receive, with_headers(send))

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that comes no further; None for one that does."""
        host = request.headers.get("host", "")
        if host not in self._hosts:
            return plain("421 Misdirected Request: the dashboard answers under the address that was printed\n", 421)
        cookie = f"gpuplane-{host.rpartition(':')[2]}"  # browsers do not tell ports of one machine apart
        if self._opens(request.query_params.get("key", "")):
            answer = RedirectResponse(request.url.path, 303)
            answer.set_cookie(cookie, self._key, max_age=_YEARS, httponly=True, samesite="lax")
            return answer
        if not self._opens(request.cookies.get(cookie, "")):
            return plain("403 Forbidden: open the address that `gpuplane dashboard` printed, with its key\n", 403)
        return None

    def _opens(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._key.encode())


def plain(text: str, status: int) -> Response:
    """Return an answer of plain text."""
    return Response(text, status, media_type="text/plain")
