"""The question whether a runtime is well, against real gRPC, and what follows from each answer after a change."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from gpuplane.host import Command, Completed
from gpuplane.toolkit import ToolkitError, apply, by_hand, health, restart
from gpuplane.toolkit.applying import unconfigure
from gpuplane.toolkit.facts import RUNTIMES
from gpuplane.toolkit.places import CONTAINERD, CRIO, DOCKER, PLAIN, RuntimeName, RuntimePaths
from tinykube.kubelet.runtimes import ContainerRuntime, RuntimeDown, read_config, runtime
from tinykube.kubelet.runtimes.endpoint import RuntimeEndpoint

MAIN = {
    "containerd": ("etc/containerd/config.toml", "version = 2\n"),
    "docker": ("etc/docker/daemon.json", "{}"),
    "cri-o": ("etc/crio/crio.conf", "[crio.runtime]\n"),
}
VERSIONS = {"containerd": "1.7.2", "docker": "27.1.0", "cri-o": "1.32.8"}


@asynccontextmanager
async def served(world: Any, place: RuntimePaths, answer: Callable[[Any, Any], Any]) -> AsyncIterator[None]:
    path = world.root / place.socket
    path.parent.mkdir(parents=True, exist_ok=True)
    server = await asyncio.start_unix_server(answer, path)
    try:
        yield
    finally:
        server.close()
        await asyncio.sleep(0.01)  # for those who hang up
        path.unlink(missing_ok=True)


@pytest.mark.parametrize(("service", "well"), [("runtime.v1.RuntimeService", True), ("runtime.v9.Other", False)])
async def test_grpcs_own_server_is_understood(world: Any, service: str, well: bool) -> None:
    async def version(request: bytes, _: object) -> bytes:
        assert request == b""
        return b"\x0a\x050.1.0\x12\x0acontainerd\x1a\x06v2.4.2\x22\x02v1"

    server = grpc.aio.server()
    handlers = {"Version": grpc.unary_unary_rpc_method_handler(version)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    path = world.root / CRIO.socket
    path.parent.mkdir(parents=True)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    assert await health.answers(world.host, CRIO) is well
    assert await health.release(world.host, CRIO) == ("2.4.2" if well else "")
    await server.stop(None)
    assert not await health.answers(world.host, CRIO)


async def test_a_simulated_runtime_is_understood_by_grpcs_own_client(world: Any) -> None:
    endpoint = RuntimeEndpoint(world.root / "s", "containerd", "1.7.2")
    endpoint.open()
    async with grpc.aio.insecure_channel(f"unix:{world.root / 's'}") as channel:
        for _ in range(2):
            answer = await channel.unary_unary("/runtime.v1.RuntimeService/Version")(b"")
            assert answer == b"\x0a\x050.1.0\x12\x0acontainerd\x1a\x051.7.2\x22\x02v1"
    endpoint.close()


@pytest.mark.parametrize(
    ("place", "said", "well"),
    [
        (DOCKER, b"HTTP/1.1 200 OK\r\n\r\nOK", True),
        (DOCKER, b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
        (DOCKER, b"", False),
        (DOCKER, None, False),
        (CONTAINERD, b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", False),
        (CONTAINERD, bytes(9) + b"\x00\x00\x00\x07\x00\x00\x00\x00\x00", False),
        (CONTAINERD, None, False),
    ],
)
async def test_other_answers(
    world: Any, monkeypatch: pytest.MonkeyPatch, place: RuntimePaths, said: bytes | None, well: bool
) -> None:
    if said is None:
        monkeypatch.setattr(health, "_SILENCE", 0.05)

    async def answer(reader: Any, writer: Any) -> None:
        await reader.read(1)
        if said is None:
            await reader.read()
        else:
            writer.write(said)
        writer.close()

    async with served(world, place, answer):
        assert await health.answers(world.host, place) is well
        assert await health.release(world.host, place) == ""
        assert await health.info(world.host, place) is None


class Service:
    """A simulated runtime and its service manager, in time that passes when it is slept through.

    `late` is how long it is away after a signal; `refuses` says whether there is a configuration with which it does
    not start; `given_up` that its service manager then leaves it alone.
    """

    def __init__(self, world: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        path, text = MAIN[kind]
        world.write(path, text)
        self.world, self.place = world, PLAIN[RuntimeName(kind)]
        self.late = 0.0
        self.refuses: Callable[[], bool] = lambda: False
        self.given_up = False
        self.told = 0
        self.clock = 0.0
        self.back_at: float | None = None
        monkeypatch.setattr(runtime, "read_config", self.read)
        monkeypatch.setattr(os, "kill", lambda pid, number: self.hang_up())
        world.host.runner = self
        self.runtime = ContainerRuntime(world.root, kind, VERSIONS[kind])
        self.runtime.serve()

    def read(self, *arguments: Any) -> Any:
        if self.refuses():
            raise RuntimeDown("unknown field")
        return read_config(*arguments)

    def hang_up(self) -> None:
        self.told += 1
        if self.late:
            self.runtime.endpoint.close()
            self.back_at = self.clock + self.late
        else:
            self.runtime.reload()

    async def run(self, command: Command) -> Completed:
        """systemctl."""
        verb = command.argv[1]
        if verb == "restart":
            self.hang_up()
            failed = bool(self.runtime.down)
            return Completed(command, int(failed), stderr="Job for crio.service failed" if failed else "")
        if verb == "start" and self.back_at is None:
            self.runtime.reload()
        return Completed(command, 0)

    async def sleep(self, seconds: float) -> None:
        self.clock += seconds
        if self.back_at is not None and self.clock >= self.back_at:
            self.back_at = None
            self.runtime.reload()
        elif self.runtime.down and not self.given_up:
            self.runtime.reload()  # as its service manager would, again and again
        await asyncio.sleep(0)

    async def configure(self) -> tuple[str, ...]:
        said = f"{self.runtime.kind}://{self.runtime.version}"
        return await apply(self.world.host, self.world.plan(said), sleep=self.sleep)

    def ours(self) -> bool:
        """Return whether our configuration is there."""
        drop_in = self.place.drop_in or self.place.config
        return b"nvidia" in (self.world.host.read(drop_in) or b"")


@pytest.fixture
async def service(world: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    made: list[Service] = []

    def make(kind: str) -> Service:
        made.append(Service(world, kind, monkeypatch))
        return made[-1]

    yield make
    for one in made:
        one.runtime.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize("kind", MAIN)
@pytest.mark.parametrize("late", [0.0, 12.0])
async def test_a_runtime_is_told_once_and_waited_for(service: Any, kind: str, late: float) -> None:
    one = service(kind)
    one.late = late
    assert await one.configure()
    assert one.told == 1
    assert late <= one.clock < late + 1
    assert "nvidia" in one.runtime.config.handlers
    assert await health.answers(one.world.host, one.place)
    assert await health.release(one.world.host, one.place) == VERSIONS[kind]
    assert await one.configure() == ()
    assert one.told == 1  # nothing changed, nothing told
    await unconfigure(one.world.host, sleep=one.sleep)
    assert one.told == (3 if kind == "docker" else 2)  # docker forgets only what something else takes the place of
    assert "nvidia" not in one.runtime.config.handlers
    assert one.runtime.config.default in ("runc", "crun")
    assert one.world.host.read(one.place.config) == MAIN[kind][1].encode()


@pytest.mark.parametrize("kind", ["containerd", "cri-o"])
@pytest.mark.parametrize("given_up", [False, True])
async def test_a_runtime_that_does_not_start_with_ours_gets_its_own_back(
    service: Any, tree_of: Any, kind: str, given_up: bool
) -> None:
    one = service(kind)
    before = one.world.host.read(one.place.config)
    one.refuses, one.given_up = one.ours, given_up
    with pytest.raises(ToolkitError) as caught:
        await one.configure()
    assert caught.value.reason == ("RuntimeDown" if kind == "containerd" else "RestartFailed")
    assert caught.value.what.endswith("it answers again with the configuration of before")
    assert caught.value.cure == f"see `journalctl -u {one.place.units[0]}` on the node"
    assert one.world.host.read(one.place.config) == before
    assert not one.ours()
    assert not one.runtime.down
    assert await health.answers(one.world.host, one.place)
    assert not one.world.host.exists("run/nvidia/validations/toolkit-ready")
    told, kept = one.told, tree_of(one.world.root)
    with pytest.raises(ToolkitError, match="was taken back"):
        await one.configure()  # the same is not tried on it again
    assert (one.told, tree_of(one.world.root)) == (told, kept)
    one.refuses = lambda: False
    await unconfigure(one.world.host, sleep=one.sleep)
    assert await one.configure()


async def test_docker_that_goes_on_as_it_was_has_refused_ours(service: Any) -> None:
    one = service("docker")
    assert (await health.info(one.world.host, DOCKER)).runtimes.keys() == {"runc"}
    one.refuses = one.ours
    with pytest.raises(ToolkitError) as caught:
        await one.configure()
    assert caught.value.reason == "ConfigurationRefused"
    assert caught.value.what == (
        "docker refuses its configuration: it has no runtime nvidia; it answers again with the configuration of before"
    )
    assert one.world.host.read_text("etc/docker/daemon.json") == "{}"
    assert one.clock < 10
    one.refuses = lambda: False
    await unconfigure(one.world.host, sleep=one.sleep)
    assert await one.configure()
    assert (await health.info(one.world.host, DOCKER)).runtimes.keys() == {"runc", *RUNTIMES}


async def test_docker_forgets_runtimes_whose_programs_are_gone(service: Any) -> None:
    one = service("docker")
    await one.configure()
    assert (one.runtime.config.default, one.runtime.config.handlers.keys()) == ("nvidia", {"runc", *RUNTIMES})
    (one.world.root / "usr/bin/nvidia-container-runtime").unlink()
    await one.configure()
    assert (one.runtime.config.default, "nvidia" in one.runtime.config.handlers) == ("runc", False)
    assert "nvidia-cdi" in one.runtime.config.handlers
    for program in [*RUNTIMES.values()][1:]:
        (one.world.root / f"usr/bin/{program}").unlink()
    await one.configure()
    assert one.runtime.config.handlers.keys() == {"runc"}
    await unconfigure(one.world.host, sleep=one.sleep)
    assert one.world.host.read_text(DOCKER.config) == "{}"


async def test_a_death_while_docker_forgets_loses_nothing(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = service("docker")
    await one.configure()
    edited = one.world.host.read_text(DOCKER.config).replace("{", '{"debug": true, ', 1)
    one.world.write(DOCKER.config, edited)

    def die() -> None:
        raise KeyboardInterrupt

    hang_up = one.hang_up
    monkeypatch.setattr(one, "hang_up", die)
    with pytest.raises(KeyboardInterrupt):
        await unconfigure(one.world.host, sleep=one.sleep)
    assert '"runtimes": {}' in one.world.host.read_text(DOCKER.config)
    monkeypatch.setattr(one, "hang_up", hang_up)
    await unconfigure(one.world.host, sleep=one.sleep)
    assert json.loads(one.world.host.read_text(DOCKER.config)) == {"debug": True}
    assert one.runtime.config.handlers.keys() == {"runc"}


async def test_docker_that_refuses_to_forget_says_how(service: Any, caplog: pytest.LogCaptureFixture) -> None:
    one = service("docker")
    await one.configure()
    one.refuses = lambda: b'"runtimes": {}' in (one.world.host.read(DOCKER.config) or b"")
    await unconfigure(one.world.host, sleep=one.sleep)
    assert one.world.host.read_text(DOCKER.config) == "{}"
    assert "until `systemctl restart docker`" in caplog.text
    assert one.clock < 10


async def test_a_runtime_that_never_comes_back_is_told_so(service: Any) -> None:
    one = service("containerd")
    one.late = 1e9
    with pytest.raises(ToolkitError) as caught:
        await one.configure()
    assert caught.value.what == (
        "containerd does not answer 30 s after a reload of its configuration; nor with the configuration of before"
    )
    assert caught.value.where == one.world.host.shown("run/containerd/containerd.sock")
    assert one.world.host.read_text("etc/containerd/config.toml") == "version = 2"
    assert one.clock == pytest.approx(60, abs=1)


@pytest.mark.parametrize(("kind", "asked"), [("containerd", "CRI"), ("docker", "/_ping")])
async def test_one_that_listens_and_does_not_answer_is_not_well(
    service: Any, monkeypatch: pytest.MonkeyPatch, kind: str, asked: str
) -> None:
    one = service(kind)
    monkeypatch.setattr(health, "_SILENCE", 0.02)
    monkeypatch.setattr(restart, "_PATIENCE", 1.0)

    def hang_up() -> None:
        one.runtime.endpoint.close()
        (one.world.root / one.place.socket).unlink()
        server.bind(str(one.world.root / one.place.socket))
        server.listen()
        monkeypatch.setattr(one, "hang_up", lambda: None)

    monkeypatch.setattr(one, "hang_up", hang_up)
    with socket.socket(socket.AF_UNIX) as server, pytest.raises(ToolkitError) as caught:
        await one.configure()
    assert f"does not answer {asked} 1 s after" in caught.value.what
    assert not one.ours()


async def test_by_hand_the_runtime_says_its_version_and_is_remembered(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_hand, "open_gpus", lambda *_: world.answers())
    world.write("etc/containerd/config.toml", 'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\nx = 1\n')
    endpoint = RuntimeEndpoint(world.root / CONTAINERD.socket, "containerd", "2.3.1")
    endpoint.open()
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    assert (await by_hand.configure(world.host)).changed
    drop_in = world.host.read(CONTAINERD.drop_in)
    assert b"x = 1" not in drop_in  # 2.1 and later merge what is ours into what is there
    assert b"enable_cdi" not in drop_in  # and have CDI on
    endpoint.close()
    assert (await by_hand.configure(world.host)).changed == ()  # the same, while it cannot be asked
    assert world.host.read(CONTAINERD.drop_in) == drop_in
