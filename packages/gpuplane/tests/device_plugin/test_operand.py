"""The device plugin on one node, with a kubelet in the same process: health in GPUNode, failures, and recovery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpuplane import names
from gpuplane.api import gpunode as api
from gpuplane.api.gpunode import NOT_LISTED, GPUNode, GPUNodeStatus, Stage, StageName, StageState
from gpuplane.api.pluginconfig import parse
from gpuplane.device_plugin import PluginDevice, ResourcePlugin, run
from gpuplane.device_plugin.health import QUIET_CHECKS
from gpuplane.hardware import GPUFacts, HealthEvent, HealthEventKind
from gpuplane.hardware.health import xid_event
from gpuplane.host import Host
from gpuplane.operand import OperandContext
from gpuplane.operand.wrong_gpus import COMPUTES_WRONG, write_wrong_gpus
from gpuplane.sharing.findings import NO_SHARES
from gpuplane.sharing.mps import daemons, ready_text
from kubekit.api.core import Node
from kubekit.api.meta import ObjectMeta
from kubekit.errors import InvalidInput, Retryable, Terminal
from kubekit.kube import Conflict, EventType, ListPage, Unreachable, WatchEvent
from tests.support.fake_gpus import FakeGPUs
from tests.support.until import until

GPUS = tuple(
    GPUFacts(index=i, minor=i, uuid=f"GPU-{i}", model="T4", memory_bytes=1, pci="", compute=(7, 5)) for i in range(2)
)


class FakeKubelet:
    """A kubelet in this process that accepts devices, as a light node's does. The next offers raise `fail`."""

    def __init__(self) -> None:
        self.seen: asyncio.Queue[tuple[PluginDevice, ...]] = asyncio.Queue()
        self.plugin: ResourcePlugin | None = None
        self.plugins: dict[str, ResourcePlugin] = {}
        self.fail: list[Exception] = []
        self.away = asyncio.Event()

    async def serve(self, resource: str, plugin: ResourcePlugin) -> None:
        assert resource == plugin.resource
        if self.fail:
            raise self.fail.pop(0)
        self.plugin = self.plugins[resource] = plugin
        self.away.clear()
        watching = asyncio.create_task(self._watch(plugin))
        try:
            await self.away.wait()
        finally:
            watching.cancel()
            del self.plugins[resource]

    async def _watch(self, plugin: ResourcePlugin) -> None:
        async for devices in plugin.watch():
            self.seen.put_nowait(devices)

    async def healthy(self) -> list[bool]:
        return [device.healthy for device in await asyncio.wait_for(self.seen.get(), 10)]


class FakeClient:
    def __init__(self) -> None:
        gpus = tuple(api.GPU(index=i, uuid=f"GPU-{i}", model="T4", memory_mib=1) for i in range(2))
        self.node = GPUNode(metadata=ObjectMeta(name="sim-1"), status=GPUNodeStatus(gpus=gpus))
        self.writes: list[tuple[str, dict[str, Any]]] = []
        self.fail: list[Exception] = []
        self.wrote = asyncio.Event()
        self.labels: dict[str, str] = {}
        self.version = 1
        self.relabelled = asyncio.Event()

    def choose(self, config: str) -> None:
        """Label the Node with the name of a configuration; "" removes the label."""
        self.labels = {"nvidia.com/device-plugin.config": config} if config else {}
        self.version += 1
        self.relabelled.set()

    def _machine(self) -> Node:
        return Node(metadata=ObjectMeta(name="sim-1", uid="n", resource_version=str(self.version), labels=self.labels))

    async def pages(self, kind: type, *where: Any, bad: object) -> AsyncIterator[ListPage]:
        assert (kind, where[2]) == (Node, "metadata.name=sim-1")
        yield ListPage([self._machine()], "1", "")

    async def watch(self, kind: type, *where: Any, bad: object) -> AsyncIterator[WatchEvent[Node]]:
        while True:
            await self.relabelled.wait()
            self.relabelled.clear()
            yield WatchEvent(EventType.MODIFIED, self._machine(), str(self.version))

    async def get(self, kind: type, name: str) -> GPUNode:
        assert (kind, name) == (GPUNode, "sim-1")
        return self.node

    async def apply(self, body: dict[str, Any], manager: str, *, resource: object) -> None:
        if self.fail:
            raise self.fail.pop(0)
        status = self.node.status
        new = msgspec.convert(body["status"], GPUNodeStatus)
        await self._wrote(
            manager,
            body["status"],
            msgspec.structs.replace(status, stages={**status.stages, **new.stages}, summary=new.summary),
        )

    async def patch(self, kind: type, name: str, patch: dict[str, Any], *, manager: str) -> None:
        """Apply a merge patch: a null removes its key."""
        if self.fail:
            raise self.fail.pop(0)
        status = self.node.status
        health = {**status.health, **patch["status"]["health"]}
        health = {uuid: reason for uuid, reason in health.items() if reason is not None}
        texts = {key: text for key, text in patch["status"]["summary"].items() if text is not None}
        summary = msgspec.convert(texts, api.Summary)
        await self._wrote(manager, patch["status"], msgspec.structs.replace(status, health=health, summary=summary))

    async def _wrote(self, manager: str, body: dict[str, Any], status: GPUNodeStatus) -> None:
        self.node = msgspec.structs.replace(self.node, status=status)
        self.writes.append((manager, body))
        self.wrote.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        await until(holds, changed=self.wrote)

    @property
    def stage(self) -> Stage | None:
        return self.node.status.stages.get(StageName.DEVICE_PLUGIN.value)


