"""Calls and answers over one NRI socket, in both directions at once.

Invariants:

- A call ends with its answer or with an RpcError; at the latest when its time is over or the connection ends.
- An exception of a method becomes the call's status. Bytes that break the protocol end the connection.
- Requests are answered in tasks of their own: one that takes long holds up no other.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from kubekit.errors import InvalidInput, KubekitError
from kubekit.protocol import ttrpc_pb2 as pb
from kubekit.rpc import READ_SIZE, RpcError, Status, closed
from kubekit.ttrpc.frames import FrameKind, FrameReader, TtrpcMessage, framed

log = logging.getLogger("kubekit.nri")

Method = Callable[[bytes], Awaitable[Any]]
"""Answers a request (its message) with a message; what it raises is the status."""


class Connection:
    """One socket between a runtime and a plugin.

    Args:
        serves: the connection number on which we are called, whose `methods` are by "package.Service/Method".
        calls: the number on which we call.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        serves: int,
        calls: int,
        methods: Mapping[str, Method],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._serves = serves
        self._calls = calls
        self._methods = methods
        self._next = 1
        self._asked: dict[int, asyncio.Future[pb.Response]] = {}
        self._answers: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until the other side goes away, or cancelled; closes the socket. Raises Malformed."""
        frames = FrameReader(self._serves, self._calls)
        try:
            while data := await self._reader.read(READ_SIZE):
                for connection, message in frames.feed(data):
                    if connection == self._serves:
                        self._requested(message)
                    else:
                        self._answered(message)
        except ConnectionError as error:
            log.debug("connection lost: %s", error)
        finally:
            answers = list(self._answers)
            for task in answers:
                task.cancel()
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(RpcError(Status.UNAVAILABLE, "the connection was closed", where="NRI"))
            await asyncio.gather(*answers, return_exceptions=True)
            await closed(self._writer)

    def end(self) -> None:
        """Close the socket; `run` returns."""
        self._writer.transport.abort()

    async def call(self, method: str, request: bytes, *, timeout: float) -> bytes:
        """The answer to one call; `method` as "package.Service/Method". Raises RpcError.

        Args:
            timeout: seconds.
        """
        stream, self._next = self._next, self._next + 2
        service, _, name = method.rpartition("/")
        sent = pb.Request(service=service, method=name, payload=request, timeout_nano=int(timeout * 1e9))
        future: asyncio.Future[pb.Response] = asyncio.get_running_loop().create_future()
        self._asked[stream] = future
        try:
            async with asyncio.timeout(timeout):
                await self._send(self._calls, TtrpcMessage(stream, FrameKind.REQUEST, 0, sent.SerializeToString()))
                answer = await future
        except TimeoutError:
            raise RpcError(Status.DEADLINE_EXCEEDED, f"no answer within {timeout:g} s", where=method) from None
        except ConnectionError as error:
            raise RpcError(Status.UNAVAILABLE, str(error), where=method) from error
        finally:
            del self._asked[stream]
        if answer.status.code:
            known = answer.status.code in list(Status)
            status = Status(answer.status.code) if known else Status.UNKNOWN
            raise RpcError(status, answer.status.message, where=method)
        return answer.payload

    def _answered(self, message: TtrpcMessage) -> None:
        future = self._asked.get(message.stream)
        if message.kind != FrameKind.RESPONSE or future is None or future.done():
            return  # the answer to a call that was given up
        try:
            future.set_result(pb.Response.FromString(message.data))
        except DecodeError as error:
            future.set_exception(RpcError(Status.INTERNAL, f"the answer is no message: {error}", where="NRI"))

    def _requested(self, message: TtrpcMessage) -> None:
        if message.kind != FrameKind.REQUEST:
            return  # of a call with a stream, which this side never starts
        task = asyncio.create_task(self._answer(message))
        self._answers.add(task)
        task.add_done_callback(functools.partial(self._finished, message.stream))

    def _finished(self, stream: int, task: asyncio.Task[None]) -> None:
        self._answers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("call not answered stream=%s: %s", stream, error)

    async def _answer(self, message: TtrpcMessage) -> None:
        status, payload = pb.Status(), b""
        try:
            payload = await self._called(message)
        except RpcError as error:
            status = pb.Status(code=error.status, message=error.details)
        except KubekitError as error:
            code = Status.INVALID_ARGUMENT if isinstance(error, InvalidInput) else Status.FAILED_PRECONDITION
            status = pb.Status(code=code, message=str(error))
        except DecodeError as error:
            status = pb.Status(code=Status.INVALID_ARGUMENT, message=f"the request is no message: {error}")
        except Exception as error:
            log.exception("call failed")
            status = pb.Status(code=Status.INTERNAL, message=f"{type(error).__name__}: {error}")
        response = pb.Response(payload=payload)
        if status.code:
            response.status.CopyFrom(status)
        await self._send(
            self._serves, TtrpcMessage(message.stream, FrameKind.RESPONSE, 0, response.SerializeToString())
        )

    async def _called(self, message: TtrpcMessage) -> bytes:
        if message.stream % 2 == 0:
            raise RpcError(Status.INVALID_ARGUMENT, "streams of callers have odd numbers")
        if message.flags:
            raise RpcError(Status.UNIMPLEMENTED, "there are no calls with streams here")
        request = pb.Request.FromString(message.data)
        name = f"{request.service}/{request.method}"
        method = self._methods.get(name)
        if method is None:
            raise RpcError(Status.UNIMPLEMENTED, f"there is no {name}")
        answer: bytes = (await method(request.payload)).SerializeToString()
        return answer

    async def _send(self, connection: int, message: TtrpcMessage) -> None:
        self._writer.write(framed(connection, message))
        await self._writer.drain()
