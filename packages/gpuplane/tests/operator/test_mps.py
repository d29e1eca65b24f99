"""The nodes with an MPS control daemon, and the paths of its files."""

from __future__ import annotations

import msgspec
import pytest

from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.operator.mps import follows_mps
from gpuplane.operator.operands import load
from gpuplane.operator.plugin_objects import shape_follower

SHARED = "version: v1\nsharing: {%s: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
CONFIGS = {"mps": SHARED % "mps", "slices": SHARED % "timeSlicing", "wrong": "version: v2", "plain": "version: v1"}


@pytest.mark.parametrize(
    ("label", "default", "expected"),
    [
        ("mps", "", True),
        ("", "mps", True),
        ("slices", "mps", False),
        ("wrong", "mps", False),
        ("plain", "", False),
        ("absent", "mps", False),
        ("", "", False),
    ],
)
def test_the_nodes_own_configuration_decides(label: str, default: str, expected: bool) -> None:
    labels = {"nvidia.com/device-plugin.config": label} if label else {}
    assert follows_mps(CONFIGS, default, labels) is expected


def test_another_root_is_told_and_mounted() -> None:
    spec = msgspec.convert({"devicePlugin": {"mps": {"root": "/srv/mps"}}}, ClusterPolicySpec)
    [manifest] = load("0510-mps-control-daemon.yaml")
    shape_follower(manifest, spec)
    pod = manifest["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert {"name": "MPS_ROOT", "value": "/srv/mps"} in container["env"]
    assert [volume["hostPath"]["path"] for volume in pod["volumes"]] == ["/", "/srv/mps"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/host", "/host/srv/mps"]