class World:
    def __init__(self) -> None:
        self.gpus, self.kubelet, self.client = FakeGPUs(GPUS), FakeKubelet(), FakeClient()
        self.opened = 0
        self.cannot_open: list[Exception] = []
        self.slept: list[float] = []
        self.on_open: Callable[[], None] = lambda: None

    def open_gpus(self) -> FakeGPUs:
        self.opened += 1
        if self.cannot_open:
            raise self.cannot_open.pop(0)
        opened = self.gpus
        self.on_open()
        return opened

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self, **more: Any) -> AsyncIterator[asyncio.Task[None]]:
        facts: dict[str, Any] = {
            "node_name": "sim-1",
            "namespace": "gpu-operator",
            "client": self.client,
            "now": lambda: "2026-01-01T00:00:00.000000Z",
            "open_gpus": self.open_gpus,
            "kubelet": self.kubelet,
            "sleep": self.sleep,
            "pod_name": "plugin-abc",
        }
        task = asyncio.create_task(run(OperandContext(**{**facts, **more})))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def world() -> World:
    return World()


async def test_all_well_is_no_write(world: World) -> None:
    async with world.running():
        assert await world.kubelet.healthy() == [True, True]
    assert world.client.writes == []
    assert world.gpus.closed == 1


async def test_a_critical_xid_reaches_kubelet_and_gpunode_and_recovery_takes_it_back(world: World) -> None:
    async with world.running():
        await world.kubelet.healthy()
        world.gpus.tell(xid_event("GPU-1", 31))
        world.gpus.tell(xid_event("GPU-1", 79))
        assert await world.kubelet.healthy() == [True, False]
        await world.client.until(lambda: bool(world.client.node.status.health))
        assert world.client.node.status.health == {"GPU-1": "Xid 79: fallen off the bus"}
        assert world.client.node.status.summary.gpus == "1/2"
        world.gpus.tell(HealthEvent(uuid="GPU-1", kind=HealthEventKind.RECOVERED))
        assert await world.kubelet.healthy() == [True, True]
        await world.client.until(lambda: not world.client.node.status.health)
    assert [manager for manager, _ in world.client.writes] == ["gpuplane-health"] * 2


async def test_the_kubelet_is_told_while_the_api_server_is_away(world: World) -> None:
    world.client.fail = [Unreachable("refused"), Unreachable("refused"), Conflict("somebody wrote")]
    async with world.running():
        await world.kubelet.healthy()
        world.gpus.tell(xid_event("GPU-0", 48))
        assert await world.kubelet.healthy() == [False, True]
        await world.client.until(lambda: bool(world.client.node.status.health))


