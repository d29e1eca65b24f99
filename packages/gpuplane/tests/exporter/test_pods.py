"""The exporter and the pods that hold GPUs: their names, and the marks that a policy chooses."""

from __future__ import annotations

import shutil
from pathlib import Path

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
