"""`gpuplane dashboard` in front of the cluster's dashboard: passes the browser's requests on through the API server.

The user's token goes along in a header of its own. The API server has to allow `services/proxy` of the dashboard's
Service; the role `gpuplane:dashboard-viewer` has that and nothing else.

The page itself is of this machine, since the API server changes the links of pages that it passes on; its files and its
data are the cluster's, and fit each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from gpuplane import names
from gpuplane.cli.cost_store import DASHBOARD_PROXY
from gpuplane.dashboard.board import again
from gpuplane.dashboard.server import json_answer, page_files, page_routes, plain
from kubekit.errors import KubekitError
from kubekit.kube import Client
from kubekit.kube.http import ClientResponse

_PASSED: Final = (b"content-type", b"content-encoding")  # headers of answers
_LOCAL: Final = "the dashboard is served from this machine"


class ClusterDashboard:
    """The dashboard in the cluster, for one user."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, path: str, parameters: dict[str, str] | None = None) -> ClientResponse:
        """Return the answer to a GET, whatever its status. Raises Unreachable."""
        # NB: the API server unpacks what its caller does not say that it takes.
        headers = {**await self._headers(), "Accept-Encoding": "gzip"}
        return await self._client.answer(DASHBOARD_PROXY + path, parameters, headers=headers)

    async def stream(self, path: str, parameters: dict[str, str]) -> AsyncGenerator[bytes, None]:
        """Yield an answer as it comes. Raises ApiError."""
        stream = self._client.stream(DASHBOARD_PROXY + path, parameters, headers=await self._headers())
        async with contextlib.aclosing(stream):
            async for data in stream:
                yield data

    async def _headers(self) -> dict[str, str]:
        return {names.DASHBOARD_TOKEN_HEADER: f"Bearer {await self._client.bearer_token()}"}


async def find_dashboard(client: Client) -> tuple[ClusterDashboard | None, str]:
    """Return the cluster's dashboard and the name of its user; else None, and why there is none for this user.

    The reason is empty where none is installed. Raises Unreachable.
    """
    found = ClusterDashboard(client)
    if not await client.bearer_token():
        there = await client.answer(DASHBOARD_PROXY + "/healthz")
        why = "your kubeconfig has no token that the cluster's dashboard could ask about"
        return None, "" if there.status == 404 else f"{why}: {_LOCAL}"
    answer = await found.get("/api/viewer")
    if answer.status == 200:
        return found, str(msgspec.json.decode(answer.body).get("user", ""))
    if answer.status == 404:
        return None, ""
    if answer.status == 403:
        role = f"an administrator binds the role gpuplane:dashboard-viewer in {names.OPERATOR_NAMESPACE}"
        return None, f"you may not reach the cluster's dashboard ({role}): {_LOCAL}"
    return None, f"the cluster's dashboard does not answer ({answer.status} {_what(answer)}): {_LOCAL}"


def forwarding_application(dashboard: ClusterDashboard) -> ASGIApp:
    """Return the routes of the pages without any guard, answered by the cluster's dashboard."""
    index = page_files()["index.html"]

    async def page(request: Request) -> Response:
        return Response(index, media_type="text/html")

    async def passed(request: Request) -> Response:
        path = request.url.path
        if ".." in path.split("/") or "\\" in path:
            return plain("404 Not Found\n", 404)
        try:
            answer = await dashboard.get(path_of(request), dict(request.query_params))
        except KubekitError as error:
            return json_answer({"what": error.what, "where": error.where, "cure": error.cure}, 504)
        if answer.status in (301, 302, 303, 401):
            what = "the API server does not accept your token any more"
            return json_answer({"what": what, "where": "", "cure": "gpuplane dashboard"}, 403)
        headers = {name.decode(): value.decode("latin-1") for name, value in answer.headers.items() if name in _PASSED}
        return Response(answer.body, answer.status, headers)

    async def changes(request: Request) -> Response:
        # A browser that comes back names the last change that it has.
        after = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return StreamingResponse(_until_lost(dashboard, after), media_type="text/event-stream")

    routes = [*page_routes(page), Route("/api/changes", changes)]
    return Starlette(routes=[*routes, Route("/api/{path:path}", passed), Route("/page/{name}", passed)])


def path_of(request: Request) -> str:
    """Return the path of a request as it was sent, with its quoted characters."""
    raw: bytes = request.scope["raw_path"]
    return raw.decode("latin-1")


async def _until_lost(dashboard: ClusterDashboard, after: str) -> AsyncIterator[bytes]:
    try:
        async with contextlib.aclosing(dashboard.stream("/api/changes", {"after": after})) as stream:
            async for data in stream:
                yield data
    except KubekitError:
        # The page asks for the snapshot, and its answer has the reason.
        yield again()


def _what(answer: ClientResponse) -> str:
    try:
        found: Any = msgspec.json.decode(answer.body)
        return str(found.get("message") or found.get("what") or "")
    except (msgspec.DecodeError, AttributeError):
        return ""