async def test_a_gpu_that_answers_well_again_is_trusted_without_an_event(world: World) -> None:
    async with world.running():
        await world.kubelet.healthy()
        world.gpus.tell(xid_event("GPU-0", 62))
        assert await world.kubelet.healthy() == [False, True]
        assert await world.kubelet.healthy() == [True, True]
    assert world.slept.count(60.0) >= QUIET_CHECKS


async def test_a_gpu_that_begins_to_compute_wrongly_is_taken_out_and_comes_back(world: World, tmp_path: Path) -> None:
    host = Host(tmp_path)
    (tmp_path / "run/nvidia/validations").mkdir(parents=True)
    async with world.running(host_root=tmp_path):
        assert await world.kubelet.healthy() == [True, True]
        write_wrong_gpus(host, {"GPU-1": "fails the vectorAdd: element 7"})
        assert await world.kubelet.healthy() == [True, False]
        await world.client.until(lambda: world.client.node.status.summary.gpus == "1/2")
        for _ in range(3 * QUIET_CHECKS):  # NVML reports no error
            await asyncio.sleep(0)
        world.gpus.tell(HealthEvent(uuid="GPU-1", kind=HealthEventKind.RECOVERED))
        await asyncio.sleep(0.01)
        assert world.kubelet.seen.empty()
    async with world.running(host_root=tmp_path):
        assert await world.kubelet.healthy() == [True, False]
        write_wrong_gpus(host, {})
        assert await world.kubelet.healthy() == [True, True]
        await world.client.until(lambda: not world.client.node.status.health)


async def test_a_gpu_that_nvml_lost_before_the_start_is_named(world: World) -> None:
    gone = api.GPU(index=2, uuid="GPU-2", model="T4", memory_mib=1)
    status = msgspec.structs.replace(world.client.node.status, gpus=(*world.client.node.status.gpus, gone))
    world.client.node = msgspec.structs.replace(world.client.node, status=status)
    async with world.running():
        assert await world.kubelet.healthy() == [True, True]
        await world.client.until(lambda: world.client.node.status.health == {"GPU-2": NOT_LISTED})
    assert world.slept == []


async def test_a_lost_gpu_keeps_its_cause_when_driver_and_plugin_start_again(world: World, booted: Path) -> None:
    xid = {"GPU-1": "Xid 79: fallen off the bus"}
    status = msgspec.structs.replace(world.client.node.status, health=xid)
    world.client.node = msgspec.structs.replace(world.client.node, status=status)
    write_wrong_gpus(Host(booted), {"GPU-0": COMPUTES_WRONG + "element 7"})
    async with world.running(host_root=booted):
        assert await world.kubelet.healthy() == [False]
        write_wrong_gpus(Host(booted), {})
        assert await world.kubelet.healthy() == [True]
        assert world.client.node.status.health == xid
        world.gpus = FakeGPUs(GPUS)
        (booted / "dev/nvidia1").write_text("")
        assert await world.kubelet.healthy() == [True, True]
        await world.client.until(lambda: not world.client.node.status.health)


async def test_a_lost_gpu_that_computed_wrongly_before_stays_lost(world: World, booted: Path) -> None:
    wrong = {"GPU-1": COMPUTES_WRONG + "element 7"}
    status = msgspec.structs.replace(world.client.node.status, health=wrong)
    world.client.node = msgspec.structs.replace(world.client.node, status=status)
    async with world.running(host_root=booted):
        assert await world.kubelet.healthy() == [True]
        await until_followed(world, booted, [False])
        both = wrong | {"GPU-0": COMPUTES_WRONG + "element 7"}
        await world.client.until(lambda: world.client.node.status.health == both)


@pytest.fixture
def booted(world: World, tmp_path: Path) -> Path:
    """Return the root of a booted node, where NVML was opened before the device node of its second GPU existed."""
    world.gpus = FakeGPUs(GPUS[:1])
    for directory in ("dev", "run/nvidia/validations"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "dev/nvidia0").touch()
    return tmp_path


