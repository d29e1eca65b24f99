"""The machines, their file systems, and what discovery reads of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane import names
from gpuplane.discovery.labels import feature_labels
from gpuplane.discovery.sources import observe
from gpuplane.driver.decide import Action, decide
from gpuplane.driver.installer import observe as observe_driver
from gpuplane.host import Host
from kubekit.errors import InvalidInput, Terminal
from simgpu import profile
from simgpu.machines import DEMO_MACHINES, build_node, machine, machines, read_machine
from tinykube.kubelet.runtimes import read_config


@pytest.mark.parametrize("name", machines())
def test_every_machine_can_be_made_and_read(tmp_path: Path, name: str) -> None:
    built = build_node(tmp_path / "n", "n", machine(name))
    host = Host(tmp_path / "n/root")
    labels = feature_labels(observe(host))
    assert labels[names.KERNEL_VERSION_LABEL] == built.kernel
    assert labels[names.OS_ID_LABEL] == built.os.id
    assert labels["feature.node.kubernetes.io/storage-nonrotationaldisk"] == "true"
    assert labels["feature.node.kubernetes.io/cpu-cpuid.ADX"] == "true"
    assert labels["feature.node.kubernetes.io/kernel-config.NO_HZ"] == "true"
    count = profile(built.gpus).count if built.gpus else 0
    driver = observe_driver(host)
    assert driver.gpus == count
    wanted = Action.PRESENT if built.preinstalled else Action.MOUNT if count else Action.FAIL
    assert decide(driver).action is wanted
    config = read_config(tmp_path / "n/root", built.runtime, built.runtime_version)
    assert config.default in config.handlers


def test_the_demonstration_has_three_runtimes() -> None:
    found = [machine(name) for name in DEMO_MACHINES]
    assert [(m.os.id, m.runtime, m.preinstalled) for m in found] == [
        ("ubuntu", "containerd", False),
        ("ubuntu", "docker", True),
        ("rhel", "cri-o", False),
    ]
    assert found[1].driver == "535.161.08"


def test_a_machine_that_stands_is_left_alone(tmp_path: Path) -> None:
    build_node(tmp_path, "n", machine("cpu-ubuntu24"))
    mark = tmp_path / "root/etc/mark"
    mark.touch()
    again = build_node(tmp_path, "n", machine("cpu-rocky9"))
    assert again.name == "cpu-ubuntu24"
    assert mark.exists()


def test_a_half_made_machine_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/half").touch()
    build_node(tmp_path, "n", machine("cpu-ubuntu24"))
    assert not (tmp_path / "root/etc/half").exists()


def test_what_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="h100-ubuntu22"):
        machine("cray-1")
    with pytest.raises(Terminal, match="no simulated machine"):
        read_machine(tmp_path)
