"""The DNS server's shell: listens by UDP and TCP on one address, and answers.

Invariants: a message that cannot be read gets a refusal or nothing, and ends nothing; a client that waits for another
server keeps no other client waiting; at most `_MOST` questions are passed on at a time, others fail at once; at most
`MOST_STREAMS` connections are open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Callable
from typing import Any, Final

from tinykube.dns.forwarding import NameServers
from tinykube.dns.wire import (
    INTERNET,
    LARGEST,
    Answer,
    Name,
    Query,
    Record,
    RecordType,
    Result,
    WireError,
    lower,
    read_query,
    write_answer,
    write_refusal,
)
from tinykube.dns.zone import ClusterNames, is_of_cluster, is_reverse, look_up, look_up_address

_log = logging.getLogger("tinykube.dns")
PORT: Final = 53
_MOST: Final = 256
MOST_STREAMS: Final = 256
_IDLE_SECONDS: Final = 10.0
_LENGTH: Final = struct.Struct("!H")


class DNSServer:
    """Answers questions about `names`, and others by `others`."""

    def __init__(self, names: ClusterNames, others: NameServers) -> None:
        self._names = names
        self._others = others
        self._open_streams = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._datagrams: asyncio.DatagramTransport | None = None
        self._streams: asyncio.Server | None = None

    async def open(self, host: str, port: int = PORT) -> int:
        """Listen by UDP and TCP, and return the port. Raises OSError: then neither listens."""
        self._streams = await asyncio.start_server(self._accept, host, port)
        port = self._streams.sockets[0].getsockname()[1]
        try:
            loop = asyncio.get_running_loop()
            self._datagrams, _ = await loop.create_datagram_endpoint(
                lambda: _Listener(self._received), local_addr=(host, port)
            )
        except OSError:
            await self.close()
            raise
        return port

    async def close(self) -> None:
        for listener in (self._streams, self._datagrams):
            if listener is not None:
                listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.sleep(0)  # sockets are closed in the next turn of the loop

    def _received(self, data: bytes, client: Any) -> None:
        query = _read(data)
        if isinstance(query, bytes):
            self._send(query, client)
            return
        answer = self._at_once(query)
        if answer is not None:
            self._send(write_answer(query, answer, query.size), client)
        elif len(self._tasks) < _MOST:
            task = asyncio.create_task(self._answer_later(query, data, client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._send(write_answer(query, Answer(Result.FAILED), query.size), client)

    def _send(self, data: bytes, client: Any) -> None:
        if data and self._datagrams is not None:
            self._datagrams.sendto(data, client)

    async def _answer_later(self, query: Query, data: bytes, client: Any) -> None:
        self._send(await self._forwarded(query, data, stream=False), client)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open_streams += 1
        try:
            if self._open_streams <= MOST_STREAMS:
                await self._converse(reader, writer)
        finally:
            self._open_streams -= 1
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the questions of a connection, one after the other, until it ends or is silent for 10 s."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            while True:
                async with asyncio.timeout(_IDLE_SECONDS):
                    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                    data = await reader.readexactly(length)
                query = _read(data)
                if isinstance(query, bytes):
                    answer = query
                elif (known := self._at_once(query)) is not None:
                    answer = write_answer(query, known)
                else:
                    answer = await self._forwarded(query, data, stream=True)
                if not answer:
                    break
                writer.write(_LENGTH.pack(len(answer)) + answer)
                await writer.drain()

    def _at_once(self, query: Query) -> Answer | None:
        """Return the answer that needs no other server; None where one is to be asked."""
        if query.operation or query.space != INTERNET:
            return Answer(Result.NOT_IMPLEMENTED)
        if is_reverse(query.name):
            return look_up_address(self._names, query.name)
        if not is_of_cluster(query.name):
            return None
        answer, outside = self._known(query)
        return answer if outside is None else None

    def _known(self, query: Query) -> tuple[Answer, Name | None]:
        """Return the answer as far as the cluster has it, and the name to ask another server for, if there is one."""
        answer = look_up(self._names, query.name, query.kind)
        records = list(answer.records)
        seen = {lower(query.name)}
        while (target := _target(records, query.kind)) is not None and lower(target) not in seen:
            if not is_of_cluster(target):
                return Answer(records=tuple(records)), target
            seen.add(lower(target))
            answer = look_up(self._names, target, query.kind)
            records += answer.records
        return Answer(answer.result, tuple(records), answer.authority), None

    async def _forwarded(self, query: Query, data: bytes, *, stream: bool) -> bytes:
        size = LARGEST if stream else query.size
        if is_of_cluster(query.name):
            answer, outside = self._known(query)
            if outside is not None:
                result, found = await self._others.addresses(outside, query.kind)
                answer = Answer(result, (*answer.records, *found))
            return write_answer(query, answer, size)
        message = await self._others.ask(data, stream=stream)
        return message or write_answer(query, Answer(Result.FAILED), size)


class _Listener(asyncio.DatagramProtocol):
    def __init__(self, received: Callable[[bytes, Any], None]) -> None:
        self._received = received

    def datagram_received(self, data: bytes, addr: Any) -> None:
        try:
            self._received(data, addr)
        except Exception:  # a mistake of ours about one question must not end the server
            _log.exception("a question was not answered client=%s", addr)


def _read(data: bytes) -> Query | bytes:
    """Return the question; the bytes to answer where there is none, empty for no answer at all."""
    try:
        return read_query(data)
    except WireError as error:
        return b"" if error.id is None else write_refusal(error.id, Result.MALFORMED)


def _target(records: list[Record], kind: int) -> Name | None:
    """Return the name that the last record is a CNAME of, if another type is asked for."""
    if not records or kind == RecordType.CNAME or records[-1].kind != RecordType.CNAME:
        return None
    name = records[-1].data
    return name if isinstance(name, tuple) else None
