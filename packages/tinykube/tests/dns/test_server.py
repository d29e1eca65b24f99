"""The DNS server on real sockets, with a server of other names behind it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.until import until
from tinykube.apiserver.addresses import ServiceRange
from tinykube.apiserver.registry import Registry
from tinykube.dns.forwarding import NameServers, name_servers
from tinykube.dns.names import RegistryNames
from tinykube.dns.server import MOST_STREAMS, DNSServer
from tinykube.dns.service import ClusterDNS, why_not
from tinykube.dns.wire import RecordType, Result, parse_name, read_addresses, read_query, write_query

HERE = "127.211.48.10"
UPSTREAM = "127.211.48.11"
RANGE = ServiceRange("127.211.48.0/20")


class Upstream(asyncio.DatagramProtocol):
    """A server of the machine: www.example.com is known, lost.example.com is not answered."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def answer(self, data: bytes) -> bytes:
        query = read_query(data)
        self.asked.append(".".join(query.name))
        if query.name[0] == "lost":
            return b""
        known = query.name == ("www", "example", "com")
        header = struct.pack("!6H", query.id, 0x8180 | (0 if known else 3), 1, int(known), 0, 0)
        record = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + bytes((192, 0, 2, 53))
        return header + data[12:] + (record if known else b"")

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if answer := self.answer(data):
            self.transport.sendto(answer, addr)

    async def stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        answer = self.answer(await reader.readexactly(length))
        writer.write(struct.pack("!H", len(answer)) + answer)
        writer.close()


