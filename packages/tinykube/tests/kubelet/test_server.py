"""Logs, exec, attach and the token of the kubelet's endpoint."""

from __future__ import annotations

import asyncio
import base64
import datetime
import os
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from kubekit.kube.certificates import CLIENT, Validity, issue, make_authority
from tests.support.until import until
from tinykube.kubelet import portforward
from tinykube.kubelet.execute import exit_status
from tinykube.kubelet.pod import KubeletProbe
from tinykube.kubelet.probes import ProbeTally, judge
from tinykube.kubelet.requests import HttpProblem
from tinykube.kubelet.server import CallerCertificate, KubeletBackend, KubeletServer, LogFile
from tinykube.kubelet.websocket import Closed, WebSocket, accept_key, frame

Address = tuple[str, int]
LOCALHOST = "127.0.0.1"

_AT_ONCE = 20.0  # seconds on a busy machine; a request that does not finish is waited for longer


def no_host(namespace: str, name: str) -> portforward.FindHost:
    raise HttpProblem(404, "none")


async def get(address: Address, target: str, *headers: str, tls: ssl.SSLContext | None = None) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(*address, ssl=tls)
    lines = "".join(f"{header}\r\n" for header in headers)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), body


def exec_target(script: str, **options: str) -> str:
    query = [("command", "sh"), ("command", "-c"), ("command", script), *options.items()]
    return f"/exec/default/one/c?{urlencode(query)}"


async def websocket(address: Address, target: str, protocol: str) -> tuple[WebSocket, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*address)
    key = base64.b64encode(os.urandom(16)).decode()
    writer.write(
        f"GET {target} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n".encode()
    )
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert " 101 " in head, head
    assert accept_key(key) in head and protocol in head
    return WebSocket(reader, writer), writer


async def execute(address: Address, target: str, *sent: bytes) -> dict[int, bytes]:
    """Run an exec or attach; what came on each channel."""
    socket, writer = await websocket(address, target, "v5.channel.k8s.io")
    for message in sent:
        await socket.send(message)
    channels: dict[int, bytes] = {}
    try:
        while True:
            message = await socket.receive()
            channels[message[0]] = channels.get(message[0], b"") + message[1:]
    except Closed:
        writer.close()
        return channels


@pytest.fixture
async def address(api: Any, make_node: Any) -> Address:
    node = await make_node()
    script = "echo up; trap 'exit 0' TERM; while :; do sleep 0.05; done"
    await api.create_pod(containers=[{"name": "c", "image": "busybox", "command": ["sh", "-c", script]}])
    await api.phase("Running")
    assert node.kubelet is not None
    return node.kubelet.machine.host_ip, node.kubelet.port


async def test_exec_carries_streams_and_the_exit_code(address: Address) -> None:
    target = exec_target("cat; echo bad >&2; exit 3", stdin="true", stdout="true", stderr="true")
    channels = await execute(address, target, b"\x00typed\n", b"\xff\x00")
    assert channels[1] == b"typed\n"
    assert channels[2] == b"bad\n"
    assert msgspec.json.decode(channels[3]) == exit_status(3)


async def test_exec_on_a_terminal(address: Address) -> None:
    size = b'\x04{"Width":99,"Height":7}'
    target = exec_target("sleep 0.1; stty size; test -t 1 && echo tty", stdin="true", stdout="true", tty="true")
    channels = await execute(address, target, size)
    assert channels[1] == b"7 99\r\ntty\r\n"
    assert msgspec.json.decode(channels[3])["status"] == "Success"


async def test_attach_shows_what_the_container_writes_until_it_ends(api: Any, address: Address) -> None:
    socket, writer = await websocket(address, "/attach/default/one/c?stdout=true", "v5.channel.k8s.io")
    assert await socket.receive() == b"\x01up\n"
    await api.registry.delete("pods", "default", "one")
    channel, *status = await socket.receive()
    assert (channel, msgspec.json.decode(bytes(status))["status"]) == (3, "Success")
    with pytest.raises(Closed):
        await socket.receive()
    writer.close()


async def test_what_is_not_there(address: Address) -> None:
    assert (await get(address, "/healthz")) == (200, "ok")
    assert (await get(address, "/containerLogs/default/none/c"))[0] == 404
    assert (await get(address, "/containerLogs/default/one/none")) == (400, "container none is not valid for pod one")
    assert (await get(address, "/containerLogs/default/one/c?previous=true"))[0] == 400
    for wrong in ("x", "-1", "%C2%B2", "%D9%A3"):  # the last two are digits that are not of ASCII
        assert (await get(address, f"/containerLogs/default/one/c?tailLines={wrong}"))[0] == 400, wrong
    assert (await get(address, "/exec/default/one/c?command=true"))[0] == 400
    for target, protocol in (
        ("attach/default/one/c", "v5.channel.k8s.io"),
        ("portForward/default/one", portforward.PROTOCOL),
    ):
        assert "needs a WebSocket" in (await get(address, f"/{target}"))[1]
        upgrade = ("Upgrade: websocket", "Sec-WebSocket-Key: x")
        assert protocol in (await get(address, f"/{target}", *upgrade))[1]
    upgrade = (*upgrade, f"Sec-WebSocket-Protocol: {portforward.PROTOCOL}")
    assert (await get(address, "/portForward/default/none", *upgrade))[0] == 404
    assert (await get(address, "/other"))[0] == 404


