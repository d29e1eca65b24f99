"""Our little gRPC against the whole one, in both directions, and against peers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived, TrailersReceived

from kubekit.errors import InvalidInput, Terminal
from kubekit.protocol import deviceplugin_pb2 as pb
from kubekit.protocol.sockets import address
from kubekit.rpc import RpcError, Status, call, framed
from kubekit.rpc_server import serving

ECHO, FAIL, SLOW, LARGE, DECODE = "/t.T/Echo", "/t.T/Fail", "/t.T/Slow", "/t.T/Large", "/t.T/Decode"


@contextlib.asynccontextmanager
async def grpc_server(socket: Path) -> AsyncIterator[None]:
    """The whole library's server, with raw bytes as messages."""

    async def echo(request: bytes, context: Any) -> bytes:
        return request

    async def fail(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "zu viele Aufrufe: 100 % übrig")
        raise AssertionError

    async def slow(request: bytes, context: Any) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    async def large(request: bytes, context: Any) -> bytes:
        return bytes(3_000_000)

    handlers = {
        path.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(function)
        for path, function in ((ECHO, echo), (FAIL, fail), (SLOW, slow), (LARGE, large))
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
    with address(socket) as target:
        server.add_insecure_port(target)
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)


async def test_calls_to_the_whole_library(tmp_path: Path) -> None:
    async with grpc_server(tmp_path / "s"):
        assert await call(tmp_path / "s", ECHO, b"hello", timeout=10) == b"hello"
        assert await call(tmp_path / "s", ECHO, b"", timeout=10) == b""
        assert len(await call(tmp_path / "s", LARGE, b"", timeout=10)) == 3_000_000, "many windows long"
        with pytest.raises(RpcError) as caught:
            await call(tmp_path / "s", FAIL, b"", timeout=10)
        assert (caught.value.status, caught.value.details) == (
            Status.RESOURCE_EXHAUSTED,
            "zu viele Aufrufe: 100 % übrig",
        )
        with pytest.raises(RpcError, match="UNIMPLEMENTED"):
            await call(tmp_path / "s", "/t.T/Absent", b"", timeout=10)
        with pytest.raises(RpcError, match=r"DEADLINE_EXCEEDED no answer within 0\.05 s"):
            await call(tmp_path / "s", SLOW, b"", timeout=0.05)


async def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(RpcError, match="UNAVAILABLE") as caught:
        await call(tmp_path / "absent", ECHO, b"", timeout=1)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x04\0\0\0\0\0", bytes(100)])
async def test_a_peer_that_speaks_something_else_is_an_error(tmp_path: Path, says: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "s"):
        with pytest.raises(RpcError, match="UNAVAILABLE"):
            await call(tmp_path / "s", ECHO, b"", timeout=5)


class Methods:
    """The answers of our server; `cancelled` is set when a stream's caller has disconnected."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    async def echo(self, request: bytes) -> AsyncIterator[bytes]:
        yield request

    async def fail(self, request: bytes) -> AsyncIterator[bytes]:
        errors = {b"wrong": InvalidInput("größer als 4"), b"late": Terminal("GPU 3 is lost"), b"bug": KeyError("x")}
        raise errors[request]
        yield b""

    async def decode(self, request: bytes) -> AsyncIterator[bytes]:
        yield pb.AllocateRequest.FromString(request).SerializeToString()

    async def large(self, request: bytes) -> AsyncIterator[bytes]:
        yield bytes(3_000_000)

    async def slow(self, request: bytes) -> AsyncIterator[bytes]:
        try:
            for number in range(3):
                yield b"%d" % number
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


@contextlib.asynccontextmanager
async def ours(socket: Path) -> AsyncIterator[tuple[Methods, Callable[..., Any]]]:
    """Our server, and the whole library's client of it."""
    methods = Methods()
    table = {ECHO: methods.echo, FAIL: methods.fail, LARGE: methods.large, SLOW: methods.slow, DECODE: methods.decode}
    async with serving(table, socket):
        with address(socket) as target:
            async with grpc.aio.insecure_channel(target) as channel:
                yield methods, channel.unary_unary


async def test_answers_to_the_whole_library(tmp_path: Path) -> None:
    async with ours(tmp_path / "s") as (_, unary):
        assert await unary(ECHO)(b"hello") == b"hello"
        assert await unary(ECHO)(bytes(1_000_000)) == bytes(1_000_000)
        assert len(await unary(LARGE)(b"")) == 3_000_000
        answers = await asyncio.gather(*(unary(ECHO)(b"%d" % i) for i in range(50)))
        assert answers == [b"%d" % i for i in range(50)]


