"""Applies a ClusterPolicy's `devicePlugin.config` to the pods that follow it: the device plugin's and discovery's.

Pure; `gpuplane.operator.operands` calls it for the DaemonSets concerned.
"""

from __future__ import annotations

from typing import Final

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.operator.manifest import Manifest, add_part, set_env

FOLLOWERS: Final = ("device_plugin", "gfd")
"""The components that read the configuration."""
PARTS_FILE: Final = "0501-plugin-config-parts.yaml"


def shape_follower(manifest: Manifest, spec: ClusterPolicySpec) -> None:
    """Mount the policy's configurations into a DaemonSet, and tell it which one is the default."""
    config = spec.device_plugin.config
    pod = manifest["spec"]["template"]["spec"]
    [container] = pod["containers"]
    if spec.mig.strategy:
        set_env(container, names.MIG_STRATEGY_ENV, spec.mig.strategy)
    _place_mps(pod, container, spec.device_plugin.mps.root)
    if config is None or not config.name:
        return
    if config.default:
        set_env(container, names.PLUGIN_DEFAULT_ENV, config.default)
    own = [entry for entry in container["env"] if entry["name"] == names.PLUGIN_FALLBACKS_ENV]
    add_part(pod, container, PARTS_FILE, "configs", source=config.name)
    for entry in own:  # the component's own env goes before
        set_env(container, entry["name"], entry["value"])


def _place_mps(pod: Manifest, container: Manifest, root: str) -> None:
    """Set the directory of MPS's pipes on the nodes, for the pods that use it."""
    if root != names.MPS_ROOT:
        set_env(container, names.MPS_ROOT_ENV, root)
    for volume in pod["volumes"]:
        if volume["name"] == "mps":
            volume["hostPath"]["path"] = root
    for mount in container["volumeMounts"]:
        if mount["name"] == "mps":
            mount["mountPath"] = f"/host{root}"
