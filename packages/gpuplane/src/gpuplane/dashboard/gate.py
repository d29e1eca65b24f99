"""The guard of the cluster's dashboard: each request gets what the user of its token may see.

The token is in the header `Authorization`, or in `names.DASHBOARD_TOKEN_HEADER` through the API server's proxy, which
takes the first one off; a browser logs in with it. It never is in an address.

Invariants:

- Without a token that the API server accepts there are the log-in page, its files and the probes, and nothing of the
  cluster. A stream ends within seconds once the token is no longer accepted, or its user's rights changed.
- A request with a cookie has to be for a name of this server, and one that changes a session from its own page: pages
  of other sites can neither log in nor out, nor read answers.
- A token is in no answer and in no log line.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import AsyncIterator, Callable, Collection
from typing import Final
from urllib.parse import parse_qs, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuplane import names
from gpuplane.dashboard.board import again
from gpuplane.dashboard.server import (
    HEADERS,
    PageAnswers,
    json_answer,
    page_files,
    pages_application,
    plain,
    with_headers,
)
from gpuplane.dashboard.sessions import COOKIE, Sessions
from gpuplane.dashboard.streams import ViewerStreams
from gpuplane.dashboard.viewer_answers import ViewerAnswers, ViewerFacts
from gpuplane.dashboard.viewer_rights import ViewerRights
from gpuplane.dashboard.viewers import LONGEST_TOKEN
from kubekit.errors import KubekitError
from kubekit.kube.reviews import ReviewedUser

log = logging.getLogger("gpuplane.dashboard")

GATE_HEADERS: Final = {
    **HEADERS,
    "content-security-policy": HEADERS["content-security-policy"].replace("form-action 'none'", "form-action 'self'"),
    # NB: with no-referrer a browser's form does not name its origin.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_SERVICE: Final = f"{names.DASHBOARD_NAME}.{names.OPERATOR_NAMESPACE}"
# NB: no other name that begins with that of the Service: a site can have one.
LOCAL: Final = frozenset(
    ("localhost", names.DASHBOARD_NAME, _SERVICE, f"{_SERVICE}.svc", f"{_SERVICE}.svc.cluster.local")
)
_PAGES: Final = "gpuplane.pages"  # in the scope of a request: what its viewer gets
_REFUSED: Final = b"<!-- refused -->"
_LOG_IN: Final = "log in again: the token is not accepted, or no longer"


class ViewerPart:
    """The pages of one viewer, at the moment of one request.

    Args:
        token: returns the viewer's token, empty once the viewer has logged out.
    """

    def __init__(
        self,
        facts: ViewerFacts,
        streams: ViewerStreams,
        token: Callable[[], str],
        user: ReviewedUser,
        rights: ViewerRights,
    ) -> None:
        self._facts = facts
        self._streams = streams
        self._token = token
        self._user = user
        self._rights = rights
        self.answers: PageAnswers = ViewerAnswers(facts, user, rights)

    def packed(self) -> bytes:
        """Return the snapshot of the first page."""
        return self._facts.boards.of(self._rights).packed()

    async def changes(self, after: int) -> AsyncIterator[bytes]:
        """Yield the changes after a number, as long as user and rights are the same."""
        with self._streams.one(self._user.username) as mine:
            async for event in self._facts.boards.changes(self._rights, after):
                if mine.ended:
                    return
                if not await self._is_current():
                    yield again()
                    return
                yield event

    async def _is_current(self) -> bool:
        """Return whether the token still belongs to the user, and the user has the same rights."""
        try:
            user = await self._facts.viewers.user(self._token())
            if user != self._user:
                return False
            return await self._facts.viewers.rights(user, self._facts.boards.spaces) == self._rights
        except KubekitError:
            return False


class ViewerGate:
    """The application of the cluster's dashboard.

    Args:
        hosts: names of this server besides those of its Service and of this machine, for browsers.
    """

    def __init__(
        self, facts: ViewerFacts, sessions: Sessions, ready: Callable[[], bool], hosts: Collection[str]
    ) -> None:
        self._facts = facts
        self._sessions = sessions
        self._ready = ready
        self._streams = ViewerStreams()
        self._hosts = LOCAL | {host.lower() for host in hosts}
        self._inner: ASGIApp = pages_application(lambda request: request.scope[_PAGES])
        self._files = page_files()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        answer = await self._answer(request) or self._inner
        await answer(scope, receive, with_headers(send, GATE_HEADERS))

    async def _answer(self, request: Request) -> ASGIApp | None:
        """Return the answer to a request that comes no further. None for one of a viewer, whose pages are in the
        scope then.
        """
        path, method = request.url.path, request.method
        if path == "/healthz":
            return plain("ok\n", 200)
        if path == "/readyz":
            return plain("ok\n", 200) if self._ready() else plain("not ready\n", 503)
        shown = shown_token(request)
        if not shown and not self._is_here(request):
            return plain("421 Misdirected Request: the dashboard has no such name; an installation can add it\n", 421)
        if method == "POST" and path in ("/login", "/logout"):
            if not is_own_page(request):
                return plain("403 Forbidden: the request is from a page of another site\n", 403)
            return await self._log_in(request) if path == "/login" else self._log_out(request)
        if method not in ("GET", "HEAD"):
            return plain("405 Method Not Allowed\n", 405)
        if path == "/login":
            return self._log_in_page(200)
        if path.startswith("/page/"):
            return None
        return await self._enter(request, shown)

    async def _enter(self, request: Request, shown: str) -> ASGIApp | None:
        number = request.cookies.get(COOKIE, "")

        def token() -> str:
            return shown or self._sessions.token(number)

        try:
            user = await self._facts.viewers.user(token())
            if user is None:
                return _unknown(request)
            rights = await self._facts.viewers.rights(user, self._facts.boards.spaces)
            if request.url.path == "/api/viewer":
                return json_answer({"user": user.username, "session": not shown}, 200)
            if request.url.path == "/api/changes":
                self._streams.check(user.username)
        except KubekitError as error:
            log.info("not answered: %s", error)
            return json_answer({"what": error.what, "where": error.where, "cure": error.cure}, 503)
        request.scope[_PAGES] = ViewerPart(self._facts, self._streams, token, user, rights)
        return None

    async def _log_in(self, request: Request) -> Response:
        token = await _pasted(request)
        try:
            user = await self._facts.viewers.user(token)
        except KubekitError as error:
            log.info("not answered: %s", error)
            return self._log_in_page(503, "The API server does not answer. Try again.")
        if user is None:
            return self._log_in_page(403, "The API server does not accept this token.")
        log.info("logged in user=%s", user.username)
        answer = RedirectResponse("/", 303)
        number = self._sessions.open(token, user.username)
        answer.set_cookie(COOKIE, number, httponly=True, secure=True, samesite="strict", path="/")
        return answer

    def _log_out(self, request: Request) -> Response:
        self._sessions.close(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, httponly=True, secure=True, samesite="strict", path="/")
        return answer

    def _log_in_page(self, status: int, refused: str = "") -> Response:
        text = f'<p class="bad" role="alert">{refused}</p>' if refused else ""
        return Response(self._files["login.html"].replace(_REFUSED, text.encode()), status, media_type="text/html")

    def _is_here(self, request: Request) -> bool:
        """Return whether the request is for a name of this server. Numbers are: no other site has one as its name."""
        host = host_of(request.headers.get("host", ""))
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host in self._hosts
        return True


def shown_token(request: Request) -> str:
    """Return the bearer token of a request's headers; empty without one."""
    for name in (names.DASHBOARD_TOKEN_HEADER, "authorization"):
        kind, _, token = request.headers.get(name, "").strip().partition(" ")
        if kind.lower() == "bearer" and token:
            return token.strip()
    return ""


def host_of(header: str) -> str:
    """Return the name in a Host header, without its port; empty for an invalid one."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def is_own_page(request: Request) -> bool:
    """Return whether a browser sent the request from a page of this server, as far as the browser says."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    return site == "same-origin" and request.headers.get("origin") == f"https://{request.headers.get('host', '')}"


async def _pasted(request: Request) -> str:
    """Return the token of the log-in page's form; empty where it is too long or has none, or the caller leaves."""
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > LONGEST_TOKEN + 64:
                return ""
    except ClientDisconnect:
        return ""
    return parse_qs(body.decode("latin-1")).get("token", [""])[0].strip().removeprefix("Bearer ")


def _unknown(request: Request) -> Response:
    if request.url.path.startswith("/api/"):
        return json_answer({"what": "the API server does not accept the token", "where": "", "cure": _LOG_IN}, 401)
    return RedirectResponse("/login", 303)
