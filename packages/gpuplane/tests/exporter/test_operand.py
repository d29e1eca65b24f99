"""The exporter as Prometheus and the kubelet's probe see it."""

from __future__ import annotations

import asyncio
import http.client
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gpuplane.exporter import run
from gpuplane.exporter.operand import METER_SECONDS
from gpuplane.exporter.pods import GPUHolders, holders
from gpuplane.exporter.render import GPUHolder
from gpuplane.hardware import GPUFacts
from gpuplane.operand import OperandContext
from kubekit.api.core import Pod
from kubekit.api.meta import ObjectMeta
from kubekit.errors import InvalidInput, Retryable, Terminal
from kubekit.kube import ListPage
from kubekit.protocol import podresources_pb2 as pb
from kubekit.protocol.sockets import POD_RESOURCES_SOCKET, address
from tests.support.fake_gpus import FakeGPUs
from tinykube.protocol import podresources_pb2_grpc as rpc

T4 = GPUFacts(index=0, minor=0, uuid="GPU-0", model="T4", memory_bytes=1, pci="0000:1a:00.0", compute=(7, 5))


def one_gpu() -> FakeGPUs:
    return FakeGPUs((T4,), "570.1")


async def no_sleep(seconds: float) -> None:
    if seconds == METER_SECONDS:
        await asyncio.Event().wait()  # so that only scrapes read
    await asyncio.sleep(0)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def context(open_gpus: Callable[[], Any], **more: Any) -> OperandContext:
    facts: dict[str, Any] = {
        "node_name": "sim-1",
        "namespace": "gpu-operator",
        "client": PodsOfTheNode(),
        "now": lambda: "",
        "kubelet_dir": Path("/nonexistent"),
        "address": "127.0.0.1",
        "port": free_port(),
        "open_gpus": open_gpus,
        "sleep": no_sleep,
    }
    return OperandContext(**{**facts, **more})


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


class Exporting:
    """Asks a running exporter."""

    def __init__(self, given: OperandContext) -> None:
        self._given = given
        self.task = asyncio.create_task(run(given))

    async def __call__(self, path: str, method: str = "GET", port: int | None = None) -> tuple[int, str]:
        port = port or self._given.port
        assert port is not None
        while True:
            try:
                return await asyncio.to_thread(get, port, path, method)
            except ConnectionRefusedError:
                if self.task.done():
                    raise
                await asyncio.sleep(0.01)

    async def ended(self) -> None:
        """Returns when the exporter has ended, or raises its error."""
        await asyncio.wait_for(asyncio.shield(self.task), 30)


@asynccontextmanager
async def exporting(given: OperandContext) -> AsyncIterator[Exporting]:
    ask = Exporting(given)
    try:
        yield ask
    finally:
        ask.task.cancel()
        await asyncio.gather(ask.task, return_exceptions=True)


async def test_metrics_are_read_when_they_are_asked_for() -> None:
    gpus = one_gpu()
    opened = 0

    def open_gpus() -> FakeGPUs:
        nonlocal opened
        opened += 1
        return gpus

    async with exporting(context(open_gpus)) as ask:
        assert await ask("/health") == (200, "OK\n")
        assert (opened, gpus.readings) == (1, 0)
        for number in (1, 2):
            status, text = await ask("/metrics")
            assert status == 200
            assert f'Hostname="sim-1",DCGM_FI_DRIVER_VERSION="570.1"}} {number}\n' in text
    assert gpus.closed == 1


async def test_no_driver_is_503_with_the_reason_and_heals() -> None:
    gpus = one_gpu()
    away = [Retryable("no libnvidia-ml.so.1 found", where="/", cure="install the driver")]

    def open_gpus() -> FakeGPUs:
        if away:
            raise away[0]
        return gpus

    async with exporting(context(open_gpus)) as ask:
        for path in ("/health", "/metrics"):
            assert await ask(path) == (503, "/: no libnvidia-ml.so.1 found; install the driver\n")
        away.clear()
        assert (await ask("/metrics"))[0] == 200
        gpus.error = Retryable("the driver is going away")
        assert (await ask("/metrics"))[0] == 503
        assert gpus.closed == 1
        gpus.error = None
        assert (await ask("/metrics"))[0] == 200


async def test_what_only_a_new_process_heals_ends_this_one() -> None:
    def open_gpus() -> FakeGPUs:
        raise Terminal("NVML is of another version than the driver")

    with pytest.raises(Terminal, match="another version"):
        await run(context(open_gpus))


