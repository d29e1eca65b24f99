"""The board: what a viewer gets who stays, who comes back late, and while the API server is away."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from gpuplane.cli.status_views import Overview
from gpuplane.dashboard.board import REMEMBERED, Board
from gpuplane.dashboard.merging import apply
from packages.gpuplane.tests.cli.status_objects import gpunode, overview


class Counted:
    """A cluster of one node; the test changes its version, since any change will do."""

    def __init__(self) -> None:
        self.hindrance = ""
        self.version = "1"

    def seen(self) -> Overview:
        return overview([gpunode("n1")], [], {"n1": 2}, version=self.version)

    async def changed(self) -> None:
        await asyncio.Event().wait()


def events(text: bytes) -> tuple[str, str, dict[str, object]]:
    """(id, event, data) of one server-sent event."""
    fields = dict(line.split(": ", 1) for line in text.decode().strip().split("\n"))
    return fields.get("id", ""), fields["event"], msgspec.json.decode(fields["data"])


async def one(stream: AsyncIterator[bytes]) -> tuple[str, str, dict[str, object]]:
    async with asyncio.timeout(30):
        return events(await anext(stream))


def board_of(cluster: Counted, monotonic: Callable[[], float] = time.monotonic) -> Board:
    return Board(cluster, "prod", first=7, monotonic=monotonic)


def data_of(board: Board) -> tuple[int, dict[str, object]]:
    found = msgspec.json.decode(gzip.decompress(board.packed()))
    return found["version"], found["data"]


async def test_a_viewer_has_the_state_after_each_change() -> None:
    cluster = Counted()
    board = board_of(cluster)
    version, data = data_of(board)
    stream = board.changes(version)
    assert await one(stream) == ("", "state", {"why": "", "seconds": 0})
    cluster.version = "2"
    board.update()
    number, kind, changes = await one(stream)
    assert (number, kind) == ("8", "change")
    assert (8, apply(data, changes)) == data_of(board)


async def test_what_is_the_same_is_no_change() -> None:
    board = board_of(Counted())
    before = board.packed()
    board.update()
    assert board.packed() == before


async def test_a_viewer_who_comes_back_gets_what_was_missed() -> None:
    cluster = Counted()
    board = board_of(cluster)
    for version in ("2", "3", "4"):
        cluster.version = version
        board.update()
    stream = board.changes(8)
    assert [(await one(stream))[:2] for _ in range(3)] == [("9", "change"), ("10", "change"), ("", "state")]


async def test_a_viewer_of_another_process_or_from_long_ago_starts_again() -> None:
    cluster = Counted()
    board = board_of(cluster)
    for version in range(REMEMBERED + 2):
        cluster.version = str(version + 2)
        board.update()
    for number in (-1, 3, 8, 7 + REMEMBERED + 3):
        stream = board.changes(number)
        assert (await one(stream))[1] == "again"
        assert [text async for text in stream] == []


async def test_a_closed_board_ends_the_streams_of_its_viewers() -> None:
    board = board_of(Counted())
    stream = board.changes(7)
    await one(stream)
    rest = asyncio.ensure_future(anext(stream, b""))
    await asyncio.sleep(0)
    board.close()
    async with asyncio.timeout(30):
        assert await rest == b""


async def test_while_the_api_server_is_away_the_state_says_why_and_for_how_long() -> None:
    cluster, now = Counted(), [100.0]
    board = board_of(cluster, monotonic=lambda: now[0])
    cluster.hindrance = "connection refused"
    assert (await one(board.changes(7)))[2] == {"why": "connection refused", "seconds": 0}
    now[0] = 142.0
    assert (await one(board.changes(7)))[2] == {"why": "connection refused", "seconds": 42}
    cluster.hindrance = ""
    assert (await one(board.changes(7)))[2] == {"why": "", "seconds": 0}