@pytest.mark.parametrize("file", ["dev/nvidia1", names.DRIVER_READY])
async def test_a_gpu_that_comes_after_the_plugin_is_offered(world: World, booted: Path, file: str) -> None:
    async with world.running(host_root=booted):
        assert await world.kubelet.healthy() == [True]
        await world.client.until(lambda: world.client.node.status.health == {"GPU-1": NOT_LISTED})
        world.gpus = FakeGPUs(GPUS)
        (booted / file).write_text("")
        assert await world.kubelet.healthy() == [True, True]
        await world.client.until(lambda: not world.client.node.status.health)
        # No file is missing from here on, so the plugin ignores changes of files.
        (booted / "dev/nvidia0").unlink()
        await until_followed(world, booted, [True, False])
    assert world.opened == 2


async def test_a_gpu_that_comes_while_nvml_is_opened_is_offered(world: World, booted: Path) -> None:
    def come() -> None:
        world.gpus = FakeGPUs(GPUS)
        (booted / "dev/nvidia1").touch()

    world.on_open = come
    async with world.running(host_root=booted):
        while (offered := await world.kubelet.healthy()) == [True]:
            pass  # events of the NVML session in which the GPU was added
        assert offered == [True, True]
    assert world.opened == 2


async def test_a_lost_gpu_does_not_make_the_plugin_register_again(world: World, booted: Path) -> None:
    (booted / "dev/nvidia1").touch()
    Host(booted).write_atomic(names.DRIVER_READY, b"IS_HOST_DRIVER=true", durable=False)
    async with world.running(host_root=booted):
        assert await world.kubelet.healthy() == [True]
        (booted / "dev/nvidia1").chmod(0o666)  # a program that opens the driver changes the mode like this
        (booted / names.DRIVER_READY).write_bytes(b"IS_HOST_DRIVER=true")
        await until_followed(world, booted, [False])
    assert world.opened == 1


async def until_followed(world: World, root: Path, healthy: list[bool]) -> None:
    """Wait until the plugin has handled all changes of files: break the last GPU, and wait for `healthy`."""
    write_wrong_gpus(Host(root), {f"GPU-{len(healthy) - 1}": COMPUTES_WRONG + "element 7"})
    assert await world.kubelet.healthy() == healthy


async def test_a_kubelet_that_restarts_is_offered_the_gpus_again(world: World) -> None:
    async with world.running():
        for _ in range(3):
            assert await world.kubelet.healthy() == [True, True]
            world.kubelet.away.set()
        assert await world.kubelet.healthy() == [True, True]
    assert world.opened == 1


async def test_a_failure_is_written_once_and_taken_back_when_a_kubelet_listens(world: World) -> None:
    world.cannot_open = [Retryable("no libnvidia-ml.so.1 found", cure="install the driver")] * 3
    async with world.running():
        assert await world.kubelet.healthy() == [True, True]
        await world.client.until(lambda: world.client.stage is not None and world.client.stage.reason == "")
        assert world.client.stage is not None
        assert world.client.stage.state is StageState.RUNNING
    first = world.client.writes[0][1]["stages"]["device-plugin"]
    assert (first["state"], first["reason"], first["cure"]) == ("failed", "PluginNotServing", "install the driver")
    assert len(world.client.writes) == 2
    assert world.slept == [1.0, 2.0, 4.0]


async def test_a_driver_that_goes_away_is_opened_anew(world: World) -> None:
    async with world.running():
        await world.kubelet.healthy()
        world.gpus.tell(Retryable("the driver is going away"))
        assert await world.kubelet.healthy() == [True, True]
    assert (world.opened, world.gpus.closed) == (2, 2)


async def test_what_only_a_new_process_heals_ends_this_one(world: World) -> None:
    world.cannot_open = [Terminal("NVML is of another version than the driver")]
    async with world.running() as task:
        with pytest.raises(Terminal, match="another version"):
            await task
    assert world.client.stage is not None
    assert world.client.stage.reason == "PluginFailed"


