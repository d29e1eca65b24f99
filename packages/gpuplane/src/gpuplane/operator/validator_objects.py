"""Applies a ClusterPolicy's `validator` to the validator's pods.

Its four parts are one container here, so the one name that several parts have gets the part's before it.
"""

from __future__ import annotations

from typing import Any, Final

from gpuplane.api.clusterpolicy import ClusterPolicySpec

SHARED: Final = "WITH_WORKLOAD"


def shape_validator(manifest: dict[str, Any], spec: ClusterPolicySpec) -> None:
    """Put the environment of the validator's parts into its DaemonSet."""
    [container] = manifest["spec"]["template"]["spec"]["containers"]
    validator = spec.validator
    parts = {
        "DRIVER": validator.driver,
        "TOOLKIT": validator.toolkit,
        "CUDA": validator.cuda,
        "PLUGIN": validator.plugin,
    }
    for part, said in parts.items():
        for variable in said.env:
            name = f"{part}_{SHARED}" if variable.name == SHARED else variable.name
            container["env"] = [entry for entry in container["env"] if entry["name"] != name]
            container["env"].append({"name": name, "value": variable.value})
