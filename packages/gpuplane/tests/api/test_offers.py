"""A node's GPUs in the units that its kubelet counts."""

from __future__ import annotations

import json

import msgspec
import pytest

from gpuplane.api.gpunode import GPU
from gpuplane.api.offers import UnitKind, core_asked, core_offered, offered_units
from gpuplane.api.pluginconfig import load
from gpuplane.hardware import GPUFacts
from gpuplane.sharing.mps import daemons
from kubekit.api.core import Container, Pod, PodSpec, Resources


def gpus(number: int, *, model: str = "NVIDIA A100-SXM4-40GB", split: int = 0) -> list[GPU]:
    """GPUs of which the first `split` are in MIG mode."""
    return [
        GPU(index=at, uuid=f"GPU-{at}", model=model, memory_mib=40960, mig="enabled" if at < split else "disabled")
        for at in range(number)
    ]


def kinds(allocatable: dict[str, str], node: list[GPU]) -> dict[str, tuple[str, float]]:
    return {unit.resource: (unit.kind.value, round(unit.core, 1)) for unit in offered_units(allocatable, node)}


@pytest.mark.parametrize(
    ("allocatable", "node", "expected"),
    [
        ({"nvidia.com/gpu": "4", "cpu": "8"}, gpus(4), {"nvidia.com/gpu": ("GPU", 100.0)}),
        ({"nvidia.com/gpu": "10"}, gpus(1), {"nvidia.com/gpu": ("replica", 10.0)}),
        ({"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "8"}, gpus(4), {"nvidia.com/gpu.shared": ("replica", 50.0)}),
        (
            {"nvidia.com/gpu": "2", "nvidia.com/gpu.shared": "4"},
            gpus(4),
            {"nvidia.com/gpu": ("GPU", 100.0), "nvidia.com/gpu.shared": ("replica", 50.0)},
        ),
        (
            {"nvidia.com/a100": "2", "nvidia.com/t4": "20"},
            gpus(4),
            {"nvidia.com/a100": ("GPU", 100.0), "nvidia.com/t4": ("replica", 10.0)},
        ),
        ({"nvidia.com/gpu": "7"}, gpus(1, split=1), {"nvidia.com/gpu": ("MIG device", 14.3)}),
        ({"nvidia.com/mig-1g.5gb": "7"}, gpus(1, split=1), {"nvidia.com/mig-1g.5gb": ("MIG device", 14.3)}),
        ({"nvidia.com/mig-1c.3g.20gb": "2"}, gpus(1, split=1), {"nvidia.com/mig-1c.3g.20gb": ("MIG device", 14.3)}),
        (
            {"nvidia.com/mig-1g.6gb": "2"},
            gpus(1, model="NVIDIA A30", split=1),
            {"nvidia.com/mig-1g.6gb": ("MIG device", 25.0)},
        ),
        ({"nvidia.com/mig-1g.5gb": "14"}, gpus(1, split=1), {"nvidia.com/mig-1g.5gb": ("replica", 7.1)}),
        ({"nvidia.com/mig-1g.5gb.shared": "4"}, gpus(1, split=1), {"nvidia.com/mig-1g.5gb.shared": ("replica", 14.3)}),
        (
            {"nvidia.com/mig-3g.20gb": "1", "nvidia.com/mig-1g.5gb.shared": "8"},
            gpus(1, split=1),
            {"nvidia.com/mig-1g.5gb.shared": ("replica", 7.1), "nvidia.com/mig-3g.20gb": ("MIG device", 42.9)},
        ),
        ({"tencent.com/vcuda-core": "200"}, gpus(2), {"tencent.com/vcuda-core": ("share", 1.0)}),
        (
            {"nvidia.com/gpu": "2", "tencent.com/vcuda-core": "200"},
            gpus(2),
            {"nvidia.com/gpu": ("GPU", 100.0)},
        ),
        ({"nvidia.com/gpu": "2"}, [], {"nvidia.com/gpu": ("GPU", 100.0)}),
        ({"cpu": "8"}, gpus(1), {}),
    ],
)
def test_a_node_offers_units_that_are_parts_of_its_gpus(
    allocatable: dict[str, str], node: list[GPU], expected: dict[str, tuple[str, float]]
) -> None:
    assert kinds(allocatable, node) == expected


@pytest.mark.parametrize("replicas", [2, 3, 7, 10, 48])
def test_replicas_are_together_as_many_gpus_as_there_are(replicas: int) -> None:
    node = gpus(3)
    assert core_offered(offered_units({"nvidia.com/gpu": str(3 * replicas)}, node)) == 300
    assert core_offered(offered_units({"nvidia.com/gpu": str(2 * replicas)}, node, {"GPU-0"})) == 200


@pytest.mark.parametrize("replicas", [2, 3, 4, 7, 48])
def test_a_replica_by_mps_has_its_part_of_the_memory(replicas: int) -> None:
    """The limit is that of the control daemon, of the smaller GPU where they differ."""
    large, small = gpus(2)
    small = msgspec.structs.replace(small, memory_mib=15360)
    one = {"nvidia.com/gpu.shared": str(replicas)}
    (unit,) = offered_units(one, [small], by_mps=True)
    facts = GPUFacts(
        index=0,
        minor=0,
        uuid=small.uuid,
        model="Tesla T4",
        memory_bytes=15360 << 20,
        pci="0000:00:1e.0",
        compute=(7, 5),
    )
    shared = {"resources": [{"name": "nvidia.com/gpu", "replicas": replicas}]}
    (daemon,) = daemons([facts], load(json.dumps({"version": "v1", "sharing": {"mps": shared}}).encode()))
    assert unit.memory_mib == daemon.gpus[0].memory_mib
    assert (unit.kind, unit.label) == (UnitKind.REPLICA, "MPS replica")
    assert [unit.named(number) for number in (1, 2)] == ["1 MPS replica", "2 MPS replicas"]
    both = {"nvidia.com/gpu": str(2 * replicas)}
    assert offered_units(both, [large, small], by_mps=True)[0].memory_mib == unit.memory_mib


@pytest.mark.parametrize(
    ("allocatable", "node", "label"),
    [
        ({"nvidia.com/gpu": "2"}, gpus(2), "GPU"),
        ({"nvidia.com/gpu": "7"}, gpus(1, split=1), "MIG device"),
        ({"nvidia.com/mig-1g.5gb.shared": "14"}, gpus(2, split=1), "mig-1g.5gb.shared"),
    ],
)
def test_mps_limits_no_other_unit(allocatable: dict[str, str], node: list[GPU], label: str) -> None:
    (unit,) = offered_units(allocatable, node, by_mps=True)
    assert (unit.memory_mib, unit.label) == (0, label)


def test_a_pod_holds_what_its_unit_is_worth_on_its_node() -> None:
    assert {unit.kind for unit in offered_units({"nvidia.com/gpu": "10"}, gpus(1))} == {UnitKind.REPLICA}
    container = Container(name="c", resources=Resources(limits={"nvidia.com/gpu": "2"}))
    pod = Pod(spec=PodSpec(node_name="n", containers=(container,)))
    assert core_asked(pod) == 200
    assert core_asked(pod, offered_units({"nvidia.com/gpu": "10"}, gpus(1))) == 20