async def test_logs_and_pods(address: Address) -> None:
    async def is_logged() -> bool:  # the container has just started
        return await get(address, "/containerLogs/default/one/c") == (200, "3\r\nup\n\r\n0\r\n\r\n")

    await until(is_logged)
    assert '"name":"one"' in (await get(address, "/pods"))[1]


async def test_the_token_is_asked_for() -> None:
    def no_log(*_: Any) -> LogFile:
        raise HttpProblem(404, "none")

    server = KubeletServer(
        KubeletBackend(
            log_file=no_log, exec_command=lambda *_: [], forward_host=no_host, pods=lambda: b"{}", now=lambda: 0.0
        ),
        "secret",
    )
    address = LOCALHOST, await server.start()
    assert (await get(address, "/pods"))[0] == 401
    assert (await get(address, "/pods", "Authorization: Bearer wrong"))[0] == 401
    assert (await get(address, "/pods", "Authorization: Bearer secret")) == (200, "{}")
    assert (await get(address, "/healthz"))[0] == 200
    await server.stop()


async def test_https_to_a_port_of_plain_http_fails_at_once() -> None:
    backend = KubeletBackend(
        log_file=lambda *_: LogFile(Path(), lambda: False),
        exec_command=lambda *_: [],
        forward_host=no_host,
        pods=lambda: b"{}",
        now=lambda: 0.0,
    )
    server = KubeletServer(backend, "")
    address = LOCALHOST, await server.start()
    try:
        async with asyncio.timeout(_AT_ONCE):
            with pytest.raises(ssl.SSLError):
                await get(address, "/healthz", tls=ssl.create_default_context())
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"\x16\x03\x01\x02\x00\x01")  # how a TLS handshake begins
            answer = (await reader.read()).decode()
            writer.close()
    finally:
        await server.stop()
    assert answer.startswith("HTTP/1.1 400 ") and answer.endswith("this port serves plain HTTP")


async def test_only_the_api_server_of_the_cluster_is_answered_by_https(tmp_path: Path) -> None:
    """The holder of another certificate of the same authority is a user of the cluster."""
    now = datetime.datetime.now(datetime.UTC)
    validity = Validity(now - datetime.timedelta(hours=1), now + datetime.timedelta(hours=1))
    authority = make_authority("cluster", validity)
    (tmp_path / "ca.crt").write_bytes(authority.certificate_pem)

    def issued(name: str, **more: Any) -> tuple[Path, Path]:
        made = issue(authority, name, validity, **more)
        certificate, key = tmp_path / f"{name}.crt", tmp_path / f"{name}.key"
        certificate.write_bytes(made.certificate_pem)
        key.write_bytes(made.key_pem)
        return certificate, key

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.crt"))
    context.load_cert_chain(*issued("kubelet", hosts=("127.0.0.1",)))
    context.verify_mode = ssl.CERT_REQUIRED
    backend = KubeletBackend(
        log_file=lambda *_: LogFile(tmp_path, lambda: False),
        exec_command=lambda *_: [],
        forward_host=no_host,
        pods=lambda: b"{}",
        now=lambda: 0.0,
    )
    server = KubeletServer(backend, "secret", CallerCertificate(context, "caller"))
    address = LOCALHOST, await server.start()
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    try:
        for name, answer in (("caller", (200, "{}")), ("jane", (401, "Unauthorized"))):
            client.load_cert_chain(*issued(name, usages=(CLIENT,)))
            assert await get(address, "/pods", "Authorization: Bearer secret", tls=client) == answer
        async with asyncio.timeout(_AT_ONCE):  # plain HTTP
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
    finally:
        await server.stop()


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
async def test_frames_of_all_sizes(size: int) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(frame(2, b"x" * size))
    reader.feed_eof()
    socket = WebSocket(reader, None)  # type: ignore[arg-type]  # nothing is sent
    assert await socket.receive() == b"x" * size
    with pytest.raises(Closed):
        await socket.receive()


async def test_masked_and_split_messages() -> None:
    reader = asyncio.StreamReader()
    mask = b"\x01\x02\x03\x04"
    masked = bytes(byte ^ mask[n % 4] for n, byte in enumerate(b"hello"))
    reader.feed_data(bytes([0x02, 0x85]) + mask + masked + frame(0, b" world"))
    assert await WebSocket(reader, None).receive() == b"hello world"  # type: ignore[arg-type]  # nothing is sent


def verdicts(results: str, **thresholds: int) -> list[bool | None]:
    tally, found = ProbeTally(), []
    probe = KubeletProbe(**thresholds)
    for result in results:
        tally = judge(tally, result == "+", probe)
        found.append(tally.verdict)
    return found


def test_thresholds() -> None:
    assert verdicts("+") == [True]
    assert verdicts("---") == [None, None, False]
    assert verdicts("+--+---", failure_threshold=3) == [True, True, True, True, True, True, False]
    assert verdicts("-++", success_threshold=2, failure_threshold=1) == [False, False, True]
