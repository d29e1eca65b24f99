"""Limits and libraries that the device plugin removes when it is uninstalled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuplane.api.gpunode import GPUNode
from gpuplane.device_plugin import uninstall
from gpuplane.operand import OperandContext
from kubekit.api.core import Container, ObjectMeta, Pod, PodSpec, PodStatus, Resources


class Api:
    """A node's pods and its GPUNode."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = list(pods)
        self.told: list[tuple[str, str]] = []

    async def list(self, kind: type, *, fields: str) -> list[Pod]:
        assert (kind, fields) == (Pod, "spec.nodeName=n1")
        return self.pods

    async def get(self, kind: type, name: str) -> GPUNode:
        return GPUNode(metadata=ObjectMeta(name=name, resource_version="1"))

    async def apply(self, body: dict[str, Any], manager: str, **_: object) -> None:
        stage = body["status"]["stages"]["device-plugin"]
        self.told.append((stage["state"], stage.get("reason", "")))


def pod(name: str, resource: str, phase: str = "Running") -> Pod:
    container = Container(name="main", resources=Resources(limits={resource: "30"}))
    return Pod(
        metadata=ObjectMeta(name=name, namespace="ml"),
        spec=PodSpec(node_name="n1", containers=(container,)),
        status=PodStatus(phase=phase),
    )


def context(root: Path, api: Api, sleep: Any = None) -> OperandContext:
    return OperandContext(
        node_name="n1",
        namespace="gpu-operator",
        client=api,
        now=lambda: "2026-11-21T10:00:00.000000Z",
        host_root=root,
        open_gpus=lambda: pytest.fail("asks for GPUs"),
        sleep=sleep,
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for file in ("limits/shares/a/limits", "limits/gpus/GPU-0/context", "limits/lib/libcuda.so.1"):
        place = tmp_path / "var/lib/gpuplane" / file
        place.parent.mkdir(parents=True)
        place.write_bytes(b"x")
    return tmp_path


async def test_limits_and_libraries_go_and_the_directory_with_them(root: Path) -> None:
    api = Api(pod("whole", "nvidia.com/gpu"), pod("ended", "tencent.com/vcuda-core", "Succeeded"))
    await uninstall(context(root, api))
    assert api.told == [("removed", "")]
    assert not (root / "var/lib/gpuplane").exists()
    await uninstall(context(root, api))  # nothing is there any more


async def test_what_others_have_there_stays(root: Path) -> None:
    (root / "var/lib/gpuplane/toolkit").mkdir()
    await uninstall(context(root, Api()))
    assert [place.name for place in (root / "var/lib/gpuplane").iterdir()] == ["toolkit"]


async def test_it_waits_for_pods_that_hold_shares_and_says_which(root: Path) -> None:
    api = Api(pod("tune", "tencent.com/vcuda-core"))

    async def sleep(seconds: float) -> None:
        assert (root / "var/lib/gpuplane/limits/shares/a/limits").exists()
        api.pods.clear()

    await uninstall(context(root, api, sleep))
    assert api.told == [("failed", "SharesHeld"), ("removed", "")]
    assert not (root / "var/lib/gpuplane").exists()
