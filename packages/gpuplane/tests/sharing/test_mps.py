"""The MPS daemons of a node, and their settings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.api.pluginconfig import PluginConfig, parse
from gpuplane.hardware import GPUFacts, MigDevice, MigMode
from gpuplane.sharing.mps import daemons, ready_text
from kubekit.errors import InvalidInput

GIB = 1 << 30


def gpu(index: int, *, name: str = "T4", gib: int = 16, compute: tuple[int, int] = (7, 5)) -> GPUFacts:
    return GPUFacts(
        index=index, minor=index, uuid=f"GPU-{index}", model=name, memory_bytes=gib * GIB, pci="", compute=compute
    )


def config(*resources: dict[str, Any], by: str = "mps", **more: Any) -> PluginConfig:
    return parse({"version": "v1", "sharing": {by: {"resources": list(resources)}}, **more})


def test_each_shared_resource_has_a_daemon_that_divides_its_gpus() -> None:
    named = {"resources": {"gpus": [{"pattern": "T4", "name": "small"}, {"pattern": "*", "name": "gpu"}]}}
    shared = [{"name": "small", "replicas": 4, "rename": "nvidia.com/quarter"}, {"name": "gpu", "replicas": 3}]
    found = daemons([gpu(0), gpu(1, name="L4", gib=24), gpu(2)], config(*shared, **named))
    assert {one.resource: one.commands for one in found} == {
        "nvidia.com/gpu": ("set_default_device_pinned_mem_limit 1 8192M", "set_default_active_thread_percentage 33"),
        "nvidia.com/quarter": (
            "set_default_device_pinned_mem_limit 0 4096M",
            "set_default_device_pinned_mem_limit 2 4096M",
            "set_default_active_thread_percentage 25",
        ),
    }


def test_gpus_of_the_same_name_that_are_not_shared_are_one_clients() -> None:
    [found] = daemons([gpu(0), gpu(1)], config({"name": "nvidia.com/gpu", "replicas": 2, "devices": ["1"]}))
    assert [(share.replicas, share.memory_mib) for share in found.gpus] == [(1, 16384), (2, 8192)]
    assert found.percentage == 50


def test_no_daemon_without_mps() -> None:
    shared = {"name": "nvidia.com/gpu", "replicas": 2}
    assert daemons([gpu(0)], config(shared, by="timeSlicing")) == ()
    assert daemons([gpu(0)], PluginConfig()) == ()
    assert daemons([gpu(0)], config({"name": "nvidia.com/other", "replicas": 2})) == ()


def test_what_mps_cannot_share_is_refused() -> None:
    cut = MigDevice(
        index=0, uuid="MIG-0", profile="1g.5gb", gpu_instance=7, compute_instance=0, memory_bytes=5 * GIB, slices=1
    )
    split = msgspec.structs.replace(gpu(0), mig=MigMode.ENABLED, mig_devices=(cut,))
    with pytest.raises(InvalidInput, match="MIG devices cannot be shared by MPS"):
        mixed = {"flags": {"migStrategy": "mixed"}}
        daemons([split], config({"name": "nvidia.com/mig-1g.5gb", "replicas": 2}, **mixed))
    many = config({"name": "nvidia.com/gpu", "replicas": 48})
    assert daemons([gpu(0)], many)[0].percentage == 2
    with pytest.raises(InvalidInput, match="GPU 0 has room for 16 clients, not 48"):
        daemons([gpu(0, compute=(6, 1))], many)


@given(
    counts=st.lists(st.integers(2, 48), min_size=1, max_size=4),
    gibs=st.lists(st.integers(1, 288), min_size=4, max_size=4),
)
def test_clients_together_never_have_more_than_a_gpu(counts: list[int], gibs: list[int]) -> None:
    gpus = [gpu(index, name=f"G{index}", gib=gibs[index]) for index in range(len(counts))]
    named = {"resources": {"gpus": [{"pattern": one.model, "name": one.model.lower()} for one in gpus]}}
    shared = [{"name": one.model.lower(), "replicas": count} for one, count in zip(gpus, counts, strict=True)]
    found = daemons(gpus, config(*shared, **named))
    for daemon in found:
        [share] = daemon.gpus
        assert share.memory_mib * share.replicas <= gibs[share.index] * 1024
        assert daemon.percentage * share.replicas <= 100
    assert ready_text(found) == ready_text(daemons(gpus, config(*shared, **named)))
    assert ready_text(found) != ready_text(found[1:])
