"""ClusterPolicy `cdi.nriPluginEnabled` in the pods of toolkit and device plugin."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.api.operator_groups import CDI
from gpuplane.operator.operands import manifests

OPERANDS = {"nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset"}


def told(spec: ClusterPolicySpec) -> dict[str, list[str]]:
    """Return for each DaemonSet its settings of NRI."""
    found: dict[str, Any] = {}
    for manifest in manifests(spec, {}, removing=("container-toolkit",), image="i", owner={}):
        if manifest["kind"] == "DaemonSet":
            [container] = manifest["spec"]["template"]["spec"]["containers"]
            values = [entry["value"] for entry in container.get("env", ()) if entry["name"] == names.NRI_ENV]
            if values:
                found[manifest["metadata"]["name"]] = values
    return found


@pytest.mark.parametrize("enabled", [True, False])
def test_both_are_told(enabled: bool) -> None:
    found = told(ClusterPolicySpec(cdi=CDI(nri_plugin_enabled=enabled)))
    assert found == ({name: ["true"] for name in OPERANDS} if enabled else {})