async def test_a_container_ends_when_the_specification_of_its_devices_changes(tmp_path: Path) -> None:
    path, new = tmp_path / "management.nvidia.com-gpu.json", tmp_path / "new"
    path.write_text('{"devices": 1}')
    given = context(one_gpu, cdi_specification=path)
    async with exporting(given) as ask:
        assert (await ask("/health"))[0] == 200
        new.write_text('{"devices": 1}')
        new.rename(path)  # the toolkit writes the same again
        assert (await ask("/health"))[0] == 200
        path.unlink()  # a toolkit that leaves takes no device from a container
        assert (await ask("/health"))[0] == 200
        new.write_text('{"devices": 2}')
        new.rename(path)
        with pytest.raises(Terminal, match="devices of the node changed"):
            await ask.ended()


async def test_a_container_that_was_created_before_its_specification_ends_when_there_is_one(tmp_path: Path) -> None:
    """As after a reboot: /run is empty, and the kubelet starts the pods that were there."""
    path = tmp_path / "management.nvidia.com-gpu.json"

    def no_driver() -> FakeGPUs:
        raise Retryable("no driver")

    async with exporting(context(no_driver, cdi_specification=path)) as ask:
        assert (await ask("/health"))[0] == 503
        path.write_text('{"devices": 1}')
        with pytest.raises(Terminal, match="devices of the node changed"):
            await ask.ended()


async def test_other_paths_and_methods() -> None:
    async with exporting(context(one_gpu)) as ask:
        assert (await ask("/absent"))[0] == 404
        assert await ask("/-/ready") == (200, "OK\n")
        status, text = await ask("/")
        assert (status, 'href="metrics"' in text) == (200, True)
        assert (await ask("/metrics", "POST"))[0] == 405
        assert await ask("/health", "HEAD") == (200, "")
        assert (await ask("/metrics?x=1"))[0] == 200


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n", b"431"),
    ],
)
async def test_what_is_no_request_is_refused_and_the_connection_closed(request_bytes: bytes, status: bytes) -> None:
    given = context(one_gpu)
    async with exporting(given) as ask:
        await ask("/health")
        reader, writer = await asyncio.open_connection("127.0.0.1", given.port)
        writer.write(request_bytes)
        assert (await reader.read()).split()[1] == status
        writer.close()


async def test_a_connection_serves_many_scrapes_and_a_body_ends_it() -> None:
    given = context(one_gpu)
    async with exporting(given) as ask:
        await ask("/health")
        reader, writer = await asyncio.open_connection("127.0.0.1", given.port)
        for _ in range(3):
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(3) == b"OK\n"
        writer.write(b"GET /health HTTP/1.1\r\nContent-Length: 20\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n")
        assert (await reader.read()).count(b"HTTP/1.1") == 1
        writer.close()


