"""The embedded control plane in a thread of the tests: API server, controllers and scheduler, over HTTPS."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kubekit.kube.tasks import first_of
from tinykube.aggregation import Aggregator, FrontProxy
from tinykube.apiserver.hooks import User
from tinykube.apiserver.identity import ADMIN
from tinykube.apiserver.server import ApiServer
from tinykube.controllers import Controllers
from tinykube.scheduler import Scheduler, load

KUBELET_SECRET: Final = "the-secret-of-kubelets"
ADMIN_TOKEN: Final = "admin-token"
JANE_TOKEN: Final = "jane-token"


@contextmanager
def running(directory: Path, settings: Path) -> Iterator[tuple[str, Path]]:
    """Its URL and its authority's PEM file. `settings` is a KubeSchedulerConfiguration."""
    started: Future[tuple[str, Path]] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def main() -> None:
        try:
            loop.run_until_complete(_serve(directory, settings, started, stop))
        except BaseException as problem:
            if started.done():
                raise
            started.set_exception(problem)
        finally:
            loop.close()

    thread = threading.Thread(target=main, name="embedded-cluster")
    thread.start()
    try:
        yield started.result(30)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
    assert not thread.is_alive()


async def _serve(directory: Path, settings: Path, started: Future[tuple[str, Path]], stop: asyncio.Event) -> None:
    server = await ApiServer.start(directory / "pki")
    server.extensions.identity.add(ADMIN_TOKEN, ADMIN)
    server.extensions.identity.add(JANE_TOKEN, User("jane", ("system:authenticated",)))
    server.extensions.streams.kubelet_secret = KUBELET_SECRET
    proxy = FrontProxy(directory / "pki")
    aggregator = Aggregator(server.registry, proxy, server.extensions.page, server.extensions.resolve)
    started.set_result((server.url, server.authority))
    try:
        await first_of(
            aggregator.run(),
            Controllers(server.registry, ca=server.authority.read_text()).run(),
            Scheduler(server.registry, load(settings)).run(),
            stop.wait(),
        )
    finally:
        await server.stop()