@pytest.mark.parametrize(
    ("request_", "code", "details"),
    [
        (b"wrong", grpc.StatusCode.INVALID_ARGUMENT, "größer als 4"),
        (b"late", grpc.StatusCode.FAILED_PRECONDITION, "GPU 3 is lost"),
        (b"bug", grpc.StatusCode.INTERNAL, "KeyError: 'x'"),
    ],
)
async def test_errors_become_the_calls_status(
    tmp_path: Path, request_: bytes, code: grpc.StatusCode, details: str
) -> None:
    async with ours(tmp_path / "s") as (_, unary):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(FAIL)(request_)
        assert (caught.value.code(), caught.value.details()) == (code, details)
        assert await unary(ECHO)(b"still there") == b"still there"
        with pytest.raises(grpc.aio.AioRpcError, match=r"there is no /t\.T/Absent"):
            await unary("/t.T/Absent")(b"")


async def test_a_stream_ends_with_its_caller(tmp_path: Path) -> None:
    methods = Methods()
    async with serving({SLOW: methods.slow}, tmp_path / "s"):
        with address(tmp_path / "s") as target:
            async with grpc.aio.insecure_channel(target) as channel:
                stream = channel.unary_stream(SLOW)(b"")
                assert [await stream.read() for _ in range(3)] == [b"0", b"1", b"2"]
                stream.cancel()
                await asyncio.wait_for(methods.cancelled.wait(), 10)


async def test_a_server_that_ends_ends_its_streams(tmp_path: Path) -> None:
    methods = Methods()
    with address(tmp_path / "s") as target:
        async with grpc.aio.insecure_channel(target) as channel:
            async with serving({SLOW: methods.slow}, tmp_path / "s"):
                stream = channel.unary_stream(SLOW)(b"")
                assert await stream.read() == b"0"
            assert methods.cancelled.is_set()
            with pytest.raises(grpc.aio.AioRpcError):
                while await stream.read() is not grpc.aio.EOF:
                    pass


@pytest.mark.parametrize(
    "says", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 200, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 99]
)
async def test_a_caller_that_speaks_something_else_disturbs_nobody(tmp_path: Path, says: bytes) -> None:
    async with ours(tmp_path / "s") as (_, unary):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(says)
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 10)
        writer.close()
        assert await unary(ECHO)(b"hello") == b"hello"


def sent(path: bytes, body: bytes) -> bytes:
    """The bytes of one call; `body` takes the place of a framed message."""
    connection = H2Connection(H2Configuration(client_side=True, header_encoding=None, validate_outbound_headers=False))
    connection.initiate_connection()
    headers = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"localhost"), (b":path", path)]
    connection.send_headers(1, [*headers, (b"te", b"trailers"), (b"content-type", b"application/grpc")])
    connection.send_data(1, body, end_stream=True)
    return connection.data_to_send()


async def status_of(socket: Path, request: bytes) -> dict[str, str]:
    """The headers and trailers that answer a request."""
    connection = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    connection.initiate_connection()
    connection.send_headers(1, [(":method", "POST"), (":scheme", "http"), (":authority", "l"), (":path", ECHO)])
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(request)
    found: dict[str, str] = {}
    async with asyncio.timeout(10):
        while "grpc-status" not in found and (data := await reader.read(1 << 16)):
            for event in connection.receive_data(data):
                if isinstance(event, ResponseReceived | TrailersReceived):
                    found |= {str(name): str(value) for name, value in event.headers or ()}
    writer.close()
    return found


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", b"\0\0\0\0\x05abc", b"\0\0\0\0\x01abc", b"\x01\0\0\0\x01a", b"\0\xff\xff\xff\xffa"],
    ids=["empty", "no length", "too short", "two messages", "compressed", "4 GiB"],
)
async def test_a_request_that_is_not_one_plain_message_is_refused(
    tmp_path: Path, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with ours(tmp_path / "s") as (_, unary):
        found = await status_of(tmp_path / "s", sent(ECHO.encode(), body))
        assert (found["grpc-status"], found["grpc-message"]) == ("3", "the request is not one plain message")
        assert await unary(ECHO)(b"hello") == b"hello"
    assert "Traceback" not in caplog.text


async def test_a_message_that_cannot_be_decoded_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with ours(tmp_path / "s") as (_, unary):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(DECODE)(b"\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "the request is no message" in (caught.value.details() or "")
    assert "Traceback" not in caplog.text


async def test_a_header_that_is_no_text_disturbs_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with ours(tmp_path / "s") as (_, unary):
        assert await status_of(tmp_path / "s", sent(b"/\xff\xfe", framed(b"a"))) == {}
        assert await unary(ECHO)(b"hello") == b"hello"
    assert "Traceback" not in caplog.text
