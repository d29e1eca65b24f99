"""A watch over HTTP: what a client gets from `?watch=true`, line by line, for as long as it listens.

Invariants:

- Nothing is missed between the start and the first wait: replaying and registering happen in one step of the loop.
- A watcher that does not read is cut off rather than remembered without bound; it may resume where it was.
- Bookmarks tell a version up to which everything has been sent.
- A version that is too old is reported inside the stream (status 200, event ERROR with code 410), as real servers do:
  clients look for it there.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tinykube.apiserver.asgi import HttpRequest
from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.store import ADDED, ObjectStore, Selection, StoreEntry, StoreEvent, Table

MAX_WAITING_LINES = 50_000
_PIECE = 200  # objects of the start in one piece, so that many watchers at once need little memory
BOOKMARK_SECONDS = 60.0
_encode = msgspec.json.Encoder().encode

# (type, version of the object, whether it is the first line) -> the event's object as JSON; None: the entry's own JSON
Render = Callable[[str, StoreEntry, bool], bytes]


class WatchOptions(msgspec.Struct, frozen=True):
    """`start` is the version to go on from; None: begin with everything there is."""

    start: int | None
    timeout_seconds: float
    bookmarks: bool
    initial_bookmark: bool
    content_type: bytes = b"application/json"


def watch_timeout(asked: str | None) -> float:
    """Return the seconds until the server ends a watch; by default half an hour to an hour, so that not all end at
    once.
    """
    if asked and asked.isdigit() and int(asked) > 0:
        return float(asked)
    return 1800 + random.random() * 1800


class WatchStream:
    """One client's watch: events waiting to be sent, and the sender waiting for them."""

    def __init__(self, selection: Selection, render: Render | None) -> None:
        self.selection = selection
        self.lines: list[bytes] = []
        self.initial: Iterator[StoreEntry] = iter(())
        self.closed = False
        self._render = render
        self._first = True
        self._waiting: asyncio.Future[None] | None = None

    def deliver(self, event: StoreEvent) -> None:
        type = self.selection.seen_type(event)
        if type is None:
            return
        if len(self.lines) >= MAX_WAITING_LINES:
            self.close()
            return
        self.lines.append(event.line(type) if self._render is None else self._line(type, event.seen_as(type)))
        if self._waiting is not None:
            self._wake()

    def _line(self, type: str, entry: StoreEntry) -> bytes:
        raw = entry.raw if self._render is None else self._render(type, entry, self._first)
        self._first = False
        return line(type, raw)

    def take(self) -> bytes:
        """The next piece to send: of what there was at the start, a part at a time, then what waits; empty: nothing."""
        started = list(itertools.islice(self.initial, _PIECE))
        if started:
            return b"".join([self._line(ADDED, entry) for entry in started])
        lines, self.lines = self.lines, []
        return b"".join(lines)

    def close(self) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Until there is something to send, the stream is closed, or `seconds` have passed."""
        if self.lines or self.closed:
            return
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(seconds, self._wake)
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = None


def line(type: str, raw: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (type.encode(), raw)


class Watches:
    """All open streams, so that a server that stops can end them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._open: set[WatchStream] = set()

    def close(self) -> None:
        for stream in tuple(self._open):
            stream.close()

    async def serve(
        self,
        request: HttpRequest,
        info: ResourceInfo,
        table: Table,
        selection: Selection,
        options: WatchOptions,
        render: Render | None,
    ) -> None:
        """Answer the request; returns when the client has gone, the time is over or the server stops."""
        stream = WatchStream(selection, render)
        try:
            self._begin(info, table, selection, options, stream)
        except ApiFailure as failure:
            await _start(request, options)
            await request.send({"type": "http.response.body", "body": line("ERROR", _encode(failure.to_status()))})
            return
        table.watch(stream)
        self._open.add(stream)
        gone = asyncio.ensure_future(_disconnected(request, stream))
        try:
            await _start(request, options)
            await self._pump(request, info, stream, options)
        finally:
            gone.cancel()
            table.unwatch(stream)
            self._open.discard(stream)

    def _begin(
        self, info: ResourceInfo, table: Table, selection: Selection, options: WatchOptions, stream: WatchStream
    ) -> None:
        if options.start is None:
            stream.initial = iter(table.select(selection))
            if options.initial_bookmark:
                stream.lines.append(self._bookmark(info, initial=True))
            return
        if options.start > self._store.version:
            raise too_large(options.start, self._store.version)
        for event in table.events_after(options.start):
            stream.deliver(event)

    async def _pump(self, request: HttpRequest, info: ResourceInfo, stream: WatchStream, options: WatchOptions) -> None:
        now = time.monotonic()
        end = now + options.timeout_seconds
        bookmark = now + BOOKMARK_SECONDS if options.bookmarks else end
        while not stream.closed:
            if piece := stream.take():
                await request.send({"type": "http.response.body", "body": piece, "more_body": True})
                continue
            now = time.monotonic()
            if now >= end:
                break
            if now >= bookmark:
                stream.lines.append(self._bookmark(info))
                bookmark = now + BOOKMARK_SECONDS
                continue
            await stream.wait(min(end, bookmark) - now)
        if options.bookmarks and not stream.closed:
            body = self._bookmark(info)
            await request.send({"type": "http.response.body", "body": body, "more_body": True})
        await request.send({"type": "http.response.body", "body": b""})

    def _bookmark(self, info: ResourceInfo, *, initial: bool = False) -> bytes:
        metadata: dict[str, Any] = {"resourceVersion": str(self._store.version)}
        if initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj = {"kind": info.kind, "apiVersion": info.api_version, "metadata": metadata}
        return line("BOOKMARK", _encode(obj))


def too_large(asked: int, current: int) -> ApiFailure:
    """The client has seen a later version than this server: it lost its data, or the client talks to another one."""
    details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
    text = f"Timeout: Too large resource version: {asked}, current: {current}"
    return ApiFailure(504, "Timeout", text, {**details, "retryAfterSeconds": 1}, retry_after=1)


async def _start(request: HttpRequest, options: WatchOptions) -> None:
    headers = [(b"content-type", options.content_type), (b"cache-control", b"no-cache, private")]
    await request.send({"type": "http.response.start", "status": 200, "headers": headers})
    # An empty piece, so that the headers leave before the first event: clients wait for them.
    await request.send({"type": "http.response.body", "body": b"", "more_body": True})


async def _disconnected(request: HttpRequest, stream: WatchStream) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    stream.close()
