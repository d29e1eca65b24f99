"""Streams of changes are shared out between users; no user's streams keep others away."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.dashboard.streams import MOST_STREAMS, OpenStream, TooManyStreams, ViewerStreams
from packages.gpuplane.tests.dashboard.in_cluster import PATIENCE, InCluster, unverified


def test_the_user_with_most_streams_loses_the_oldest() -> None:
    streams, stack = ViewerStreams(most=3), contextlib.ExitStack()
    first, second, third = (stack.enter_context(streams.one("many")) for _ in range(3))
    with pytest.raises(TooManyStreams, match="3 pages"):
        streams.check("many")
    assert stack.enter_context(streams.one("many")).ended
    streams.check("other")
    other = stack.enter_context(streams.one("other"))
    assert [one.ended for one in (first, second, third, other)] == [True, False, False, False]
    assert stack.enter_context(streams.one("other")).ended, "it would have as many as the other user"
    assert not stack.enter_context(streams.one("third")).ended
    stack.close()
    streams.check("many")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=60), st.integers(1, 6))
def test_there_are_never_more_and_none_is_refused_who_has_less(events: list[tuple[bool, int]], most: int) -> None:
    streams = ViewerStreams(most)
    held: dict[int, list[tuple[contextlib.ExitStack, OpenStream]]] = {}
    for opens, user in events:
        mine = held.setdefault(user, [])
        if not opens and mine:
            mine.pop(0)[0].close()
            continue
        living = {one: sum(not stream.ended for _, stream in all_of) for one, all_of in held.items()}
        stack = contextlib.ExitStack()
        stream = stack.enter_context(streams.one(str(user)))
        if stream.ended:
            assert sum(living.values()) == most and living[user] + 1 >= max(living.values())
        mine.append((stack, stream))
        assert sum(not one.ended for all_of in held.values() for _, one in all_of) <= most
    for all_of in held.values():
        for stack, _ in all_of:
            stack.close()
    streams.check("any")


async def test_one_user_with_all_streams_keeps_nobody_away(page: InCluster) -> None:
    head = f"GET /api/changes?after=%d HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n"
    after = (await page.snapshot("ml-user"))["version"]
    writers, answers = [], []
    try:
        async with asyncio.timeout(PATIENCE):
            for _ in range(MOST_STREAMS + 20):
                reader, writer = await asyncio.open_connection("127.0.0.1", page.port, ssl=unverified())
                writers.append(writer)
                writer.write((head % after + "Authorization: Bearer ml-user\r\n\r\n").encode())
                answers.append((await reader.readline()).split()[1])
        assert answers.count(b"200") >= MOST_STREAMS and answers[-1] == b"503"
        for path in ("/healthz", "/readyz", "/api/snapshot"):
            assert (await page.get(path, "everything")).status == 200
        async with page.stream("everything", (await page.snapshot("everything"))["version"]) as reader:
            async with asyncio.timeout(PATIENCE):
                assert b"event: " in await reader.readuntil(b"event: ")
    finally:
        for writer in writers:
            writer.transport.abort()
        for writer in writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()
