"""Hooks and probes that are no commands: GETs, pauses, gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.support.until import until
from tinykube.kubelet.grpchealth import grpc_problem, request_bytes

SLEEP = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


def container(**more: Any) -> dict[str, Any]:
    return {"name": "c", "image": "busybox:1.36", "command": ["sh", "-c", SLEEP], **more}


class Web:
    """Answers every GET with a status, and remembers the paths."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.status = 200
        self.asked = asyncio.Event()
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.paths.append(head.split()[1].decode())
        writer.write(f"HTTP/1.1 {self.status} X\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        self.asked.set()

    def get(self, path: str) -> dict[str, Any]:
        return {"httpGet": {"host": "127.0.0.1", "port": self.port, "path": path}}


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    made = Web()
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()
    await server.wait_closed()


async def test_a_start_and_an_end_are_told_by_get(api: Any, make_node: Any, web: Web) -> None:
    await make_node()
    hooks = {"postStart": web.get("/started"), "preStop": web.get("/stops")}
    await api.create_pod(containers=[container(lifecycle=hooks)])
    await api.phase("Running")
    await web.asked.wait()
    assert web.paths == ["/started"]
    await api.registry.delete("pods", "default", "one")
    await api.until(lambda: api.pod() is None, "its end")
    assert web.paths == ["/started", "/stops"]


async def test_hooks_that_fail_are_reported(api: Any, make_node: Any, web: Web) -> None:
    await make_node()
    web.status = 500
    await api.create_pod(containers=[container(lifecycle={"preStop": web.get("/stops")})])
    await api.phase("Running")
    await api.registry.delete("pods", "default", "one")
    await api.until(lambda: "FailedPreStopHook" in api.reasons(), "the event")
    await api.create_pod("two", containers=[container(lifecycle={"postStart": web.get("/starts")})])
    await api.until(lambda: "FailedPostStartHook" in api.reasons("two"), "the event")


async def test_an_end_waits_for_the_pause_before_it(api: Any, make_node: Any, clock: Any) -> None:
    await make_node(clock=clock)
    pause = {"preStop": {"sleep": {"seconds": 20}}}
    await api.create_pod(terminationGracePeriodSeconds=60, containers=[container(lifecycle=pause)])
    await api.phase("Running")
    await api.registry.delete("pods", "default", "one")
    await api.until(lambda: "Killing" in api.reasons(), "the event")
    clock.jump(19)
    assert api.container()["state"].get("running")

    def later() -> bool:
        clock.jump(1)
        return api.pod() is None

    await until(later, what="its end")


# -- gRPC ------------------------------------------------------------------------------------------------------------


class Health(grpc.GenericRpcHandler):
    """The health service: `states` by service, as numbers of the protocol."""

    def __init__(self, states: dict[str, int]) -> None:
        self.states = states

    def service(self, details: Any) -> Any:
        if details.method != "/grpc.health.v1.Health/Check":
            return None

        async def check(request: bytes, context: Any) -> bytes:
            known = {request_bytes(name): state for name, state in self.states.items()}
            if request not in known:
                await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
            return b"\x08" + bytes([known[request]])

        return grpc.unary_unary_rpc_method_handler(check)


@pytest.fixture
async def health() -> AsyncIterator[tuple[Health, int]]:
    server = grpc.aio.server()
    made = Health({"": 1, "ill": 2})
    server.add_generic_rpc_handlers((made,))
    port = server.add_insecure_port("0.0.0.0:0")  # pods have addresses of their own
    await server.start()
    yield made, port
    await server.stop(None)


async def test_health_is_asked_for_by_service(health: tuple[Health, int]) -> None:
    _, port = health
    assert await grpc_problem("127.0.0.1", port, "", 30) == ""
    assert await grpc_problem("127.0.0.1", port, "ill", 30) == 'service unhealthy (responded with "NOT_SERVING")'
    assert await grpc_problem("127.0.0.1", port, "x" * 200, 30) == "error: health rpc probe failed: unknown service"


async def test_a_server_that_is_not_there_or_is_another(web: Web) -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    assert "does not implement the grpc health protocol" in await grpc_problem("127.0.0.1", port, "", 30)
    await server.stop(None)
    assert "failed to connect service" in await grpc_problem("127.0.0.1", port, "", 30)


async def test_a_pod_is_ready_as_long_as_it_is_serving(
    api: Any, make_node: Any, clock: Any, health: tuple[Health, int]
) -> None:
    await make_node(clock=clock)
    service, port = health
    probe = {"grpc": {"port": port}, "periodSeconds": 5, "failureThreshold": 1, "timeoutSeconds": 30}
    await api.create_pod(containers=[container(readinessProbe=probe)])
    await api.until(lambda: api.container().get("ready"), "ready")
    service.states[""] = 2
    await api.until(clock.timers, "the next probe")
    clock.jump(6)
    await api.until(lambda: api.container().get("ready") is False, "not ready")
    await api.until(lambda: "Unhealthy" in api.reasons(), "the event")


async def test_an_end_asks_a_sidecar_that_still_runs(api: Any, make_node: Any) -> None:
    """The hook before the end of the main container needs the sidecar."""
    await make_node()
    shared = {"volumeMounts": [{"name": "w", "mountPath": "/w"}]}
    wait_for = "until test -e /w/{}; do sleep 0.05; done"
    side = f"{wait_for.format('asked')}; touch /w/answered; {wait_for.format('nothing')}"
    side = f"trap 'touch /w/side-ended; exit 0' TERM; {side}"
    asks = f"touch /w/asked; {wait_for.format('answered')}; test ! -e /w/side-ended && touch /w/good"
    asks = f"{wait_for.format('trapped')}; {asks}"  # NB: process 1 does not get a SIGTERM that comes before its trap
    main = "trap 'test -e /w/good && exit 0; exit 1' TERM; touch /w/trapped; while :; do sleep 0.05; done"
    await api.create_pod(
        terminationGracePeriodSeconds=600,
        initContainers=[
            container(command=["sh", "-c", side], restartPolicy="Always", **shared) | {"name": "side"},
        ],
        containers=[
            container(
                command=["sh", "-c", main], lifecycle={"preStop": {"exec": {"command": ["sh", "-c", asks]}}}, **shared
            )
        ],
        volumes=[{"name": "w", "emptyDir": {}}],
    )
    await api.phase("Running")
    ends: list[int] = []
    api.registry.subscribe(
        "pods",
        lambda *_: ends.extend(
            s["state"]["terminated"]["exitCode"]
            for s in api.status().get("containerStatuses") or ()
            if "terminated" in s["state"]
        ),
    )
    await api.registry.delete("pods", "default", "one")
    await api.until(lambda: api.pod() is None, "its end")
    assert set(ends) == {0}