async def test_a_port_in_use_is_said_and_taken_when_it_is_free(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        given = context(one_gpu, port=other.getsockname()[1])
        said = asyncio.Event()

        async def sleep(_: float) -> None:
            said.set()
            await asyncio.sleep(0.01)

        given = context(one_gpu, port=given.port, sleep=sleep)
        task = asyncio.create_task(run(given))
        await said.wait()
        assert f"cannot listen on port {given.port}" in caplog.text
    while True:
        try:
            assert given.port is not None
            assert await asyncio.to_thread(get, given.port, "/health") == (200, "OK\n")
            break
        except ConnectionError:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert caplog.text.count("cannot listen") == 1


async def test_a_wrong_list_of_fields_stops_it(tmp_path: Path) -> None:
    (tmp_path / "fields.csv").write_text("nonsense")
    with pytest.raises(InvalidInput, match="line 1"):
        await run(context(one_gpu, config=tmp_path / "fields.csv"))


async def test_a_list_of_fields_that_changes_is_taken_over_and_a_wrong_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # As a kubelet mounts a ConfigMap: the file is a link through `..data`, which is replaced whole.
    def put(version: int, text: str) -> None:
        folder = tmp_path / f"..{version}"
        folder.mkdir()
        (folder / "fields.csv").write_text(text)
        (tmp_path / "..data_tmp").symlink_to(folder.name)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    put(1, "DCGM_FI_DEV_SM_CLOCK, gauge, One.")
    (tmp_path / "fields.csv").symlink_to("..data/fields.csv")
    async with exporting(context(one_gpu, config=tmp_path / "fields.csv")) as ask:
        assert "# HELP DCGM_FI_DEV_SM_CLOCK One." in (await ask("/metrics"))[1]
        put(2, "nonsense")
        while "the previous list stays" not in caplog.text:
            await ask("/health")
        assert f"{tmp_path}/fields.csv:1" in caplog.text
        assert "# HELP DCGM_FI_DEV_SM_CLOCK One." in (await ask("/metrics"))[1]
        put(3, "DCGM_FI_DEV_SM_CLOCK, gauge, Three.")
        while "Three" not in (await ask("/metrics"))[1]:
            pass


async def test_the_environment_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/0").write_text("17\n")
    given = context(one_gpu, host_root=tmp_path, kubelet_dir=tmp_path, port=None)
    port = free_port()
    for name, value in (
        ("DCGM_EXPORTER_LISTEN", f":{port}"),
        ("DCGM_EXPORTER_KUBERNETES", "false"),
        ("DCGM_EXPORTER_NO_HOSTNAME", "true"),
        ("DCGM_HPC_JOB_MAPPING_DIR", "/jobs"),
    ):
        monkeypatch.setenv(name, value)
    async with pod_resources(tmp_path, FakePods()), exporting(given) as ask:
        text = (await ask("/metrics", port=port))[1]
        assert 'hpc_job="17"' in text
        assert "pod=" not in text
        assert "Hostname" not in text


class FakePods(rpc.PodResourcesListerServicer):
    def __init__(self, exhausted: int = 0) -> None:
        self.exhausted = exhausted

    async def List(self, request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:
        if self.exhausted:
            self.exhausted -= 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        answer = pb.ListPodResourcesResponse()
        pod = answer.pod_resources.add(name="train", namespace="ml")
        container = pod.containers.add(name="main")
        container.devices.add(resource_name="nvidia.com/gpu", device_ids=["GPU-0", "GPU-1::3"])
        container.devices.add(resource_name="example.com/nic", device_ids=["nic-0"])
        return answer

    async def GetAllocatableResources(
        self, request: pb.AllocatableResourcesRequest, context: Any
    ) -> pb.AllocatableResourcesResponse:
        answer = pb.AllocatableResourcesResponse()
        answer.devices.add(resource_name="nvidia.com/gpu", device_ids=["GPU-0", *(f"GPU-1::{at}" for at in range(8))])
        return answer


@asynccontextmanager
async def pod_resources(kubelet_dir: Path, pods: FakePods) -> AsyncIterator[None]:
    path = kubelet_dir / POD_RESOURCES_SOCKET
    path.parent.mkdir(parents=True)
    server = grpc.aio.server()
    rpc.add_PodResourcesListerServicer_to_server(pods, server)
    with address(path) as target:
        server.add_insecure_port(target)
        await server.start()
        yield
        await server.stop(None)


async def test_pods_are_labelled(tmp_path: Path) -> None:
    async with pod_resources(tmp_path, FakePods()), exporting(context(one_gpu, kubelet_dir=tmp_path)) as ask:
        assert 'container="main",namespace="ml",pod="train"} 1' in (await ask("/metrics"))[1]


async def test_a_busy_kubelet_is_asked_again(tmp_path: Path) -> None:
    async with pod_resources(tmp_path, FakePods(exhausted=3)):
        found = await GPUHolders(tmp_path, no_sleep).holders()
    assert found == {"GPU-0": [GPUHolder("ml", "train", "main")], "GPU-1": [GPUHolder("ml", "train", "main", "3")]}


def test_a_share_has_many_ids_and_one_holder() -> None:
    answer = pb.ListPodResourcesResponse()
    for name, percent in (("tune", 30), ("serve", 20)):
        container = answer.pod_resources.add(name=name, namespace="ml").containers.add(name="main")
        first = 30 if name == "serve" else 0
        ids = [f"GPU-0::{number}" for number in range(first, first + percent)]
        container.devices.add(resource_name="tencent.com/vcuda-core", device_ids=ids)
        container.devices.add(resource_name="tencent.com/vcuda-memory", device_ids=[f"GPU-0::{first}"])
    old = answer.pod_resources.add(name="old", namespace="ml").containers.add(name="main")
    old.devices.add(resource_name="alpha.kubernetes.io/nvidia-gpu", device_ids=["GPU-1"])
    assert holders(answer) == {
        "GPU-0": [
            GPUHolder("ml", "tune", "main", part=True, share_percent=30, share_bytes=256 << 20),
            GPUHolder("ml", "serve", "main", part=True, share_percent=20, share_bytes=256 << 20),
        ],
        "GPU-1": [GPUHolder("ml", "old", "main")],
    }


class PodsOfTheNode(FakePods):
    """A client that lists and watches the pods of one node."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def pages(self, kind: type, namespace: Any, labels: str, fields: str, *, bad: Any) -> AsyncIterator[ListPage]:
        assert kind is Pod
        self.asked.append(fields)
        labelled = {"app.kubernetes.io/name": "train", "team": "vision", "pod": "x", "gpu": "x", "0rder": "1"}
        pods = [
            Pod(metadata=ObjectMeta(name="train", namespace="ml", uid="u1", labels=labelled)),
            Pod(metadata=ObjectMeta(name="other", namespace="ml", uid="u2")),
        ]
        yield ListPage(pods, "1", "")

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield


async def test_labels_and_uid_of_pods_are_put_on_the_lines_that_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = PodsOfTheNode()
    monkeypatch.setenv("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "true")
    monkeypatch.setenv("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", "true")
    given = context(one_gpu, kubelet_dir=tmp_path, client=client)
    async with pod_resources(tmp_path, client), exporting(given) as ask:
        text = (await ask("/metrics"))[1]
    held = next(line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_SM_CLOCK{"))
    # NB: what the line has already stays as it is: a label twice would make Prometheus refuse all of it.
    assert held.endswith(
        'container="main",namespace="ml",pod="train",_0rder="1",app_kubernetes_io_name="train",pod_uid="u1",'
        'team="vision"} 1'
    ), held
    assert client.asked == ["spec.nodeName=sim-1"]


async def test_labels_of_pods_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = PodsOfTheNode()
    given = context(one_gpu, kubelet_dir=tmp_path, client=client)
    async with pod_resources(tmp_path, client), exporting(given) as ask:
        assert "vision" not in (await ask("/metrics"))[1]
    monkeypatch.setenv("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "true")
    monkeypatch.setenv("DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", "^team$, ^app\\.")
    shutil.rmtree(tmp_path / "pod-resources")
    async with pod_resources(tmp_path, client), exporting(given) as ask:
        text = (await ask("/metrics"))[1]
    assert 'pod="train",app_kubernetes_io_name="train",team="vision"}' in text
    assert "pod_uid" not in text and "0rder" not in text


class MeterTime:
    """The meter's pauses, each as long as the test says."""

    def __init__(self) -> None:
        self.paused = asyncio.Event()
        self._go = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        if seconds != METER_SECONDS:
            return
        self.paused.set()
        await self._go.wait()
        self._go.clear()

    async def pass_by(self) -> None:
        """Let a pause end, and return when the meter has read and rests again."""
        await self.paused.wait()
        self.paused.clear()
        self._go.set()
        await self.paused.wait()


async def test_the_meter_counts_what_a_pod_held_and_used_from_reading_to_reading(tmp_path: Path) -> None:
    client, time = PodsOfTheNode(), MeterTime()
    given = context(one_gpu, kubelet_dir=tmp_path, client=client, sleep=time.sleep)
    async with pod_resources(tmp_path, client), exporting(given) as ask:
        before = (await ask("/metrics"))[1]
        await time.pass_by()
        first = (await ask("/metrics"))[1]
        await time.pass_by()
        later = (await ask("/metrics"))[1]
    assert "gpuplane_pod_gpu" not in before
    who = 'owner_kind="Pod",owner="train",gpu="0",UUID="GPU-0",modelName="T4",Hostname="sim-1",container="main",'
    who += 'namespace="ml",pod="train",kind="whole"'
    held = f"gpuplane_pod_gpu_held_seconds_total{{{who}}} "
    assert held + "0.000000\n" in first
    assert float(later.split(held)[1].split()[0]) > 0
    assert 'container_gpu_allocation{container="main",namespace="ml",node="sim-1",pod="train"} 1.000000\n' in later
    rest = 'gpuplane_gpu_unbooked_seconds_total{gpu="0",UUID="GPU-0",modelName="T4",Hostname="sim-1"} '
    assert rest + "0.000000\n" in later


async def test_the_meter_reads_as_often_however_often_it_is_scraped(tmp_path: Path) -> None:
    gpus, client, time = one_gpu(), PodsOfTheNode(), MeterTime()
    given = context(lambda: gpus, kubelet_dir=tmp_path, client=client, sleep=time.sleep)
    async with pod_resources(tmp_path, client), exporting(given) as ask:
        for _ in range(3):
            await time.pass_by()
        assert gpus.readings == 3
        for _ in range(4):
            await ask("/metrics")
        await time.pass_by()
    assert gpus.readings == 8


async def test_a_driver_that_is_away_is_a_gap_of_the_meter(tmp_path: Path) -> None:
    gpus, client, time = one_gpu(), PodsOfTheNode(), MeterTime()
    given = context(lambda: gpus, kubelet_dir=tmp_path, client=client, sleep=time.sleep)
    async with pod_resources(tmp_path, client), exporting(given) as ask:
        await time.pass_by()
        gpus.error = Retryable("the driver is going away")
        await time.pass_by()
        gpus.error = None
        await time.pass_by()
        assert "gpuplane_pod_gpu_held_seconds_total" in (await ask("/metrics"))[1]


async def test_without_a_kubelet_there_are_no_pod_labels_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pods = GPUHolders(tmp_path, no_sleep)
    for _ in range(3):
        assert await pods.holders() == {}
    assert caplog.text.count("no pod labels") == 1
    async with pod_resources(tmp_path, FakePods(exhausted=99)):
        for _ in range(2):
            assert await pods.holders() == {}
    assert caplog.text.count("RESOURCE_EXHAUSTED") == 1
