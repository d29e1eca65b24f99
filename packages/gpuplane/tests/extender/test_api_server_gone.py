"""The API server goes away in the middle of a bind, over real connections: an answer in time, and nothing leaks."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator

import pytest

from gpuplane.scheduler import binding, settlement
from gpuplane.scheduler.reservation import LIMIT_SECONDS, ReservationState
from kubekit.kube import ApiEndpoint, Client
from kubekit.kube.auth import StaticAuth
from tests.support.extender_world import Running, World, extender, gpu_pod

POST, READ = 0.4, 0.3


class Wire:
    """The way to the API server: `swallow` is what no longer passes, "questions" or "answers"."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.swallow = ""
        self.away = False  # no server listens
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.away:
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._open |= {writer, back}
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._pass(reader, back, "questions"), self._pass(there, writer, "answers"))
        for one in (writer, back):
            self._open.discard(one)
            one.close()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, what: str) -> None:
        while data := await source.read(1 << 16):
            if self.swallow != what:
                target.write(data)
        target.close()

    def end(self) -> None:
        """Connections end; new ones are as they should be, unless it is `away`."""
        self.swallow = ""
        for one in list(self._open):
            one.close()


@pytest.fixture
async def way(cluster: World) -> AsyncIterator[Wire]:
    made = Wire(cluster.server.port)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.end()
        server.close()


@pytest.fixture
async def through(cluster: World, way: Wire, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    """An extender that reaches the API server through the wire, and is less patient than usual."""
    monkeypatch.setattr(binding, "POST_SECONDS", POST)
    monkeypatch.setattr(settlement, "READ_SECONDS", READ)
    monkeypatch.setitem(LIMIT_SECONDS, ReservationState.DOUBT, 0.2)
    tls = ssl.create_default_context(cafile=str(cluster.server.authority))
    client = Client(ApiEndpoint(host="127.0.0.1", port=way.port, auth=StaticAuth(token="admin"), tls=tls))
    async with client, extender(client) as running:
        await cluster.node("n1", 1)
        await running.until(lambda: running.leader.cluster.ledger.node("n1"))
        yield running
        running.well()


@pytest.mark.parametrize("lost", ["questions", "answers"])
async def test_a_bind_is_answered_in_time_and_settled_later(
    cluster: World, through: Running, way: Wire, lost: str
) -> None:
    pod = await cluster.pod(gpu_pod("a", (60, 20)))
    await through.until(lambda: pod["metadata"]["uid"] in through.leader.cluster.by_uid)
    way.swallow = lost
    began = time.monotonic()
    error = await through.bind(pod, "n1")
    assert "did not answer" in error
    assert time.monotonic() - began < POST + READ + 2
    # It is unknown whether the pod is bound: another pod must not get its GPU.
    other = await cluster.pod(gpu_pod("b", (60, 20)))
    assert (await through.filter(other, ["n1"]))["NodeNames"] == []
    way.end()
    came_true = lost == "answers"
    reservations = through.leader.reservations
    await through.until(lambda: not len(reservations))
    assert bool((await cluster.get("a")).spec.node_name) == came_true
    await through.until(lambda: through.leader.cluster.ledger.node("n1").core == ((40,) if came_true else (100,)))
    assert await through.bind(pod, "n1") == "", "tried again"
    await through.seen(pod["metadata"]["uid"])
    assert through.leader.cluster.ledger.node("n1").core == (40,)
    through.well()


async def test_a_bind_that_was_never_sent_holds_nothing(cluster: World, through: Running, way: Wire) -> None:
    pod = await cluster.pod(gpu_pod("a", (60, 20)))
    await through.until(lambda: pod["metadata"]["uid"] in through.leader.cluster.by_uid)
    way.away = True
    way.end()
    began = time.monotonic()
    assert await through.bind(pod, "n1") != ""
    assert time.monotonic() - began < POST + READ + 2
    reservations = through.leader.reservations
    await through.until(lambda: not len(reservations) or reservations.count(ReservationState.DOUBT))
    way.away = False
    await through.until(lambda: not len(reservations))
    assert through.leader.cluster.ledger.node("n1").core == (100,)
    assert await through.bind(pod, "n1") == "", "tried again"
    await through.seen(pod["metadata"]["uid"])
    through.well()
