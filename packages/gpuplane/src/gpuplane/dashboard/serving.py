"""The HTTP server of the dashboard, on this machine or in the cluster: uvicorn with the settings of both."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from gpuplane.dashboard.connections import BoundedConnection
from kubekit.connections import Connections

STOP_SECONDS: Final = 1
HANDSHAKE_SECONDS: Final = 10.0
MOST_HANDSHAKES: Final = 100  # of TLS at once; the one that has waited for its caller for longest gives way


class DashboardServer(uvicorn.Server):
    """uvicorn without its signal handlers: who runs it ends it.

    With TLS it accepts connections by itself, since uvicorn reads certificates from files alone and waits a minute for
    each of any number of handshakes.

    Args:
        tls: HTTPS only.
    """

    def __init__(self, application: ASGIApp, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        config = uvicorn.Config(
            application,
            http=BoundedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve the listening sockets until `should_exit`."""
        if self._tls is None:
            await super().serve(sockets)
            return
        handshakes = Connections(MOST_HANDSHAKES)
        tls = self._tls

        async def opened(accepted: socket.socket) -> None:
            with handshakes.waiting():
                await self._open(accepted, tls)

        accepting = [asyncio.create_task(handshakes.accept(one, opened)) for one in sockets or ()]
        try:
            await super().serve([])
        finally:
            for task in accepting:
                task.cancel()
            await asyncio.gather(*accepting, return_exceptions=True)
            await handshakes.end()

    async def _open(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        """Give a connection to uvicorn's protocol after its handshake, or close it."""

        def protocol() -> BoundedConnection:
            return BoundedConnection(config=self.config, server_state=self.server_state, app_state={})

        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(protocol, accepted, ssl=tls, ssl_handshake_timeout=HANDSHAKE_SECONDS)
        except BaseException as error:
            accepted.close()
            if not isinstance(error, OSError):
                raise
