"""NRI's transport and a plugin's life, against the simulated runtime and against others that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.operand.nri import plugin
from gpuplane.operand.nri.plugin import serve
from gpuplane.operand.nri.runtimes import NriRuntime, Unfit, refuse_unfit
from kubekit.errors import KubekitError, Retryable, Terminal
from kubekit.protocol import nri_pb2 as pb
from kubekit.protocol import ttrpc_pb2
from kubekit.protocol.sockets import NRI_SERVICE
from kubekit.rpc import RpcError, Status
from kubekit.ttrpc import frames
from kubekit.ttrpc.connection import Connection, Method
from kubekit.ttrpc.frames import (
    FRAME_BYTES,
    LONGEST,
    PLUGIN,
    RUNTIME,
    FrameKind,
    FrameReader,
    Malformed,
    TtrpcMessage,
    framed,
)
from tinykube.kubelet.runtimes import nri as runtime_side
from tinykube.kubelet.runtimes.nri import Nri, Refused

POD = pb.PodSandbox(id="s1", uid="u1", namespace="ml", name="tune")
CONTAINER = pb.Container(id="c1", pod_sandbox_id="s1", name="main", env=["A=1"])

words = st.integers(0, 2**32 - 1)
messages = st.builds(TtrpcMessage, words, st.integers(0, 255), st.integers(0, 255), st.binary(max_size=12_000))


# -- what goes over the wire -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from([PLUGIN, RUNTIME]), messages), max_size=6), st.data())
def test_messages_arrive_however_the_stream_is_cut(sent: list[tuple[int, TtrpcMessage]], data: st.DataObject) -> None:
    stream = b"".join(framed(connection, message) for connection, message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    reader = FrameReader(PLUGIN, RUNTIME)
    got = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += list(reader.feed(stream[start:end]))
    assert got == sent


@given(messages)
def test_frames_are_as_small_as_the_runtime_reads_them(message: TtrpcMessage) -> None:
    stream, sizes = framed(PLUGIN, message), []
    while stream:
        connection, size = struct.unpack_from(">II", stream)
        assert connection == PLUGIN
        sizes.append(size)
        stream = stream[8 + size :]
    assert sum(sizes) == len(message.data) + 10 and max(sizes) <= FRAME_BYTES


def test_bytes_on_the_wire() -> None:
    # Written down by hand from the protocols.
    assert framed(2, TtrpcMessage(1, FrameKind.REQUEST, 0, b"ab")) == (
        b"\x00\x00\x00\x02\x00\x00\x00\x0c" + b"\x00\x00\x00\x02\x00\x00\x00\x01\x01\x00ab"
    )
    request = ttrpc_pb2.Request(service="S", method="M", payload=b"p", timeout_nano=1)
    assert request.SerializeToString() == b"\x0a\x01S\x12\x01M\x1a\x01p\x20\x01"
    adjustment = pb.ContainerAdjustment(
        mounts=[pb.Mount(destination="/d", source="/s")],
        env=[pb.KeyValue(key="A", value="b")],
        CDI_devices=[pb.CDIDevice(name="x/y=z")],
    )
    assert adjustment.SerializeToString() == (
        b"\x1a\x08\x0a\x02/d\x1a\x02/s" + b"\x22\x06\x0a\x01A\x12\x01b" + b"\x42\x07\x0a\x05x/y=z"
    )
    assert plugin.EVENTS == 0b1000


@given(st.binary(max_size=400))
def test_no_bytes_do_harm(data: bytes) -> None:
    reader = FrameReader(PLUGIN, RUNTIME)
    with contextlib.suppress(Malformed):
        for _, message in reader.feed(data):
            with contextlib.suppress(Exception):
                ttrpc_pb2.Request.FromString(message.data)


def test_what_is_too_long_is_not_kept() -> None:
    with pytest.raises(Malformed, match="a frame of"):
        list(FrameReader(PLUGIN).feed(struct.pack(">II", PLUGIN, LONGEST + 11)))
    with pytest.raises(Malformed, match="a message of"):
        list(FrameReader(PLUGIN).feed(struct.pack(">IIIIBB", PLUGIN, 10, LONGEST + 1, 1, 1, 0)))
    with pytest.raises(Malformed, match="are the most"):
        framed(PLUGIN, TtrpcMessage(1, 1, 0, bytes(LONGEST + 1)))


def test_other_connections_are_skipped() -> None:
    stream = framed(7, TtrpcMessage(1, 1, 0, b"strange")) + framed(PLUGIN, TtrpcMessage(3, 1, 0, b"ours"))
    assert list(FrameReader(PLUGIN).feed(stream)) == [(PLUGIN, TtrpcMessage(3, 1, 0, b"ours"))]


# -- calls -----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def connected(methods: dict[str, Method]) -> AsyncIterator[tuple[Connection, socket.socket]]:
    """A plugin's connection that is called with `methods`, and the other end of its socket."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    connection = Connection(reader, writer, serves=PLUGIN, calls=RUNTIME, methods=methods)
    task = asyncio.create_task(connection.run())
    try:
        yield connection, theirs
    finally:
        theirs.close()
        await asyncio.gather(task, return_exceptions=True)


