"""Answers load balancers on `healthCheckNodePort`: 200 where a node has a ready pod of a Service, else 503.

Source of the answer's form: pkg/proxy/healthcheck/service_health.go of Kubernetes 1.36.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Final

from tinykube.proxy.routes import ListenAddress, LocalHealth

_SECONDS: Final = 10.0
_MOST_BYTES: Final = 16 << 10
_END: Final = b"\r\n\r\n"


def answer(health: LocalHealth) -> bytes:
    """Return the response of HTTP. Every method and path gets the same one."""
    status = "200 OK" if health.ready else "503 Service Unavailable"
    body = {
        "service": {"namespace": health.namespace, "name": health.service},
        "localEndpoints": health.ready,
        "serviceProxyHealthy": True,
    }
    text = json.dumps(body, indent="\t")
    headers = {
        "Content-Type": "application/json",
        "X-Content-Type-Options": "nosniff",
        "X-Load-Balancing-Endpoint-Weight": str(health.ready),
        "Content-Length": str(len(text)),
        "Connection": "close",
    }
    lines = (f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items()))
    return "\r\n".join(lines).encode() + _END + text.encode()


class HealthListener:
    """One listening socket; `route` may change while it is open."""

    def __init__(self, route: LocalHealth) -> None:
        self.route = route
        self._server: asyncio.Server | None = None

    async def open(self, place: ListenAddress) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_server(self._accept, place.host, place.port, limit=_MOST_BYTES)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(_SECONDS):
                    await reader.readuntil(_END)
                    writer.write(answer(self.route))
                    await writer.drain()
        finally:
            writer.close()
