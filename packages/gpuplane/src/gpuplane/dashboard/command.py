"""`gpuplane dashboard`: serves the dashboard to this machine's browser, with the rights of the kubeconfig's user.

It ends at Ctrl-C. Nothing is installed on the cluster, and nothing is written to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
import time
from argparse import Namespace
from collections.abc import AsyncIterator

from gpuplane.cli.status_reading import Follower, cluster_name
from gpuplane.cli.terminal import Console
from gpuplane.cli.use_reading import UseReader
from kubekit.errors import NoAnswer, Terminal
from kubekit.kube import Client
from kubekit.kube.tasks import first_of

try:
    from gpuplane.dashboard.server import application
    from gpuplane.dashboard.serving import DashboardServer
except ModuleNotFoundError as error:
    raise Terminal(
        f"the dashboard's packages are not installed: {error.name}", cure="pip install 'gpuplane[dashboard]'"
    ) from None

from gpuplane.dashboard.answers import PageFacts
from gpuplane.dashboard.board import Board
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
    async with (
        Client.connect(options.kubeconfig, options.context, user_agent="gpuplane-dashboard") as client,
        _following(client, options.timeout) as follower,
    ):
        # A viewer of an earlier process has a smaller number, and gets the snapshot again.
        use, today = UseReader(client), TodayReader(client)
        measured = lambda: (use.current, today.current)  # noqa: E731
        board = Board(follower, cluster_name(client), first=time.time_ns() // 1_000_000, measured=measured)
        port = listening.getsockname()[1]
        key = secrets.token_urlsafe(24)
        hosts = (f"{HOST}:{port}", f"localhost:{port}")
        server = DashboardServer(application(board, PageFacts(client, follower, lambda: use.current), key, hosts))
        screen.print(f"http://{HOST}:{port}/?key={key}")
        screen.out.flush()
        screen.say(f"The dashboard of {cluster_name(client)}, with your rights, for this machine; Ctrl-C ends it")
        tasks = [
            asyncio.create_task(board.run(), name="dashboard board"),
            asyncio.create_task(server.serve([listening]), name="dashboard server"),
            asyncio.create_task(use.run(board.update), name="dashboard use"),
            asyncio.create_task(today.run(board.update), name="dashboard today"),
        ]
        try:
            await first_of(*tasks)
        finally:
            # The streams end first: the server waits for answers that are not complete.
            board.close()
            server.should_exit = True
            await tasks[1]
            for task in (tasks[0], *tasks[2:]):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def _following(client: Client, seconds: float) -> AsyncIterator[Follower]:
    """The overview of the cluster. Raises NoAnswer where it is not complete in time."""
    follower = Follower(client)
    try:
        try:
            async with asyncio.timeout(seconds):
                await follower.start()
        except TimeoutError:
            raise NoAnswer(f"the cluster did not answer within {seconds:g} s", where=cluster_name(client)) from None
        yield follower
    finally:
        await follower.aclose()
