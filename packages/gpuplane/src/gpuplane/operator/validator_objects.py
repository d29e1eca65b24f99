"""Applies a ClusterPolicy's `validator` to the validator's pods.

Its four parts are one container here, so the one name that several parts have gets the part's before it.
"""

from __future__ import annotations

from typing import Final

from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.operator.manifest import Manifest, set_env

SHARED: Final = "WITH_WORKLOAD"


def shape_validator(manifest: Manifest, spec: ClusterPolicySpec) -> None:
    """Put the environment of the validator's parts into its DaemonSet."""
    [container] = manifest["spec"]["template"]["spec"]["containers"]
    validator = spec.validator
    parts = {
        "DRIVER": validator.driver,
        "TOOLKIT": validator.toolkit,
        "CUDA": validator.cuda,
        "PLUGIN": validator.plugin,
    }
    for part, component in parts.items():
        for variable in component.env:
            name = f"{part}_{SHARED}" if variable.name == SHARED else variable.name
            set_env(container, name, variable.value)
