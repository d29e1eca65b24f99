"""Selects the nodes that share their GPUs by MPS, by their configuration of the device plugin. Pure.

The device plugin chooses and reads its configuration alike (`gpuplane.operand.configs`). The plugin reports an invalid
configuration in its stage; no daemon runs for it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from gpuplane import names
from gpuplane.api.pluginconfig import SharingStrategy, load
from gpuplane.operand.configs import choose
from kubekit.errors import InvalidInput


def follows_mps(configs: Mapping[str, str], default: str, labels: Mapping[str, str]) -> bool:
    """Return whether a node shares by MPS.

    Args:
        configs: the data of the ConfigMap.
        default: the name that the ClusterPolicy gives nodes without the label.
        labels: the node's.
    """
    try:
        name = choose(tuple(configs), labels.get(names.PLUGIN_CONFIG_LABEL, ""), default, ("empty",))
    except InvalidInput:
        return False
    return bool(name) and _by_mps(configs[name])


# Asked for every node at every change of it.
@functools.lru_cache(maxsize=64)
def _by_mps(text: str) -> bool:
    try:
        return load(text.encode()).sharing is SharingStrategy.MPS
    except InvalidInput:
        return False
