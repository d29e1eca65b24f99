"""The validator's pods, from a ClusterPolicy's `validator`."""

from __future__ import annotations

import msgspec

from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.operator.operands import manifests
from gpuplane.validator.operand import NO_CUDA_ENV, NO_LINKS_ENV, NO_POD_ENV


def test_the_parts_environments_come_together() -> None:
    off = [{"name": "WITH_WORKLOAD", "value": "false"}]
    parts = {
        "driver": {"env": [{"name": "DISABLE_DEV_CHAR_SYMLINK_CREATION", "value": "true"}]},
        "cuda": {"env": [{"name": "WITH_WORKLOAD", "value": "true"}]},
        "plugin": {"env": off},
    }
    spec = msgspec.convert({"validator": parts}, ClusterPolicySpec)
    every = manifests(spec, {}, image="i", owner={"kind": "ClusterPolicy", "name": "p", "uid": "1"})
    [daemonset] = [m for m in every if m["metadata"]["name"] == "nvidia-operator-validator"]
    [container] = daemonset["spec"]["template"]["spec"]["containers"]
    got = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (got[NO_LINKS_ENV], got[NO_CUDA_ENV], got[NO_POD_ENV]) == ("true", "true", "false")
    assert "NODE_NAME" in got