class World:
    def __init__(self, registry: Registry, port: int, upstream: Upstream) -> None:
        self.registry = registry
        self.port = port
        self.upstream = upstream

    async def by_datagram(self, data: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.setblocking(False)
            await loop.sock_connect(client, (HERE, self.port))
            await loop.sock_sendall(client, data)
            async with asyncio.timeout(5):
                return await loop.sock_recv(client, 65535)

    async def by_stream(self, *messages: bytes) -> list[bytes]:
        reader, writer = await asyncio.open_connection(HERE, self.port)
        answers = []
        for data in messages:
            writer.write(struct.pack("!H", len(data)) + data)
        for _ in messages:
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            answers.append(await reader.readexactly(length))
        writer.close()
        return answers

    async def ask(self, name: str, *, stream: bool, kind: RecordType = RecordType.A) -> Any:
        data = write_query(77, parse_name(name), kind)
        answer = (await self.by_stream(data))[0] if stream else await self.by_datagram(data)
        assert answer[:2] == data[:2]
        result, records = read_addresses(answer)
        return result if result is not Result.FINE else [one.data for one in records]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    upstream = Upstream()
    streams = await asyncio.start_server(upstream.stream, UPSTREAM, 0)
    upstream_port = streams.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    datagrams, _ = await loop.create_datagram_endpoint(lambda: upstream, local_addr=(UPSTREAM, upstream_port))
    file = tmp_path / "resolv.conf"
    file.write_text(f"nameserver {HERE}\nnameserver {UPSTREAM}\n")
    registry = Registry(service_range=RANGE)
    server = DNSServer(RegistryNames(registry), NameServers((HERE,), file, upstream_port))
    yield World(registry, await server.open(HERE, 0), upstream)
    await server.close()
    streams.close()
    datagrams.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_names_of_the_cluster_are_answered_and_others_are_passed_on(world: World, stream: bool) -> None:
    spec = {"clusterIP": "127.211.49.7", "ports": [{"port": 80}]}
    await world.registry.create("services", "default", {"metadata": {"name": "web"}, "spec": spec})
    assert await world.ask("web.default.svc.cluster.local", stream=stream) == ["127.211.49.7"]
    assert await world.ask("other.default.svc.cluster.local", stream=stream) is Result.NO_NAME
    assert world.upstream.asked == []
    assert await world.ask("www.example.com", stream=stream) == ["192.0.2.53"]
    assert await world.ask("none.example.com", stream=stream) is Result.NO_NAME


@pytest.mark.parametrize("stream", [False, True])
async def test_an_external_name_is_answered_with_its_addresses(world: World, stream: bool) -> None:
    for name, target in (("far", "www.example.com"), ("near", "far.default.svc.cluster.local")):
        spec = {"type": "ExternalName", "externalName": target}
        await world.registry.create("services", "default", {"metadata": {"name": name}, "spec": spec})
    example = ("www", "example", "com")
    assert await world.ask("far.default.svc.cluster.local", stream=stream) == [example, "192.0.2.53"]
    near = await world.ask("near.default.svc.cluster.local", stream=stream)
    assert near == [("far", "default", "svc", "cluster", "local"), example, "192.0.2.53"]
    assert await world.ask("far.default.svc.cluster.local", stream=stream, kind=RecordType.CNAME) == [example]


async def test_external_names_that_are_each_other_end(world: World) -> None:
    for name, target in (("one", "two"), ("two", "one")):
        spec = {"type": "ExternalName", "externalName": f"{target}.default.svc.cluster.local"}
        await world.registry.create("services", "default", {"metadata": {"name": name}, "spec": spec})
    assert len(await world.ask("one.default.svc.cluster.local", stream=False)) == 2


async def test_a_server_that_does_not_answer_keeps_no_other_client_waiting(world: World) -> None:
    lost = asyncio.create_task(world.ask("lost.example.com", stream=False))
    await until(lambda: world.upstream.asked)
    assert await world.ask("www.example.com", stream=False) == ["192.0.2.53"]
    assert not lost.done()
    assert await lost is Result.FAILED


async def test_messages_that_are_none_end_nothing(world: World) -> None:
    asked = write_query(9, ("a",), RecordType.A)
    cut = await world.by_datagram(asked[:14])
    assert cut[:2] == asked[:2] and cut[3] & 15 == Result.MALFORMED
    update = asked[:2] + b"\x28\x00" + asked[4:]
    assert (await world.by_datagram(update))[3] & 15 == Result.NOT_IMPLEMENTED
    chaos = asked[:-1] + b"\x03"
    answers = await world.by_stream(chaos, asked[:14], write_query(3, parse_name("x.cluster.local"), RecordType.A))
    assert [answer[3] & 15 for answer in answers] == [Result.NOT_IMPLEMENTED, Result.MALFORMED, Result.NO_NAME]


async def test_connections_above_the_bound_are_closed_and_others_go_on(world: World) -> None:
    open_ones = [await asyncio.open_connection(HERE, world.port) for _ in range(MOST_STREAMS)]
    reader, writer = await asyncio.open_connection(HERE, world.port)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    assert await world.ask("x.cluster.local", stream=False) is Result.NO_NAME
    for _, opened in open_ones:
        opened.close()
    asked = write_query(3, parse_name("x.cluster.local"), RecordType.A)

    async def answered() -> bool:
        return bool(await world.by_stream(asked))

    assert await until(answered, ignored=(asyncio.IncompleteReadError, ConnectionError))


def test_the_servers_of_a_file_are_read_without_comments() -> None:
    text = "# nameserver 1.1.1.1\nnameserver 10.0.0.1\n  nameserver fe80::1%eth0\nnameserver\nsearch a\n"
    assert name_servers(text) == ["10.0.0.1", "fe80::1%eth0"]


# -- the Service -------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def running(registry: Registry, port: int) -> AsyncIterator[bool]:
    dns = ClusterDNS(registry, RANGE.dns_server, port)
    opened = await dns.open()
    task = asyncio.create_task(dns.run())
    yield opened
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await dns.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((RANGE.dns_server, 0))
        port: int = probe.getsockname()[1]
    return port


async def test_the_service_is_there_while_names_are_served(tmp_path: Path) -> None:
    registry = Registry(service_range=RANGE)
    port = free_port()
    for _ in range(2):  # the second server finds the Service of the first
        async with running(registry, port) as opened:
            assert opened
            service = registry.get("services", "kube-system", "kube-dns")
            endpoints = registry.get("endpoints", "kube-system", "kube-dns")
            assert service is not None and endpoints is not None
            spec = service["spec"]
            assert spec["clusterIP"] == RANGE.dns_server == "127.211.48.10"
            assert [(one["name"], one["protocol"]) for one in spec["ports"]] == [("dns", "UDP"), ("dns-tcp", "TCP")]
            (subset,) = endpoints["subsets"]
            assert subset["addresses"] == [{"ip": RANGE.dns_server}]


async def test_without_its_port_there_is_no_service_and_an_event_says_why() -> None:
    registry = Registry(service_range=RANGE)
    port = free_port()
    async with running(registry, port):
        pass
    with socket.create_server((RANGE.dns_server, port)):
        async with running(registry, port) as opened:
            assert not opened
            assert registry.get("services", "kube-system", "kube-dns") is None
            (event,) = await until(lambda: registry.list("events", "kube-system") or registry.list("events"))
    assert event["reason"] == "PortNotServed"
    assert "another program on this machine" in event["message"]


async def test_a_service_that_has_the_address_is_left_alone() -> None:
    registry = Registry(service_range=RANGE)
    spec = {"clusterIP": RANGE.dns_server, "ports": [{"port": 80}]}
    await registry.create("services", "default", {"metadata": {"name": "mine"}, "spec": spec})
    async with running(registry, free_port()) as opened:
        assert not opened
    assert registry.get("services", "default", "mine") is not None


def test_the_reason_has_the_cure() -> None:
    text = why_not(PermissionError(errno.EACCES, "Permission denied"), "127.200.0.10", 53)
    cure = "run sysctl -w net.ipv4.ip_unprivileged_port_start=53 as root and start the cluster again"
    assert f"start the cluster as root, or {cure}" in text
    assert "/etc/hosts" in text