async def exchange(theirs: socket.socket, message: TtrpcMessage) -> ttrpc_pb2.Response:
    """The answer to a request that is sent in pieces of three bytes."""
    loop = asyncio.get_running_loop()
    stream = framed(PLUGIN, message)
    for at in range(0, len(stream), 3):
        await loop.sock_sendall(theirs, stream[at : at + 3])
    reader = FrameReader(PLUGIN)
    while True:
        for _, answer in reader.feed(await loop.sock_recv(theirs, 65536)):
            assert (answer.stream, answer.kind) == (message.stream, FrameKind.RESPONSE)
            return ttrpc_pb2.Response.FromString(answer.data)


def request(method: str, payload: bytes = b"") -> bytes:
    return ttrpc_pb2.Request(service="s", method=method, payload=payload).SerializeToString()


async def echo(payload: bytes) -> pb.Mount:
    return pb.Mount(source=payload.decode())


async def fail(payload: bytes) -> pb.Empty:
    raise Terminal("no such GPU", where="ml/tune", cure="delete it")


@pytest.mark.parametrize(
    ("message", "status", "words"),
    [
        (TtrpcMessage(1, 1, 0, request("echo", b"hi")), Status.OK, ""),
        (TtrpcMessage(3, 1, 0, request("fail")), Status.FAILED_PRECONDITION, "ml/tune: no such GPU; delete it"),
        (TtrpcMessage(5, 1, 0, request("other")), Status.UNIMPLEMENTED, "there is no s/other"),
        (TtrpcMessage(7, 1, 0, b"\xff\xff"), Status.INVALID_ARGUMENT, "no message"),
        (TtrpcMessage(9, 1, 2, request("echo")), Status.UNIMPLEMENTED, "streams"),
        (TtrpcMessage(2, 1, 0, request("echo")), Status.INVALID_ARGUMENT, "odd"),
        (TtrpcMessage(11, 1, 0, request("echo", b"\xff")), Status.INTERNAL, "UnicodeDecodeError"),
    ],
)
async def test_requests_are_answered(message: TtrpcMessage, status: Status, words: str) -> None:
    async with connected({"s/echo": echo, "s/fail": fail}) as (_, theirs):
        answer = await exchange(theirs, message)
        assert answer.status.code == status and words in answer.status.message
        if status is Status.OK:
            assert pb.Mount.FromString(answer.payload).source == "hi"


async def test_a_slow_answer_holds_up_no_other() -> None:
    gate = asyncio.Event()

    async def slow(payload: bytes) -> pb.Empty:
        await gate.wait()
        return pb.Empty()

    async with connected({"s/slow": slow, "s/echo": echo}) as (_, theirs):
        await asyncio.get_running_loop().sock_sendall(theirs, framed(PLUGIN, TtrpcMessage(1, 1, 0, request("slow"))))
        assert (await exchange(theirs, TtrpcMessage(3, 1, 0, request("echo", b"x")))).payload
        gate.set()


