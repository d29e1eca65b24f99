"""The HTTP server of the dashboard, on this machine or in the cluster: uvicorn with the settings of both."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from gpuplane.dashboard.connections import BoundedConnection

STOP_SECONDS = 1


class DashboardServer(uvicorn.Server):
    """uvicorn without its signal handlers: who runs it ends it.

    Args:
        tls: HTTPS only.
    """

    def __init__(self, application: ASGIApp, tls: ssl.SSLContext | None = None) -> None:
        config = uvicorn.Config(
            application,
            http=BoundedConnection,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        config.load()
        config.ssl = tls  # uvicorn itself reads certificates from files alone
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
