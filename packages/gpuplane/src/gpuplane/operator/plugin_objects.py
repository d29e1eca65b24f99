"""Applies a ClusterPolicy's `devicePlugin.config` to the pods that follow it: the device plugin's and discovery's.

Pure; `gpuplane.operator.operands` puts it in its place among all objects. The whole ConfigMap is mounted, and each pod
chooses by its node's label itself, so that a change of the label restarts no pod.
"""

from __future__ import annotations

from typing import Any, Final

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.operator.driver_sets import set_env

Manifest = dict[str, Any]

FOLLOWERS: Final = ("device_plugin", "gfd")
"""The components that read the configuration."""
CONFIG_DIR: Final = "/etc/gpuplane/plugin-configs"


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
    pod["volumes"].append({"name": "plugin-configs", "configMap": {"name": config.name}})
    container["volumeMounts"].append({"name": "plugin-configs", "mountPath": CONFIG_DIR, "readOnly": True})
    container["args"].append(f"--config={CONFIG_DIR}")
    if config.default:
        set_env(container, names.PLUGIN_DEFAULT_ENV, config.default)
    # As the GPU operator has it: a node without the label has no configuration, whatever the ConfigMap holds.
    set_env(container, names.PLUGIN_FALLBACKS_ENV, "empty")


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
