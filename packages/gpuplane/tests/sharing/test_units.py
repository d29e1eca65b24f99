"""Resources that a node advertises, and the units that a container gets from them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.api.pluginconfig import PluginConfig, parse
from gpuplane.device_plugin.allocation import UnitChooser
from gpuplane.hardware import GPUFacts, MigDevice, MigMode
from gpuplane.sharing.units import Unit, resources, sharable
from kubekit.errors import InvalidInput


def gpu(index: int, *profiles: str, name: str = "NVIDIA A100-SXM4-40GB", mig: bool = False) -> GPUFacts:
    return GPUFacts(
        index=index,
        minor=index,
        uuid=f"GPU-{index}",
        model=name,
        memory_bytes=1,
        pci="",
        compute=(8, 0),
        numa=index // 2,
        mig=MigMode.ENABLED if profiles or mig else MigMode.DISABLED,
        mig_devices=tuple(
            MigDevice(
                index=number,
                uuid=f"MIG-{index}{number}",
                profile=profile,
                gpu_instance=7 + number,
                compute_instance=0,
                memory_bytes=1,
                slices=1,
            )
            for number, profile in enumerate(profiles)
        ),
    )


def config(strategy: str = "none", *shared: dict[str, Any], **more: Any) -> PluginConfig:
    sharing = {"timeSlicing": {"resources": list(shared), **more.pop("slicing", {})}}
    return parse({"version": "v1", "flags": {"migStrategy": strategy}, "sharing": sharing, **more})


def ids(found: dict[str, tuple[Unit, ...]]) -> dict[str, list[str]]:
    return {resource: [unit.id for unit in units] for resource, units in found.items()}


def test_whole_gpus() -> None:
    assert ids(resources([gpu(0), gpu(1)], config())) == {"nvidia.com/gpu": ["GPU-0", "GPU-1"]}


def test_resources_named_by_patterns() -> None:
    named = config(resources={"gpus": [{"pattern": "*A100*", "name": "a100"}, {"pattern": "T4", "name": "t4"}]})
    found = resources([gpu(0), gpu(1, name="Tesla T4"), gpu(2, name="Tesla P4")], named)
    assert ids(found) == {"nvidia.com/a100": ["GPU-0"], "nvidia.com/t4": ["GPU-1"], "nvidia.com/gpu": ["GPU-2"]}


def test_mig_mixed() -> None:
    found = resources([gpu(0), gpu(1, "1g.5gb", "1g.5gb+me", "1c.2g.10gb"), gpu(2, mig=True)], config("mixed"))
    assert ids(found) == {
        "nvidia.com/gpu": ["GPU-0"],
        "nvidia.com/mig-1g.5gb": ["MIG-10"],
        "nvidia.com/mig-1g.5gb.me": ["MIG-11"],
        "nvidia.com/mig-1c.2g.10gb": ["MIG-12"],
    }
    unit = found["nvidia.com/mig-1g.5gb.me"][0]
    assert (unit.index, unit.gpu) == ("1:1", "GPU-1")
    assert unit.nodes == ("nvidia1", "gpu1/gi8/access", "gpu1/gi8/ci0/access")


def test_mig_single() -> None:
    alike = [gpu(0, "3g.20gb", "3g.20gb"), gpu(1, "3g.20gb", "3g.20gb")]
    assert ids(resources(alike, config("single"))) == {"nvidia.com/gpu": ["MIG-00", "MIG-01", "MIG-10", "MIG-11"]}
    assert ids(resources([gpu(0)], config("single"))) == {"nvidia.com/gpu": ["GPU-0"]}


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        ([gpu(0), gpu(1, "1g.5gb")], "some GPUs are in MIG mode and some are not"),
        ([gpu(0, "1g.5gb", "2g.10gb")], "MIG devices of 1g.5gb, 2g.10gb"),
        ([gpu(0, "1g.5gb"), gpu(1, mig=True)], "GPU 1 is in MIG mode without a MIG device"),
    ],
)
def test_mig_single_wants_all_alike(gpus: list[GPUFacts], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        resources(gpus, config("single"))


def test_mig_none_offers_no_gpu_that_is_cut() -> None:
    assert ids(resources([gpu(0), gpu(1, "1g.5gb")], config())) == {"nvidia.com/gpu": ["GPU-0"]}
    with pytest.raises(InvalidInput, match="every GPU is in MIG mode"):
        resources([gpu(0, "1g.5gb")], config())


def test_gpus_in_mig_mode_are_not_offered_in_shares() -> None:
    assert [found.uuid for found in sharable([gpu(0), gpu(1, "1g.5gb"), gpu(2)])] == ["GPU-0", "GPU-2"]


def test_replicas_of_everything() -> None:
    found = resources([gpu(0), gpu(1)], config("none", {"name": "nvidia.com/gpu", "replicas": 2}))
    assert ids(found) == {"nvidia.com/gpu": ["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"]}
    assert {unit.replicas for unit in found["nvidia.com/gpu"]} == {2}


def test_replicas_of_some_under_another_name() -> None:
    one = {"name": "gpu", "replicas": 2, "devices": [1]}
    assert ids(resources([gpu(0), gpu(1), gpu(2)], config("none", one, slicing={"renameByDefault": True}))) == {
        "nvidia.com/gpu": ["GPU-0", "GPU-2"],
        "nvidia.com/gpu.shared": ["GPU-1::0", "GPU-1::1"],
    }
    first = {"name": "gpu", "replicas": 2, "devices": 1}
    assert ids(resources([gpu(0), gpu(1)], config("none", first))) == {
        "nvidia.com/gpu": ["GPU-0::0", "GPU-0::1", "GPU-1"]
    }


def test_replicas_of_mig_devices() -> None:
    listed = {"name": "mig-1g.5gb", "replicas": 2, "devices": ["1:1"], "rename": "half"}
    assert ids(resources([gpu(0), gpu(1, "1g.5gb", "1g.5gb")], config("mixed", listed))) == {
        "nvidia.com/gpu": ["GPU-0"],
        "nvidia.com/mig-1g.5gb": ["MIG-10"],
        "nvidia.com/half": ["MIG-11::0", "MIG-11::1"],
    }


def test_what_this_node_has_not_is_shared_by_others() -> None:
    assert ids(resources([gpu(0)], config("none", {"name": "mig-1g.5gb", "replicas": 2}))) == {
        "nvidia.com/gpu": ["GPU-0"]
    }


@pytest.mark.parametrize(
    ("shared", "why"),
    [
        ({"devices": 3}, "3 devices are to be shared, the node has 2"),
        ({"devices": [0, 5]}, "the node has no device 5"),
        ({"rename": "t4"}, "nvidia.com/t4 is the name of other devices"),
    ],
)
def test_sharing_that_does_not_fit_the_node(shared: dict[str, Any], why: str) -> None:
    gpus = [gpu(0), gpu(1), gpu(2, name="T4")]
    named = config(
        "none", {"name": "gpu", "replicas": 2, **shared}, resources={"gpus": [{"pattern": "T4", "name": "t4"}]}
    )
    with pytest.raises(InvalidInput, match=why):
        resources(gpus, named)


def test_replicas_come_from_as_many_gpus_as_there_are() -> None:
    gpus = [gpu(0), gpu(1), gpu(2)]
    [units] = resources(gpus, config("none", {"name": "gpu", "replicas": 3})).values()
    choice = UnitChooser(units, gpus)
    everything = [unit.id for unit in units]
    assert choice.choose(everything, [], 3) == ("GPU-0::0", "GPU-1::0", "GPU-2::0")
    assert choice.choose(everything[1:], [], 1) == ("GPU-1::0",), "the GPU with the most left"
    assert choice.choose(everything, ["GPU-1::2"], 2) == ("GPU-0::0", "GPU-1::2")


def test_replicas_come_before_the_whole_gpus_of_the_same_name() -> None:
    """If only some GPUs are shared, a pod takes a whole GPU when no replica is left, or for a second GPU."""
    gpus = [gpu(0), gpu(1)]
    [units] = resources(gpus, config("none", {"name": "gpu", "replicas": 3, "devices": ["1"]})).values()
    choice = UnitChooser(units, gpus)
    everything = [unit.id for unit in units]
    assert choice.choose(everything, [], 1) == ("GPU-1::0",)
    assert choice.choose(["GPU-0", "GPU-1::2"], [], 1) == ("GPU-1::2",), "also when two of the three are held"
    assert choice.choose(["GPU-0"], [], 1) == ("GPU-0",)
    assert choice.choose(everything, [], 2) == ("GPU-0", "GPU-1::0")


def test_mig_devices_come_from_the_gpu_with_the_fewest_left() -> None:
    gpus = [gpu(0, "1g.5gb", "1g.5gb", "1g.5gb"), gpu(1, "1g.5gb", "1g.5gb")]
    [units] = resources(gpus, config("single")).values()
    choice = UnitChooser(units, gpus)
    assert choice.choose([unit.id for unit in units], [], 1) == ("MIG-10",)
    assert choice.choose([unit.id for unit in units], [], 3) == ("MIG-00", "MIG-10", "MIG-11")


@settings(deadline=None)
@given(st.data())
def test_any_request_that_can_be_met_is_met(data: st.DataObject) -> None:
    gpus = [gpu(index) for index in range(data.draw(st.integers(1, 4)))]
    [units] = resources(gpus, config("none", {"name": "gpu", "replicas": data.draw(st.integers(2, 4))})).values()
    available = data.draw(st.lists(st.sampled_from([unit.id for unit in units]), min_size=1, unique=True))
    must = data.draw(st.lists(st.sampled_from(available), unique=True))
    size = data.draw(st.integers(len(must), len(available)))
    chosen = UnitChooser(units, gpus).choose(available, must, size)
    assert len(set(chosen)) == size
    assert set(must) <= set(chosen) <= set(available)
    device = {unit.id: unit.device for unit in units}
    if not must:
        held = Counter(device[one] for one in chosen)
        assert len(held) == min(size, len({device[one] for one in available}))
    with pytest.raises(InvalidInput):
        UnitChooser(units, gpus).choose(available, must, len(available) + 1)
