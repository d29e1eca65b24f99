"""The plugin over real unix sockets, against a small kubelet that speaks the real protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gpuplane.api.pluginconfig import PluginConfig
from gpuplane.device_plugin.grpc_kubelet import GrpcKubelet
from gpuplane.device_plugin.plugin import UnitPlugin
from gpuplane.hardware import GPUFacts
from gpuplane.sharing.units import resources
from kubekit.errors import Retryable
from kubekit.protocol import deviceplugin_pb2 as pb
from kubekit.protocol.sockets import LONGEST, address
from tinykube.protocol import deviceplugin_pb2_grpc as rpc


def gpu(index: int) -> GPUFacts:
    return GPUFacts(
        index=index,
        minor=index,
        uuid=f"GPU-{index}",
        model="T",
        memory_bytes=1,
        pci="",
        compute=(7, 5),
        numa=index // 2,
    )


def whole(gpus: list[GPUFacts], health: dict[str, str]) -> UnitPlugin:
    [(resource, units)] = resources(gpus, PluginConfig()).items()
    plugin = UnitPlugin(resource, units, gpus, PluginConfig())
    plugin.set_health(health)
    return plugin


class FakeKubelet(rpc.RegistrationServicer):
    """Takes registrations; refuses the first `refuse` of them."""

    def __init__(self, directory: Path, refuse: int = 0) -> None:
        self.directory = directory
        self.refuse = refuse
        self.requests: asyncio.Queue[pb.RegisterRequest] = asyncio.Queue()
        self.answered_at_registration: list[bool] = []

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        if self.refuse:
            self.refuse -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        async with self.plugin(request.endpoint) as stub:
            options = await stub.GetDevicePluginOptions(pb.Empty(), timeout=5)
        self.answered_at_registration.append(options == request.options)
        self.requests.put_nowait(request)
        return pb.Empty()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[FakeKubelet]:
        """From start to stop; like the real one it empties its directory first."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            path.unlink()
        server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(self, server)
        with address(self.directory / "kubelet.sock") as target:
            server.add_insecure_port(target)
            await server.start()
            yield self
            await server.stop(None)
        (self.directory / "kubelet.sock").unlink(missing_ok=True)

    @asynccontextmanager
    async def plugin(self, endpoint: str) -> AsyncIterator[rpc.DevicePluginStub]:
        with address(self.directory / endpoint) as target:
            async with grpc.aio.insecure_channel(target) as channel:
                yield rpc.DevicePluginStub(channel)


