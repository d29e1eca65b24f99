"""The port: uvicorn with TLS around the REST application, started and stopped from inside a running event loop.

The socket is bound before anything else, so that a port in use is one clear error and not a server that half runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Iterator

import uvicorn

from kubekit.errors import Terminal
from kubekit.kube.tasks import first_of
from tinykube.apiserver.certificates import CertificateFiles
from tinykube.apiserver.rest import Rest

log = logging.getLogger("tinykube.apiserver")

_KEEP_ALIVE_SECONDS = 300  # clients keep connections for minutes; making one costs more than fifty requests
_STOP_SECONDS = 3


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: this process has others to stop as well."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any. Raises Terminal when the port is taken or not ours to take."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # NB: asyncio sets this only on sockets whose `proto` says TCP, which accepted ones do not. Without it every answer
    # waits 40 ms for the client's delayed acknowledgement.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise Terminal(
                f"port {port} is in use",
                where=f"{host}:{port}",
                cure="end the process that listens there, or set another --port (0: any free one)",
            ) from error
        raise Terminal(f"cannot listen: {error.strerror}", where=f"{host}:{port}") from error
    sock.listen(2048)
    sock.setblocking(False)
    return sock


class HttpServer:
    """`Rest` on a socket. `start` returns when it answers; `stop` ends open watches first."""

    def __init__(
        self,
        app: Rest,
        sock: socket.socket,
        certificates: CertificateFiles | None,
        *,
        protocol: type[asyncio.Protocol] | None = None,
    ) -> None:
        self.port: int = sock.getsockname()[1]
        self._app = app
        self._socket = sock
        self._task: asyncio.Task[None] | None = None
        config = uvicorn.Config(
            app,
            interface="asgi3",
            http=protocol or "httptools",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
            ssl_certfile=str(certificates.certificate) if certificates else None,
            ssl_keyfile=str(certificates.key) if certificates else None,
            # A client may show a certificate of the cluster's authority instead of a token.
            ssl_ca_certs=str(certificates.authority) if certificates else None,
            ssl_cert_reqs=ssl.CERT_OPTIONAL if certificates else ssl.CERT_NONE,
        )
        self._server = _Server(config)

    async def start(self) -> None:
        """Raises what keeps the server from starting."""
        self._task = asyncio.create_task(self._server.serve([self._socket]), name="apiserver-http")
        if await first_of(self._server.ready.wait(), self._task) == 1:
            raise Terminal("the HTTP server did not start", where=f"port {self.port}")
        log.info("serving on port %d", self.port)

    async def stop(self) -> None:
        if self._task is None:
            return
        self._app.close()
        self._server.should_exit = True
        await self._task
        self._task = None
        self._socket.close()
