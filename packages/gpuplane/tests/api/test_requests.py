"""By which name a node offers GPUs, and which pods hold some."""

from __future__ import annotations

import pytest

from gpuplane.api.offers import core_held
from gpuplane.api.requests import GpuOffer, offer_of
from kubekit.api.core import Container, Pod, PodSpec, PodStatus, Resources


@pytest.mark.parametrize(
    ("allocatable", "offer"),
    [
        ({"cpu": "4", "nvidia.com/gpu": "8"}, GpuOffer("nvidia.com/gpu", 8)),
        ({"nvidia.com/gpu": "2", "nvidia.com/gpu.shared": "20", "tencent.com/vcuda-core": "200"}, GpuOffer(count=2)),
        ({"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "7"}, GpuOffer("nvidia.com/mig-1g.10gb", 7)),
        (
            {"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "192"},
            GpuOffer("tencent.com/vcuda-core", 2, 10),
        ),
        ({"tencent.com/vcuda-core": "0"}, GpuOffer()),
        ({"cpu": "4"}, GpuOffer()),
    ],
)
def test_offer(allocatable: dict[str, str], offer: GpuOffer) -> None:
    assert offer_of(allocatable) == offer


@pytest.mark.parametrize(
    ("phase", "held"),
    [("Pending", 100), ("Running", 100), ("Unknown", 100), ("", 100), ("Succeeded", 0), ("Failed", 0)],
)
def test_a_pod_that_has_ended_holds_no_gpu(phase: str, held: int) -> None:
    container = Container(name="c", resources=Resources(limits={"nvidia.com/gpu": "1"}))
    pod = Pod(spec=PodSpec(node_name="n", containers=(container,)), status=PodStatus(phase=phase))
    assert core_held(pod) == held