async def test_a_wrong_configuration_is_said_and_followed_once_it_is_right(world: World, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("version: v1\nflags: {gdsEnabled: true}\n")
    async with world.running(config=config):
        await world.client.until(lambda: world.client.stage is not None)
        assert world.client.stage is not None
        assert world.client.stage.reason == "InvalidPluginConfig"
        assert "does not pass GPUDirect Storage" in world.client.stage.message
        config.write_text("version: v1\nflags: {plugin: {deviceListStrategy: cdi-cri}}\n")
        await world.kubelet.healthy()
        assert world.kubelet.plugin is not None
        assert world.kubelet.plugin.allocate(["GPU-0"]).envs == {}
        config.write_text("version: v1\nflags: {plugin: {deviceListStrategy: cdi-annotations}}\n")
        await world.kubelet.healthy()
        assert world.kubelet.plugin.allocate(["GPU-0"]).cdi_devices == ()


async def test_replicas_of_mps_are_offered_while_their_daemons_are_ready(world: World, tmp_path: Path) -> None:
    config, root = tmp_path / "config.yaml", tmp_path / "run/nvidia/mps"
    text = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2, rename: shared}]}}\n"
    config.write_text(text)
    ready = ready_text(daemons(GPUS, parse(yaml.safe_load(text))))
    root.mkdir(parents=True)
    (root / ".failed").write_text("the driver has none")
    async with world.running(config=config, host_root=tmp_path):
        await world.client.until(lambda: world.client.stage is not None)
        assert world.client.stage is not None
        assert "the driver has none" in world.client.stage.message
        assert world.kubelet.plugin is None
        (root / ".ready").write_text("another configuration's")
        (root / ".failed").unlink()
        (root / ".ready").write_text(ready)
        assert await world.kubelet.healthy() == [True] * 4
        plugin = world.kubelet.plugins["nvidia.com/shared"]
        given = plugin.allocate(["GPU-0::1"])
        assert given.envs["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/shared/pipe"
        assert [(mount.host_path, mount.container_path, mount.read_only) for mount in given.mounts] == [
            ("/run/nvidia/mps/nvidia.com/shared/pipe", "/mps/nvidia.com/shared/pipe", False),
            ("/run/nvidia/mps/shm", "/dev/shm", False),
        ]
        with pytest.raises(InvalidInput, match="failRequestsGreaterThanOne"):
            plugin.allocate(["GPU-0::0", "GPU-1::0"])
        (root / ".ready").unlink()
        await world.client.until(
            lambda: world.client.stage is not None and "no MPS control daemon" in world.client.stage.message
        )
        assert not world.kubelet.plugins
        (root / ".ready").write_text(ready)
        assert await world.kubelet.healthy() == [True] * 4


async def test_mps_and_shares_with_limits_are_not_for_one_node(world: World, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n")
    async with world.running(config=config, environment={"GPUPLANE_DIALECTS": "nvidia,alpha"}):
        await world.client.until(lambda: world.client.stage is not None)
    assert world.client.stage is not None
    assert world.client.stage.reason == "InvalidPluginConfig"
    assert NO_SHARES in world.client.stage.message


async def test_named_configurations_switch_with_the_label(world: World, tmp_path: Path) -> None:
    shared = "{name: nvidia.com/gpu, replicas: 3, rename: third}"
    (tmp_path / "default").write_text("version: v1\n")
    (tmp_path / "thirds").write_text(f"version: v1\nsharing: {{timeSlicing: {{resources: [{shared}]}}}}\n")
    async with world.running(config=tmp_path):
        assert await world.kubelet.healthy() == [True, True]
        world.client.choose("thirds")
        assert await world.kubelet.healthy() == [True] * 6
        assert list(world.kubelet.plugins) == ["nvidia.com/third"]
        world.gpus.tell(xid_event("GPU-1", 79))
        assert await world.kubelet.healthy() == [True] * 3 + [False] * 3, "a GPU's health is its replicas'"
        world.client.choose("none-such")
        await world.client.until(lambda: world.client.stage is not None)
        assert world.client.stage is not None
        assert "'none-such'" in world.client.stage.message
        world.client.choose("")
        await world.kubelet.healthy()
        assert list(world.kubelet.plugins) == ["nvidia.com/gpu"]


async def test_a_node_without_driver_may_be_no_failure(world: World, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("version: v1\nflags: {failOnInitError: false}\n")
    world.cannot_open = [Retryable("no libnvidia-ml.so.1 found")] * 3
    async with world.running(config=config):
        assert await world.kubelet.healthy() == [True, True]
    assert world.client.writes == []
