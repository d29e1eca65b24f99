"""A claim for administrative access is a monitor's: its pod holds no GPU, and pays for none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuplane.exporter import claims
from gpuplane.exporter.claims import RETRY_SECONDS, AdminClaims, ClaimedDevice
from kubekit.kube import Forbidden, NotFound
from kubekit.protocol import podresources_pb2 as pb
from packages.gpuplane.tests.exporter.exporting import K, PodsOfTheNode, context, exporting, one_gpu, pod_resources
from packages.gpuplane.tests.exporter.test_meter import MeterTime


def result(device: str, *, admin: bool = False, pool: str = "sim-1", driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    found = {"request": "r", "driver": driver, "pool": pool, "device": device}
    return {**found, "adminAccess": True} if admin else found


class Node(PodsOfTheNode):
    """A kubelet whose pods `train` and `watch` have a GPU by claims of these names, and the API server with the claims.

    `failing` is raised in place of an answer, `hangs` never answers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.claims = {"train": [result("gpu-0")], "watch": [result("gpu-0", admin=True)]}
        self.gets: list[str] = []
        self.failing: Exception | None = None
        self.hangs = False

    async def List(self, request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:
        answer = pb.ListPodResourcesResponse()
        for name in ("train", "watch"):
            container = answer.pod_resources.add(name=name, namespace="ml").containers.add(name="main")
            claim = container.dynamic_resources.add(claim_name=name, claim_namespace="ml")
            cdi = [pb.CDIDevice(name=f"k8s.gpu.nvidia.com/claim={name}-gpu-0")]
            claim.claim_resources.add(
                driver_name="gpu.nvidia.com", pool_name="sim-1", device_name="gpu-0", cdi_devices=cdi
            )
        return answer

    async def get(self, kind: type[K], name: str, namespace: str) -> K:
        self.gets.append(f"{namespace}/{name}")
        if self.hangs:
            await asyncio.Event().wait()
        if self.failing is not None:
            raise self.failing
        status = {"allocation": {"devices": {"results": self.claims[name]}}}
        return msgspec.convert({"metadata": {"name": name}, "status": status}, kind)


async def test_the_exporter_names_the_pod_that_holds_the_gpu_and_the_meter_books_it_whole(tmp_path: Path) -> None:
    time, node = MeterTime(), Node()
    given = context(one_gpu, kubelet_dir=tmp_path, sleep=time.sleep, client=node)
    async with pod_resources(tmp_path, node), exporting(given) as ask:
        await time.pass_by()
        await time.pass_by()
        text = (await ask("/metrics"))[1]
    assert 'pod="train"' in text and 'pod="watch"' not in text
    [part] = [line for line in text.splitlines() if line.startswith("container_gpu_allocation{")]
    assert part.endswith(" 1.000000")
    assert sorted(node.gets) == ["ml/train", "ml/watch"]  # once each, however often it is scraped


def gpu(claim: str, device: str = "gpu-0", uid: str = "1") -> ClaimedDevice:
    return ClaimedDevice("ml", claim, "sim-1", device, f"k8s.gpu.nvidia.com/claim={uid}-{device}")


def reader(node: Node, clock: list[float] | None = None) -> AdminClaims:
    return AdminClaims(node, lambda: clock[0] if clock else 0.0)  # type: ignore[arg-type]


async def test_a_device_that_an_ordinary_request_has_too_is_held() -> None:
    node = Node()
    node.claims["watch"] = [
        *(result("gpu-0", admin=True), result("gpu-0"), result("gpu-1", admin=True)),
        *(result("gpu-2", admin=True, pool="sim-2"), result("gpu-3", admin=True, driver="nics.example.com")),
    ]
    devices = [gpu("watch", f"gpu-{number}") for number in range(5)]
    assert await reader(node).administrative(devices) == {gpu("watch", "gpu-1")}


async def test_a_claim_is_read_once_and_one_of_the_same_name_again() -> None:
    node = Node()
    found = reader(node)
    for _ in range(3):
        assert await found.administrative([gpu("watch")]) == {gpu("watch")}
    assert node.gets == ["ml/watch"]
    node.claims["watch"] = [result("gpu-0")]
    assert await found.administrative([gpu("watch", uid="2")]) == set()
    assert await found.administrative([]) == set() and len(node.gets) == 2


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_claim_that_cannot_be_read_counts_as_held_and_is_read_again_later(
    hangs: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(claims, "READ_SECONDS", 0.001 if hangs else 60.0)
    node, clock = Node(), [100.0]
    node.failing, node.hangs = (None, True) if hangs else (Forbidden("no right to get resourceclaims"), False)
    found = reader(node, clock)
    for _ in range(3):
        assert await found.administrative([gpu("watch")]) == set()
    clock[0] += RETRY_SECONDS
    assert await found.administrative([gpu("watch")]) == set()
    assert len(node.gets) == 2 and caplog.text.count("its GPUs count as held") == 1
    monkeypatch.setattr(claims, "READ_SECONDS", 60.0)
    node.failing, node.hangs = None, False
    clock[0] += RETRY_SECONDS
    assert await found.administrative([gpu("watch")]) == {gpu("watch")}


async def test_a_claim_that_is_gone_hinders_no_other() -> None:
    class Partly(Node):
        async def get(self, kind: type[K], name: str, namespace: str) -> K:
            if name == "gone":
                raise NotFound("no such claim")
            return await super().get(kind, name, namespace)

    assert await reader(Partly()).administrative([gpu("gone"), gpu("watch")]) == {gpu("watch")}
