"""The kubelet's allocations, as GPUNode reports them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.device_plugin.container_lookup import KubeletContainer
from gpuplane.device_plugin.shares.held_report import HeldReport, change, held
from kubekit.api.core import Pod


def pod(name: str, phase: str = "Running") -> Pod:
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}"}, "status": {"phase": phase}}, Pod
    )


def ids(uuid: str, count: int) -> tuple[str, ...]:
    return tuple(f"{uuid}::{number}" for number in range(count))


SHOWN = (
    KubeletContainer("ml", "a", "one", {names.VCUDA_CORE: ids("GPU-a", 30), names.VCUDA_MEMORY: ids("GPU-a", 8)}),
    KubeletContainer("ml", "a", "two", {names.VCUDA_CORE: ids("GPU-a", 20)}),
    KubeletContainer("ml", "b", "one", {names.GPU_RESOURCE: ("GPU-b",)}),
    KubeletContainer("ml", "ended", "one", {names.VCUDA_CORE: ids("GPU-a", 50)}),
    KubeletContainer("ml", "starts", "one", {names.VCUDA_CORE: ids("GPU-a", 50)}),
    KubeletContainer("ml", "unknown", "one", {names.VCUDA_CORE: ids("GPU-a", 50)}),
)
PODS = [pod("a"), pod("b"), pod("ended", "Succeeded"), pod("starts", "Pending")]


def test_only_pods_that_run_are_told_of() -> None:
    assert held(SHOWN, PODS, ["GPU-a", "GPU-b"]) == {"GPU-a": {"uid-a": 50}, "GPU-b": {"uid-b": 100}}
    assert held(SHOWN, PODS, ["GPU-b"]) == {"GPU-b": {"uid-b": 100}}, "the others are not this plugin's"


said = st.dictionaries(st.sampled_from("ab"), st.dictionaries(st.sampled_from("xyz"), st.integers(1, 100), min_size=1))


@given(said, said)
def test_the_patch_leads_from_one_to_the_other(before: Any, after: Any) -> None:
    merged = {uuid: dict(of_gpu) for uuid, of_gpu in before.items()}
    for uuid, of_gpu in change(before, after).items():
        if of_gpu is None:
            del merged[uuid]
            continue
        for uid, core in of_gpu.items():
            if core is None:
                del merged[uuid][uid]
            else:
                merged.setdefault(uuid, {})[uid] = core
    assert merged == after
    assert change(after, after) == {}


class Kubelet:
    def __init__(self) -> None:
        self.containers = SHOWN

    async def shown(self) -> tuple[KubeletContainer, ...]:
        return self.containers

    def all(self) -> Iterable[Pod]:
        return PODS


class Server:
    """Keeps one GPUNode, and counts."""

    def __init__(self) -> None:
        self.node = GPUNode()
        self.patches: list[Any] = []

    async def get(self, kind: Any, name: str) -> GPUNode:
        return self.node

    async def patch(self, kind: Any, name: str, patch: Any, *, manager: str) -> None:
        self.patches.append(patch)


async def test_it_writes_for_a_change_only() -> None:
    class Context:
        client, node_name = Server(), "n1"

    kubelet, context = Kubelet(), Context()
    report = HeldReport(context, kubelet, ["GPU-a", "GPU-b"])  # type: ignore[arg-type]
    for _ in range(3):
        await report.step()
    kubelet.containers = SHOWN[2:]
    await report.step()
    assert context.client.patches == [
        {"status": {"held": {"GPU-a": {"uid-a": 50}, "GPU-b": {"uid-b": 100}}}},
        {"status": {"held": {"GPU-a": None}}},
    ]
