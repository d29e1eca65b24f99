"""Allocations of a container, by each strategy."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.api.pluginconfig import PluginConfig, parse
from gpuplane.device_plugin.allocation import NodeFiles, allocation
from gpuplane.device_plugin.kubelet_api import Allocation, DeviceSpec
from gpuplane.host import HostMount
from gpuplane.sharing.units import Unit
from kubekit.errors import InvalidInput, Terminal

UNITS = {
    unit.id: unit
    for unit in (
        *(Unit(id=f"GPU-{n}", device=f"GPU-{n}", gpu=f"GPU-{n}", index=str(n), nodes=(f"nvidia{n}",)) for n in (0, 1)),
        *(
            Unit(id=f"GPU-2::{n}", device="GPU-2", gpu="GPU-2", index="2", nodes=("nvidia2",), replicas=2)
            for n in (0, 1)
        ),
        Unit(
            id="MIG-3",
            device="MIG-3",
            gpu="GPU-3",
            index="3:0",
            nodes=("nvidia3", "gpu3/gi7/access", "gpu3/gi7/ci0/access"),
            mig=True,
        ),
    )
}


def given(*ids: str, files: NodeFiles = NodeFiles(), flags: Any = None, **plugin: Any) -> Allocation:  # noqa: B008
    config = parse({"version": "v1", "flags": {**(flags or {}), "plugin": plugin}})
    return allocation(ids, UNITS, {}, config, files)


def test_variable_and_cdi_names_by_default() -> None:
    assert given("GPU-1", "GPU-0") == Allocation(
        envs={"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-0"}, cdi_devices=("nvidia.com/gpu=GPU-1", "nvidia.com/gpu=GPU-0")
    )


def test_each_strategy() -> None:
    # A variable or mounts alone give a GPU on no runtime whose default is not NVIDIA's.
    assert given("GPU-1", deviceListStrategy="envvar") == Allocation(
        envs={"NVIDIA_VISIBLE_DEVICES": "GPU-1"}, cdi_devices=("nvidia.com/gpu=GPU-1",)
    )
    assert given("GPU-1", deviceListStrategy="cdi-cri") == Allocation(cdi_devices=("nvidia.com/gpu=GPU-1",))
    mounted = "/var/run/nvidia-container-devices"
    assert given("GPU-1", "MIG-3", deviceListStrategy="volume-mounts") == Allocation(
        envs={"NVIDIA_VISIBLE_DEVICES": mounted},
        mounts=tuple(HostMount(host_path="/dev/null", container_path=f"{mounted}/{id_}") for id_ in ("GPU-1", "MIG-3")),
        cdi_devices=("nvidia.com/gpu=GPU-1", "nvidia.com/gpu=MIG-3"),
    )
    annotated = given("GPU-1", "GPU-0", deviceListStrategy="cdi-annotations")
    [(key, value)] = annotated.annotations.items()
    assert key.startswith("cdi.k8s.io/nvidia-device-plugin_")
    assert len(key.partition("/")[2]) <= 63
    assert value == "nvidia.com/gpu=GPU-1,nvidia.com/gpu=GPU-0"
    other = given("GPU-0", deviceListStrategy="cdi-annotations", cdiAnnotationPrefix="nvidia.cdi.k8s.io/")
    [other_key] = other.annotations
    assert other_key.startswith("nvidia.cdi.k8s.io/")
    assert other_key.rpartition("_")[2] != key.rpartition("_")[2], "two resources of one container"


def test_devices_by_index() -> None:
    got = given("GPU-1", "MIG-3", deviceIDStrategy="index")
    assert got.envs == {"NVIDIA_VISIBLE_DEVICES": "1,3:0"}
    assert got.cdi_devices == ("nvidia.com/gpu=1", "nvidia.com/gpu=3:0")


def test_device_nodes() -> None:
    files = NodeFiles(("nvidiactl", "nvidia-uvm"), {"gpu3/gi7/access": 66, "gpu3/gi7/ci0/access": 67})
    flags = {"nvidiaDriverRoot": "/run/nvidia/driver"}
    got = given("GPU-1", "MIG-3", files=files, flags=flags, passDeviceSpecs=True)
    nodes = ("nvidiactl", "nvidia-uvm", "nvidia1", "nvidia3", "nvidia-caps/nvidia-cap66", "nvidia-caps/nvidia-cap67")
    assert got.devices == tuple(
        DeviceSpec(host_path=f"/run/nvidia/driver/dev/{node}", container_path=f"/dev/{node}") for node in nodes
    )
    assert given("GPU-0", files=files, passDeviceSpecs=True).devices[-1].host_path == "/dev/nvidia0"
    with pytest.raises(Terminal, match="gpu3/gi7/access"):
        given("MIG-3", passDeviceSpecs=True)


def test_two_replicas_of_one_gpu_are_that_gpu() -> None:
    assert given("GPU-2::0", "GPU-2::1").envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-2"}


def test_more_replicas_than_allowed() -> None:
    config = PluginConfig(fail_requests_above_one=True)
    assert allocation(["GPU-2::0"], UNITS, {}, config).envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-2"}
    assert allocation(["GPU-0", "GPU-1"], UNITS, {}, config).envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1"}
    with pytest.raises(InvalidInput, match="2 replicas are requested"):
        allocation(["GPU-2::0", "GPU-2::1"], UNITS, {}, config)


def test_unknown_and_sick_devices_are_not_handed_out() -> None:
    with pytest.raises(Terminal, match="no device GPU-9"):
        given("GPU-9")
    with pytest.raises(Terminal, match="Xid 79"):
        allocation(["MIG-3"], UNITS, {"GPU-3": "Xid 79"}, PluginConfig())
