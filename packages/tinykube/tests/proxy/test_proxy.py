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
from tinykube.proxy.clients import FindNode, on_no_node
from tinykube.proxy.listening import listening
from tinykube.proxy.routes import ListenAddress

RANGE = ServiceRange("127.211.32.0/20", first_node_port=31111)


class World:
    """A registry with a proxy, and programs that answer with their names."""

    def __init__(self) -> None:
        self.registry = Registry(service_range=RANGE)
        self.servers: list[asyncio.Server] = []

    async def everywhere(self, name: str, host: str) -> int:
        """Start a program that listens on all addresses, with those of IPv4; return its port."""
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

    async def endpoints(
        self, name: str, *pods: tuple[str, int], protocol: str = "TCP", node: str = "", others: bool = False
    ) -> None:
        """Create a slice for each pod; delete all earlier slices unless `others` is set."""
        for old in () if others else self.registry.list("endpointslices", "default"):
            if old["metadata"]["labels"]["kubernetes.io/service-name"] == name:
                await self.registry.delete("endpointslices", "default", old["metadata"]["name"])
        for ip, port in pods:
            body = {
                "metadata": {"generateName": f"{name}-", "labels": {"kubernetes.io/service-name": name}},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [ip], "conditions": {"ready": True}, "nodeName": node or None}],
                "ports": [{"name": "web", "port": port, "protocol": protocol}],
            }
            await self.registry.create("endpointslices", "default", body)

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


@contextlib.asynccontextmanager
async def serving(find_node: FindNode = on_no_node) -> AsyncIterator[World]:
    made = World()
    task = asyncio.create_task(ServiceProxy(made.registry, find_node).run())
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    for server in made.servers:
        server.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serving() as made:
        yield made


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


class Echo(asyncio.DatagramProtocol):
    """A UDP program that answers with its name, and counts its clients."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.clients: set[Any] = set()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.clients.add(addr)
        self.transport.sendto(f"{self.name}:{data.decode()}".encode(), addr)


@contextlib.asynccontextmanager
async def echo(name: str, host: str) -> AsyncIterator[tuple[Echo, int]]:
    loop = asyncio.get_running_loop()
    transport, program = await loop.create_datagram_endpoint(lambda: Echo(name), local_addr=(host, 0))
    yield program, transport.get_extra_info("sockname")[1]
    transport.close()
    await asyncio.sleep(0)


class UDPClient:
    """A UDP client with an address of its own."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.connect((host, port))

    async def ask(self, text: str) -> str:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.socket, text.encode())
        async with asyncio.timeout(0.5):
            return (await loop.sock_recv(self.socket, 1000)).decode()


async def first_answer(client: UDPClient, text: str) -> str:
    return str(await until(lambda: client.ask(text), ignored=(OSError, TimeoutError)))


async def test_datagrams_of_a_client_go_to_one_pod_and_its_answers_come_back(world: World) -> None:
    ports = [{"name": "web", "port": 8080, "protocol": "UDP"}]
    await world.service("web", type="NodePort", ports=ports)
    async with echo("a", "127.77.0.2") as (first, first_port), echo("b", "127.77.0.3") as (second, second_port):
        await world.endpoints("web", ("127.77.0.2", first_port), ("127.77.0.3", second_port), protocol="UDP")
        clients = [UDPClient("127.211.33.0", 8080) for _ in range(4)]
        for client in clients:
            said = [await first_answer(client, "x")]
            said += [await client.ask("x") for _ in range(3)]
            assert said in (["a:x"] * 4, ["b:x"] * 4)
        assert len(first.clients) + len(second.clients) >= 4
        assert first.clients and second.clients
        at_node = UDPClient("127.0.0.1", 31111)
        assert await first_answer(at_node, "node") in ("a:node", "b:node")
        at_node.socket.close()
        await world.endpoints("web", ("127.77.0.3", second_port), protocol="UDP")
        for client in clients:

            async def of_the_other(one: UDPClient = client) -> bool:
                return await one.ask("y") == "b:y"

            await until(of_the_other, ignored=(OSError, TimeoutError))
            client.socket.close()


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
        except ConnectionError:  # the connection was about to be closed
            return False
        return False

    await until(refused)


async def test_a_pod_sees_the_address_of_its_client(world: World) -> None:
    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.write(writer.get_extra_info("peername")[0].encode())
        writer.close()

    await world.service("web", ports=PORTS)
    await world.endpoints("web", ("127.77.0.2", await world.serve("127.77.0.2", tell)))
    await answers("127.211.33.0", 8080)
    reader, writer = await asyncio.open_connection("127.211.33.0", 8080, local_addr=("127.77.0.5", 0))
    writer.write_eof()
    assert await reader.read() == b"127.77.0.5"
    writer.close()


async def test_a_node_port_is_served_on_the_address_of_a_node_that_joins_and_leaves(world: World) -> None:
    await world.service("web", type="NodePort", ports=PORTS)
    await world.endpoints("web", ("127.77.0.2", await world.program("a", "127.77.0.2")))
    assert await answers("127.0.0.1", 31111) == "a:hello"
    body = {"metadata": {"name": "n1"}, "status": {"addresses": [{"type": "InternalIP", "address": "127.77.0.1"}]}}
    await world.registry.create("nodes", "", body)
    await world.registry.patch("nodes", "", "n1", {"status": body["status"]}, "merge", subresource="status")
    assert await answers("127.77.0.1", 31111) == "a:hello"
    await world.registry.delete("nodes", "", "n1")
    await until(lambda: refused("127.77.0.1", 31111))
    assert await ask("127.0.0.1", 31111) == "a:hello"


