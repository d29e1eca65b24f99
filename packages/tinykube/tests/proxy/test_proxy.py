"""The proxy on a real registry and real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.support.until import until
from tinykube.apiserver.addresses import ServiceRange
from tinykube.apiserver.registry import Registry
from tinykube.proxy import ServiceProxy

RANGE = ServiceRange("127.211.32.0/20", first_node_port=31111)


class World:
    """A registry with a proxy, and programs that answer with their names."""

    def __init__(self) -> None:
        self.registry = Registry(service_range=RANGE)
        self.servers: list[asyncio.Server] = []

    async def everywhere(self, name: str, host: str) -> int:
        """A program that listens on all addresses, those of IPv4 too."""
        listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, dualstack_ipv6=":" in host
        )
        self.servers.append(await asyncio.start_server(self._answer(name), sock=listener))
        port: int = listener.getsockname()[1]
        return port

    async def program(self, name: str, host: str) -> int:
        return await self.serve(host, self._answer(name))

    @staticmethod
    def _answer(name: str) -> Callable[..., Any]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = await reader.read()
            writer.write(name.encode() + b":" + asked)
            await writer.drain()
            writer.close()

        return answer

    async def serve(self, host: str, program: Callable[..., Any]) -> int:
        server = await asyncio.start_server(program, host, 0)
        self.servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def service(self, name: str, **spec: Any) -> dict[str, Any]:
        body = {"metadata": {"name": name}, "spec": {"selector": {"app": name}, **spec}}
        made: dict[str, Any] = await self.registry.create("services", "default", body)
        return made

    async def endpoints(self, name: str, *pods: tuple[str, int]) -> None:
        subsets = [{"addresses": [{"ip": ip}], "ports": [{"name": "web", "port": port}]} for ip, port in pods]
        body = {"metadata": {"name": name}, "subsets": subsets}
        if self.registry.get("endpoints", "default", name) is None:
            await self.registry.create("endpoints", "default", body)
        else:
            await self.registry.patch("endpoints", "default", name, {"subsets": subsets}, "merge")

    def events(self) -> list[str]:
        return [event["message"] for event in self.registry.list("events") if event["reason"] == "PortNotServed"]


async def ask(host: str, port: int) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"hello")
        writer.write_eof()
        return (await reader.read()).decode()
    finally:
        writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    task = asyncio.create_task(ServiceProxy(made.registry).run())
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    for server in made.servers:
        server.close()


async def answers(host: str, port: int) -> str:
    return str(await until(lambda: ask(host, port), ignored=OSError))


PORTS = [{"name": "web", "port": 8080}]


async def test_a_service_is_reached_at_its_address_and_at_its_node_port(world: World) -> None:
    service = await world.service("web", type="NodePort", ports=PORTS)
    assert service["spec"]["clusterIP"] == "127.211.33.0" and service["spec"]["ports"][0]["nodePort"] == 31111
    port = await world.program("a", "127.77.0.2")
    await world.endpoints("web", ("127.77.0.2", port))
    assert await answers("127.211.33.0", 8080) == "a:hello"
    assert await answers("127.0.0.1", 31111) == "a:hello"


async def test_pods_take_turns_and_one_that_does_not_answer_is_passed_over(world: World) -> None:
    await world.service("web", ports=PORTS)
    first, second = await world.program("a", "127.77.0.2"), await world.program("b", "127.77.0.3")
    await world.endpoints("web", ("127.77.0.2", first), ("127.77.0.3", second), ("127.77.0.4", 9))
    await answers("127.211.33.0", 8080)
    assert {await ask("127.211.33.0", 8080) for _ in range(6)} == {"a:hello", "b:hello"}


async def test_nothing_listens_once_the_last_pod_has_gone(world: World) -> None:
    await world.service("web", ports=PORTS)
    await world.endpoints("web", ("127.77.0.2", await world.program("a", "127.77.0.2")))
    await answers("127.211.33.0", 8080)
    await world.endpoints("web")

    async def refused() -> bool:
        try:
            await ask("127.211.33.0", 8080)
        except ConnectionRefusedError:
            return True
        except ConnectionError:  # it was just about to close
            return False
        return False

    await until(refused)


async def test_a_pod_sees_that_a_client_has_broken_off(world: World) -> None:
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(100):
                seen.put_nowait(piece)
        seen.put_nowait(b"")
        writer.close()

    await world.service("web", ports=PORTS)
    await world.endpoints("web", ("127.77.0.2", await world.serve("127.77.0.2", listen)))
    _, writer = await until(lambda: asyncio.open_connection("127.211.33.0", 8080), ignored=OSError)
    writer.write(b"hello")
    assert await asyncio.wait_for(seen.get(), 5) == b"hello"
    reset(writer)
    assert await asyncio.wait_for(seen.get(), 5) == b""


async def test_a_client_sees_that_a_pod_has_broken_off(world: World) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        reset(writer)

    await world.service("web", ports=PORTS)
    await world.endpoints("web", ("127.77.0.2", await world.serve("127.77.0.2", break_off)))
    reader, writer = await until(lambda: asyncio.open_connection("127.211.33.0", 8080), ignored=OSError)
    writer.write(b"hello")
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 5)
    writer.close()


async def test_the_rest_of_a_stream_that_broke_goes_to_no_other_pod(world: World, monkeypatch: Any) -> None:
    pods: asyncio.Queue[str] = asyncio.Queue()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pods.put_nowait(writer.get_extra_info("sockname")[0])
        with contextlib.suppress(ConnectionError):
            await reader.readline()
        writer.close()

    async def no_route(*streams: Any) -> None:
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    await world.service("web", ports=PORTS)
    await world.endpoints("web", *[(ip, await world.serve(ip, answer)) for ip in ("127.77.0.2", "127.77.0.3")])
    reader, writer = await until(lambda: asyncio.open_connection("127.211.33.0", 8080), ignored=OSError)
    writer.write_eof()
    await asyncio.wait_for(reader.read(), 5)
    writer.close()
    while not pods.empty():
        pods.get_nowait()
    monkeypatch.setattr(asyncio.StreamReader, "read", no_route)
    reader, writer = await asyncio.open_connection("127.211.33.0", 8080)
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    assert pods.qsize() == 1


async def test_a_port_that_another_program_has_is_reported_by_an_event(world: World) -> None:
    with socket.create_server(("127.211.33.0", 0)) as other:
        port = other.getsockname()[1]
        await world.service("web", ports=[{"name": "web", "port": port}])
        await world.endpoints("web", ("127.77.0.2", await world.program("a", "127.77.0.2")))
        (message,) = await until(world.events)
        assert message == f"port {port} of 127.211.33.0 is in use by another program on this machine"


async def test_another_program_on_the_ports_number_of_the_pod_is_reported_too(world: World) -> None:
    port = await world.program("a", "127.77.0.2")
    with socket.create_server(("127.211.33.0", port)):
        await world.service("web", ports=[{"name": "web", "port": port}])
        await world.endpoints("web", ("127.77.0.2", port))
        (message,) = await until(world.events)
        assert message == f"port {port} of 127.211.33.0 is in use by another program on this machine"


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
async def test_a_pod_that_listens_on_all_addresses_is_no_reason_for_an_event(world: World, everywhere: str) -> None:
    port = await world.everywhere("a", everywhere)
    await world.service("web", ports=[{"name": "web", "port": port}])
    await world.endpoints("web", ("127.77.0.2", port))
    assert await answers("127.211.33.0", port) == "a:hello"
    # The proxy looks at one Service after the other: once it has told of the second, it has looked at the first.
    second = await world.service("second", ports=[{"name": "web", "port": port}])
    await world.endpoints("second", ("127.77.0.3", await world.program("b", "127.77.0.3")))
    (message,) = await until(world.events)
    assert message == f"port {port} of {second['spec']['clusterIP']} is in use by another program on this machine"
