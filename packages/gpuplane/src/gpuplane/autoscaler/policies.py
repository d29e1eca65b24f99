"""The configuration of a cluster's GPUs as its ClusterPolicy makes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.autoscaler.options import SharingSettings


def plugin_environment(spec: ClusterPolicySpec) -> dict[str, str]:
    """Return the device plugin's environment under a policy."""
    environment = {names.MIG_STRATEGY_ENV: spec.mig.strategy} if spec.mig.strategy else {}
    return environment | {variable.name: variable.value for variable in spec.device_plugin.env}


def policy_sharing(spec: ClusterPolicySpec, configs: Mapping[str, str]) -> SharingSettings:
    """Return what the device plugin will make of GPUs.

    Args:
        configs: the named configurations, in the ConfigMap of `spec.devicePlugin.config`; empty for no ConfigMap.
    """
    config = spec.device_plugin.config
    default = config.default if config is not None else ""
    return SharingSettings(dict(configs), default if configs else "", plugin_environment(spec))