async def test_a_load_balancer_is_told_whether_a_node_has_ready_pods(world: World) -> None:
    service = await world.service("web", type="LoadBalancer", ports=PORTS, externalTrafficPolicy="Local")
    port = service["spec"]["healthCheckNodePort"]
    status = {"addresses": [{"type": "InternalIP", "address": "127.77.0.1"}]}
    await world.registry.create("nodes", "", {"metadata": {"name": "n1"}})
    await world.registry.patch("nodes", "", "n1", {"status": status}, "merge", subresource="status")

    async def get() -> str:
        reader, writer = await asyncio.open_connection("127.77.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: n1\r\n\r\n")
        try:
            return (await reader.read()).decode()
        finally:
            writer.close()

    empty = await until(get, ignored=OSError)
    assert empty.startswith("HTTP/1.1 503 Service Unavailable\r\n") and '"localEndpoints": 0' in empty
    await world.endpoints("web", ("127.77.0.2", await world.program("a", "127.77.0.2")), node="n1")

    async def ready() -> bool:
        return (await get()).startswith("HTTP/1.1 200 OK\r\n")

    await until(ready)
    assert await answers("127.77.0.1", service["spec"]["ports"][0]["nodePort"]) == "a:hello"
    change = {"spec": {"externalTrafficPolicy": "Cluster"}}
    await world.registry.patch("services", "default", "web", change, "merge")
    await until(lambda: refused("127.77.0.1", port))


@pytest.mark.parametrize("node", ["n1", "n2", ""])
async def test_a_client_gets_pods_of_its_own_node_only_where_traffic_stays_on_it(node: str) -> None:
    asked = []

    async def find(client: Any, place: ListenAddress) -> str:
        asked.append((client[0], place))
        return node

    async with serving(find) as world:
        await world.service("web", ports=PORTS, internalTrafficPolicy="Local")
        first, second = await world.program("a", "127.77.0.2"), await world.program("b", "127.77.0.3")
        await world.endpoints("web", ("127.77.0.2", first), node="n1")
        await world.endpoints("web", ("127.77.0.3", second), node="n2", others=True)
        await until(lambda: listening(8080) & {"127.211.33.0"})
        said = {"n1": "a:hello", "n2": "b:hello"}.get(node)
        for _ in range(4):
            if said:
                assert await answers("127.211.33.0", 8080) == said
            else:
                assert await refused("127.211.33.0", 8080)
        assert set(asked) == {("127.0.0.1", ListenAddress("127.211.33.0", 8080))}


async def test_datagrams_stay_on_the_node_of_their_client_too() -> None:
    here = ["n2"]

    async def find(client: Any, place: ListenAddress) -> str:
        return here[0]

    async with serving(find) as world, echo("a", "127.77.0.2") as (_, first), echo("b", "127.77.0.3") as (_, second):
        ports = [{"name": "web", "port": 8080, "protocol": "UDP"}]
        await world.service("web", ports=ports, internalTrafficPolicy="Local")
        await world.endpoints("web", ("127.77.0.2", first), protocol="UDP", node="n1")
        await world.endpoints("web", ("127.77.0.3", second), protocol="UDP", node="n2", others=True)
        for node, said in (("n2", "b:x"), ("n1", "a:x")):
            here[0] = node
            client = UDPClient("127.211.33.0", 8080)
            assert [await first_answer(client, "x"), await client.ask("x")] == [said] * 2
            client.socket.close()
        here[0] = "n3"
        client = UDPClient("127.211.33.0", 8080)
        with pytest.raises(TimeoutError):
            await client.ask("x")
        client.socket.close()


async def refused(host: str, port: int) -> bool:
    with contextlib.suppress(ConnectionError):
        await ask(host, port)
        return False
    return True


async def test_a_host_port_is_served_while_its_pod_is_ready(world: World) -> None:
    port = await world.program("a", "127.77.0.2")
    with socket.create_server(("127.77.0.9", 0)) as probe:
        free = probe.getsockname()[1]
    ports = [{"containerPort": port, "hostPort": free, "hostIP": "127.77.0.9"}]
    spec = {"nodeName": "n1", "containers": [{"name": "m", "image": "x", "ports": ports}]}
    await world.registry.create("pods", "default", {"metadata": {"name": "p"}, "spec": spec})
    ready = {
        "phase": "Running",
        "hostIP": "127.77.0.1",
        "podIP": "127.77.0.2",
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await world.registry.patch("pods", "default", "p", {"status": ready}, "merge", subresource="status")
    assert await answers("127.77.0.9", free) == "a:hello"
    await world.registry.delete("pods", "default", "p", grace=0)
    await until(lambda: refused("127.77.0.9", free))


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
    # The proxy handles Services in order: once it has reported the second, it has handled the first.
    second = await world.service("second", ports=[{"name": "web", "port": port}])
    await world.endpoints("second", ("127.77.0.3", await world.program("b", "127.77.0.3")))
    (message,) = await until(world.events)
    assert message == f"port {port} of {second['spec']['clusterIP']} is in use by another program on this machine"
