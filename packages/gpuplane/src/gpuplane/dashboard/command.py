"""`gpuplane dashboard`: serves the dashboard to this machine's browser, with the rights of the kubeconfig's user.

Where the cluster has a dashboard that the user's token reaches, it is the one that the browser gets; otherwise this
process reads the cluster itself. It ends at Ctrl-C. Nothing is installed on the cluster, and nothing is written to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from gpuplane.cli.cost_store import stored_in_cluster
from gpuplane.cli.status_reading import Follower, cluster_name
from gpuplane.cli.terminal import Console
from gpuplane.cli.use_reading import UseReader
from kubekit.errors import NoAnswer, Terminal
from kubekit.kube import Client
from kubekit.kube.tasks import first_of

try:
    from starlette.types import ASGIApp

    from gpuplane.dashboard.forwarding import find_dashboard, forwarding_application
    from gpuplane.dashboard.server import guarded, own_pages
    from gpuplane.dashboard.serving import DashboardServer
except ModuleNotFoundError as error:
    raise Terminal(
        f"the dashboard's packages are not installed: {error.name}", cure="pip install 'gpuplane[dashboard]'"
    ) from None

from gpuplane.dashboard.answers import PageFacts
from gpuplane.dashboard.board import Board
from gpuplane.dashboard.day import day_in_cluster
from gpuplane.dashboard.today import TodayReader

HOST = "127.0.0.1"


def run(options: Namespace, screen: Console) -> int:
    """Serve until SIGINT or SIGTERM; 0 then."""
    listening = listen(options.port)
    try:
        asyncio.run(_until_signalled(options, screen, listening))
    finally:
        listening.close()
    return 0


def listen(port: int) -> socket.socket:
    """Return a listening socket of this machine alone; port 0 takes any. Raises Terminal when the port is in use."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        found.bind((HOST, port))
    except OSError as error:
        found.close()
        raise Terminal(
            f"cannot listen on port {port}: {error.strerror}",
            where=f"{HOST}:{port}",
            cure="leave --port out for any that is free",
        ) from error
    found.listen(128)
    found.setblocking(False)
    return found


async def _until_signalled(options: Namespace, screen: Console, listening: socket.socket) -> None:
    task = asyncio.ensure_future(_serve(options, screen, listening))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _serve(options: Namespace, screen: Console, listening: socket.socket) -> None:
    async with Client.connect(options.kubeconfig, options.context, user_agent="gpuplane-dashboard") as client:
        if not options.local:
            async with _in_time(client, options.timeout):
                dashboard, said = await find_dashboard(client)
            if dashboard is not None:
                announced = f"The dashboard in {cluster_name(client)}, as {said}, for this machine; Ctrl-C ends it"
                server = _announce(screen, listening, forwarding_application(dashboard), announced)
                await _until_ended(server, [server.serve([listening])], lambda: None)
                return
            if said:
                screen.say(f" {screen.glyph('warn')} {said}")
        async with _following(client, options.timeout) as follower:
            await _serve_local(client, follower, screen, listening)


async def _serve_local(client: Client, follower: Follower, screen: Console, listening: socket.socket) -> None:
    # A viewer of an earlier process has a smaller number, and gets the snapshot again.
    stored = stored_in_cluster(client)
    use, today = UseReader(client), TodayReader(client, stored)
    measured = lambda: (use.current, today.current)  # noqa: E731
    board = Board(follower, cluster_name(client), first=time.time_ns() // 1_000_000, measured=measured)
    facts = PageFacts(client, follower, lambda: use.current, stored, day_in_cluster(client))
    pages = own_pages(board, facts)
    announced = f"The dashboard of {cluster_name(client)}, with your rights, for this machine; Ctrl-C ends it"
    server = _announce(screen, listening, pages, announced)
    others = [board.run(), use.run(board.update), today.run(board.update)]
    # The streams end first: the server waits for answers that are not complete.
    await _until_ended(server, [server.serve([listening]), *others], board.close)


def _announce(screen: Console, listening: socket.socket, pages: ASGIApp, text: str) -> DashboardServer:
    """Print the address with a new key, and return a server that has the pages for it."""
    port = listening.getsockname()[1]
    key = secrets.token_urlsafe(24)
    server = DashboardServer(guarded(pages, key, (f"{HOST}:{port}", f"localhost:{port}")))
    screen.print(f"http://{HOST}:{port}/?key={key}")
    screen.out.flush()
    screen.say(text)
    return server


async def _until_ended(
    server: DashboardServer, work: Sequence[Coroutine[Any, Any, None]], close: Callable[[], None]
) -> None:
    """Do all work, the server's first, until a part of it ends or this is cancelled; `close` ends streams."""
    serving, *others = [asyncio.create_task(one) for one in work]
    try:
        await first_of(serving, *others)
    finally:
        close()
        server.should_exit = True
        await serving
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@contextlib.asynccontextmanager
async def _in_time(client: Client, seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise NoAnswer(f"the cluster did not answer within {seconds:g} s", where=cluster_name(client)) from None


@contextlib.asynccontextmanager
async def _following(client: Client, seconds: float) -> AsyncIterator[Follower]:
    """The overview of the cluster. Raises NoAnswer where it is not complete in time."""
    follower = Follower(client)
    try:
        async with _in_time(client, seconds):
            await follower.start()
        yield follower
    finally:
        await follower.aclose()