async def test_a_call_ends_with_the_connection_and_with_its_time() -> None:
    async with connected({}) as (connection, theirs):
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
            await connection.call("s/m", b"", timeout=0.01)
        call = asyncio.create_task(connection.call("s/m", b"", timeout=60))
        await asyncio.get_running_loop().sock_recv(theirs, 100)
        theirs.close()
        with pytest.raises(RpcError, match="UNAVAILABLE"):
            await call


async def test_what_is_no_protocol_ends_the_connection() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(Malformed):
            await serve(ours, Recorder(), print)


# -- a plugin and a runtime ------------------------------------------------------------------------------------------


class Recorder:
    """A plugin that gives every container a variable, after `before` has been awaited."""

    def __init__(self, before: Callable[[], Awaitable[object]] | None = None) -> None:
        self.before = before
        self.pods: list[str] = []
        self.containers: list[str] = []
        self.created: list[str] = []

    async def create(self, pod: pb.PodSandbox, container: pb.Container) -> pb.ContainerAdjustment | None:
        if self.before is not None:
            await self.before()
        self.created.append(f"{pod.namespace}/{pod.name}:{container.name}")
        return pb.ContainerAdjustment(env=[pb.KeyValue(key="GIVEN", value="x" * 9_000)])

    def known(self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]) -> None:
        self.pods = [pod.uid for pod in pods]
        self.containers = [container.id for container in containers]


@pytest.fixture
async def nri(tmp_path: Path) -> AsyncIterator[Nri]:
    runtime = Nri(tmp_path / "run/nri/nri.sock", "containerd", "2.1.4")
    runtime.open()
    yield runtime
    runtime.close()


def connect(runtime: Nri) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(runtime.path))
    return client


@contextlib.asynccontextmanager
async def plugged(runtime: Nri, plugin: plugin.NriPlugin) -> AsyncIterator[asyncio.Task[None]]:
    ready = asyncio.Event()
    task = asyncio.create_task(serve(connect(runtime), plugin, lambda _: ready.set()))
    await ready.wait()
    await runtime.plugged.wait()
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_plugin_adjusts_what_is_created(nri: Nri) -> None:
    recorder = Recorder()
    async with plugged(nri, recorder):
        adjustment = await nri.create(POD, CONTAINER)
    assert [len(one.value) for one in adjustment.env] == [9_000]  # more than two frames
    assert recorder.created == ["ml/tune:main"]


async def test_a_plugin_that_comes_is_told_what_there_is(nri: Nri, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_side, "AT_ONCE", 2)  # so that it takes several messages
    for number in range(5):
        await nri.create(POD, pb.Container(id=f"c{number}", name=f"n{number}"))
    recorder = Recorder()
    async with plugged(nri, recorder):
        assert recorder.containers == [f"c{number}" for number in range(5)] and set(recorder.pods) == {"u1"}


async def test_a_killed_plugin_leaves_containers_as_they_are(nri: Nri) -> None:
    async with plugged(nri, Recorder()):
        assert (await nri.create(POD, CONTAINER)).env
    assert not (await nri.create(POD, CONTAINER)).env


async def test_a_plugin_that_dies_over_a_container_leaves_it_as_it_is(nri: Nri) -> None:
    task: asyncio.Task[None]

    async def die() -> None:
        task.cancel()
        await asyncio.Event().wait()

    async with plugged(nri, Recorder(die)) as task:
        assert not (await nri.create(POD, CONTAINER)).env


