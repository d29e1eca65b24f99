"""Forwards requests to the leading replica, so that kube-scheduler may call any replica.

The holder of the lease has its address in its name: `<pod>/<address>:<port>`. Without a leader, or if the leader does
not answer, the answer is 503 and kube-scheduler tries the pod again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from kubekit.errors import KubekitError
from kubekit.http_server import HttpAnswer
from kubekit.kube.http import HttpPool

SECONDS: Final = 12.0
LEADER: Final = "/leader"  # begins the paths that a replica answers itself or not at all


def identity(name: str, address: str, port: int) -> str:
    """Return a replica's identity in the lease."""
    return f"{name}/{f'[{address}]' if ':' in address else address}:{port}"


def address_of(holder: str) -> tuple[str, int] | None:
    """Return the address of a holder of the lease; None when the identity has none."""
    host, colon, port = holder.rpartition("/")[2].rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        return None
    return host.strip("[]"), int(port)


class Forwarder:
    """`tls` returns the context to call the leader with over HTTPS; None for HTTP."""

    def __init__(self, tls: Callable[[], ssl.SSLContext | None] = lambda: None) -> None:
        self._tls = tls
        self._pool: HttpPool | None = None
        self._place: tuple[str, int, ssl.SSLContext | None] | None = None

    async def forward(self, holder: str, path: str, body: bytes) -> HttpAnswer:
        """Return the leader's answer; `holder` is the holder of the lease."""
        place = address_of(holder)
        if place is None:
            return unavailable("no replica of the extender leads at the moment")
        tls = self._tls()  # another one after a renewal
        if (*place, tls) != self._place or self._pool is None:
            await self.aclose()
            self._pool = HttpPool(place[0], place[1], tls=tls)
            self._place = (*place, tls)
        head = (
            f"POST {LEADER}{path} HTTP/1.1\r\nHost: {place[0]}:{place[1]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        try:
            async with asyncio.timeout(SECONDS):
                response = await self._pool.request(head + body, timeout=SECONDS, replay=False)
        except (KubekitError, TimeoutError) as error:
            return unavailable(f"the leading replica at {place[0]}:{place[1]} does not answer: {error}")
        return HttpAnswer(response.body, HTTPStatus(response.status), "application/json")

    async def aclose(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()
            self._pool = None


def unavailable(text: str) -> HttpAnswer:
    return HttpAnswer(f"{text}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)