@asynccontextmanager
async def served(kubelet_dir: Path, plugin: UnitPlugin) -> AsyncIterator[asyncio.Task[None]]:
    async def no_sleep(_: float) -> None:
        await asyncio.sleep(0)

    async def forever() -> None:
        kubelet = GrpcKubelet(kubelet_dir, no_sleep)
        while True:
            await kubelet.serve(plugin.resource, plugin)

    task = asyncio.create_task(forever())
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(params=["short", "x" * LONGEST])
def kubelet_dir(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Also a path that is too long for a unix socket's address."""
    return tmp_path / request.param


async def test_serves_before_it_registers_and_pushes_changes(kubelet_dir: Path) -> None:
    plugin = whole([gpu(0), gpu(1), gpu(2)], {})
    async with FakeKubelet(kubelet_dir / "device-plugins").listening() as kubelet, served(kubelet_dir, plugin):
        request = await kubelet.requests.get()
        assert (request.version, request.resource_name, request.endpoint) == (
            "v1beta1",
            "nvidia.com/gpu",
            "nvidia-gpu.sock",
        )
        assert kubelet.answered_at_registration == [True]
        async with kubelet.plugin(request.endpoint) as stub:
            stream = stub.ListAndWatch(pb.Empty())
            first = await stream.read()
            assert [(d.ID, d.health, d.topology.nodes[0].ID) for d in first.devices] == [
                ("GPU-0", "Healthy", 0),
                ("GPU-1", "Healthy", 0),
                ("GPU-2", "Healthy", 1),
            ]
            plugin.set_health({"GPU-1": "Xid 79"})
            assert [d.health for d in (await stream.read()).devices] == ["Healthy", "Unhealthy", "Healthy"]
            plugin.set_health({})
            assert [d.health for d in (await stream.read()).devices] == ["Healthy"] * 3
            stream.cancel()


async def test_preferred_allocation_and_allocate(kubelet_dir: Path) -> None:
    plugin = whole([gpu(i) for i in range(4)], {"GPU-3": "Xid 79"})
    async with FakeKubelet(kubelet_dir / "device-plugins").listening() as kubelet, served(kubelet_dir, plugin):
        request = await kubelet.requests.get()
        async with kubelet.plugin(request.endpoint) as stub:
            wanted = pb.PreferredAllocationRequest()
            wanted.container_requests.add(available_deviceIDs=["GPU-1", "GPU-2", "GPU-3"], allocation_size=2)
            wanted.container_requests.add(available_deviceIDs=["GPU-0"], allocation_size=1)
            answer = await stub.GetPreferredAllocation(wanted)
            assert [list(r.deviceIDs) for r in answer.container_responses] == [["GPU-2", "GPU-3"], ["GPU-0"]]

            allocate = pb.AllocateRequest()
            allocate.container_requests.add(devices_ids=["GPU-1"])
            got = (await stub.Allocate(allocate)).container_responses[0]
            assert dict(got.envs) == {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}
            assert [d.name for d in got.cdi_devices] == ["nvidia.com/gpu=GPU-1"]

            allocate.container_requests.add(devices_ids=["GPU-3"])
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Allocate(allocate)
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "Xid 79" in (refused.value.details() or "")
            wanted.container_requests[0].allocation_size = 4
            with pytest.raises(grpc.aio.AioRpcError) as impossible:
                await stub.GetPreferredAllocation(wanted)
            assert impossible.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_registers_again_with_every_kubelet_that_starts(tmp_path: Path) -> None:
    plugin = whole([gpu(0)], {})
    directory = tmp_path / "device-plugins"
    async with served(tmp_path, plugin):  # before there is any kubelet
        for _ in range(3):
            async with FakeKubelet(directory).listening() as kubelet:
                request = await asyncio.wait_for(kubelet.requests.get(), 10)
                async with kubelet.plugin(request.endpoint) as stub:
                    assert (await stub.ListAndWatch(pb.Empty()).read()).devices[0].ID == "GPU-0"


async def test_a_registration_that_fails_is_tried_again(tmp_path: Path) -> None:
    plugin = whole([gpu(0)], {})
    fake = FakeKubelet(tmp_path / "device-plugins", refuse=3)
    async with fake.listening() as kubelet, served(tmp_path, plugin):
        await asyncio.wait_for(kubelet.requests.get(), 10)
        assert kubelet.refuse == 0


async def test_a_kubelet_that_goes_on_refusing_is_an_error(tmp_path: Path) -> None:
    async def no_sleep(_: float) -> None:
        await asyncio.sleep(0)

    plugin = whole([gpu(0)], {})
    async with FakeKubelet(tmp_path / "device-plugins", refuse=99).listening() as kubelet:
        with pytest.raises(Retryable, match="refuses the registration: not yet"):
            await GrpcKubelet(tmp_path, no_sleep).serve(plugin.resource, plugin)
        assert [path.name for path in kubelet.directory.iterdir()] == ["kubelet.sock"]


async def test_its_socket_goes_with_it(tmp_path: Path) -> None:
    plugin = whole([gpu(0)], {})
    async with FakeKubelet(tmp_path / "device-plugins").listening() as kubelet:
        async with served(tmp_path, plugin):
            request = await kubelet.requests.get()
            assert (kubelet.directory / request.endpoint).exists()
        assert not (kubelet.directory / request.endpoint).exists()


async def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Retryable, match="device-plugins"):
        await GrpcKubelet(tmp_path / "file").serve("nvidia.com/gpu", whole([gpu(0)], {}))