async def test_a_refusal_keeps_the_container_from_being_created(nri: Nri) -> None:
    async def refuse() -> None:
        raise Terminal("GPU 1 is assigned")

    async with plugged(nri, Recorder(refuse)):
        with pytest.raises(Refused, match="GPU 1 is assigned"):
            await nri.create(POD, CONTAINER)
        with pytest.raises(Refused):  # and it still is a plugin
            await nri.create(POD, CONTAINER)


async def test_who_takes_long_refuses_before_the_runtime_gives_up(tmp_path: Path) -> None:
    runtime = Nri(tmp_path / "nri.sock", "containerd", "2.1.4", request_seconds=0.1)
    runtime.open()
    async with plugged(runtime, Recorder(asyncio.Event().wait)):
        with pytest.raises(Refused, match=r"ml/tune:main: its devices are still unknown after 0\.1 s"):
            await runtime.create(POD, CONTAINER)
    runtime.close()


async def test_who_does_not_answer_is_dropped_and_the_container_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "SHARE_OF_TIME", 1000.0)  # as a process that is stopped
    runtime = Nri(tmp_path / "nri.sock", "containerd", "2.1.4", request_seconds=0.05)
    runtime.open()
    async with plugged(runtime, Recorder(asyncio.Event().wait)) as task:
        assert not (await runtime.create(POD, CONTAINER)).env
        await task
    runtime.close()


async def test_requests_that_are_no_messages_are_refused() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    task = asyncio.create_task(serve(ours, Recorder(), print))
    for stream, method in ((1, "Configure"), (3, "Synchronize"), (5, "CreateContainer")):
        sent = ttrpc_pb2.Request(service=f"{NRI_SERVICE}.Plugin", method=method, payload=b"\xff\xff")
        answer = await exchange(theirs, TtrpcMessage(stream, FrameKind.REQUEST, 0, sent.SerializeToString()))
        assert answer.status.code == Status.INVALID_ARGUMENT
    theirs.close()
    await task


async def test_a_runtime_that_ends_ends_its_plugins(nri: Nri) -> None:
    async with plugged(nri, Recorder()) as task:
        nri.close()
        await task
    nri.open()
    async with plugged(nri, Recorder()):
        assert (await nri.create(POD, CONTAINER)).env


@pytest.mark.parametrize(
    ("name", "version", "fit"),
    [
        ("containerd", "v2.4.2", True),
        ("containerd", "2.1.0-rc.1", True),
        ("containerd", "v2.0.6", False),
        ("containerd", "1.7.28", False),
        ("containerd", "unknown", False),
        ("cri-o", "1.34.0", True),
        ("cri-o", "1.32.8", False),
        ("other", "9.0", False),
    ],
)
async def test_runtimes_that_drop_cdi_devices_are_left_alone(
    tmp_path: Path, name: str, version: str, fit: bool
) -> None:
    if fit:
        refuse_unfit(NriRuntime(name, version))
        return
    runtime = Nri(tmp_path / "nri.sock", name, version)
    runtime.open()
    with pytest.raises(Unfit, match="injects no CDI devices"):
        await serve(connect(runtime), Recorder(), print)
    runtime.close()


async def test_a_runtime_that_does_not_register_us() -> None:
    async def refuse(payload: bytes) -> pb.Empty:
        raise Terminal("plugins are not wanted")

    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=theirs)
    methods: dict[str, Method] = {f"{NRI_SERVICE}.Runtime/RegisterPlugin": refuse}
    runtime = asyncio.create_task(Connection(reader, writer, serves=RUNTIME, calls=PLUGIN, methods=methods).run())
    with pytest.raises(Retryable, match="plugins are not wanted"):
        await serve(ours, Recorder(), print)
    await runtime


async def test_plugins_without_an_index_are_not_taken(nri: Nri) -> None:
    with pytest.raises(KubekitError, match="must be 2 digits"):
        await serve(connect(nri), Recorder(), print, index="first")


def test_the_service_is_the_interfaces() -> None:
    assert pb.DESCRIPTOR.package == NRI_SERVICE and frames.PLUGIN == 1 and frames.RUNTIME == 2
