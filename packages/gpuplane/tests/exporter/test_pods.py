"""The exporter and the pods that hold GPUs: their names, and the marks that a policy chooses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuplane.exporter.pods import GPUHolders, holders
from gpuplane.exporter.render import GPUHolder
from kubekit.protocol import podresources_pb2 as pb
from packages.gpuplane.tests.exporter.exporting import (
    FakePods,
    PodsOfTheNode,
    context,
    exporting,
    no_sleep,
    one_gpu,
    pod_resources,
)
from packages.gpuplane.tests.exporter.test_meter import MeterTime


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


def claimed(container: Any, *devices: str, driver: str = "gpu.nvidia.com") -> None:
    """Give a container a claim with devices, as the kubelet lists it."""
    resource = container.dynamic_resources.add(claim_name="gpus", claim_namespace="ml")
    for device in devices:
        cdi = [pb.CDIDevice(name=f"k8s.gpu.nvidia.com/claim=1-{device}")]
        resource.claim_resources.add(driver_name=driver, pool_name="sim-1", device_name=device, cdi_devices=cdi)


def test_gpus_of_resource_claims_have_holders_by_the_number_of_their_device_node() -> None:
    answer = pb.ListPodResourcesResponse()
    one = answer.pod_resources.add(name="one", namespace="ml").containers.add(name="main")
    claimed(one, "gpu-0", "gpu-12", "gpu-0-mig-1g10gb-19-2", "gpu-vfio-1", "gpu-")
    claimed(one, "gpu-0")
    claimed(one, "gpu-3", driver="nics.example.com")
    two = answer.pod_resources.add(name="two", namespace="ml").containers.add(name="main")
    claimed(two, "gpu-0")
    first, second = GPUHolder("ml", "one", "main", claim=True), GPUHolder("ml", "two", "main", claim=True)
    assert holders(answer) == {"nvidia0": [first, second], "nvidia12": [first]}


class Claims(FakePods):
    """A kubelet with two pods that hold the same GPU by one claim."""

    async def List(self, request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:
        answer = pb.ListPodResourcesResponse()
        for name in ("one", "two"):
            claimed(answer.pod_resources.add(name=name, namespace="ml").containers.add(name="main"), "gpu-0")
        return answer


async def test_the_meter_books_a_gpu_to_the_pods_of_its_claims_in_equal_parts(tmp_path: Path) -> None:
    time = MeterTime()
    async with (
        pod_resources(tmp_path, Claims()),
        exporting(context(one_gpu, kubelet_dir=tmp_path, sleep=time.sleep)) as ask,
    ):
        await time.pass_by()
        await time.pass_by()
        text = (await ask("/metrics"))[1]
    held = {
        name: float(text.split(f'namespace="ml",pod="{name}",kind="claim"}} ')[1].split()[0]) for name in ("one", "two")
    }
    assert held["one"] == held["two"] > 0
    parts = [line for line in text.splitlines() if line.startswith("container_gpu_allocation{")]
    assert len(parts) == 2 and all(line.endswith(" 0.500000") for line in parts)
    assert "gpuplane_gpu_unbooked_seconds_total" in text
    [rest] = [line for line in text.splitlines() if line.startswith("gpuplane_gpu_unbooked_seconds_total{")]
    assert float(rest.split()[-1]) == 0


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
