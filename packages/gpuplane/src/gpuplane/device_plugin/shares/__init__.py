"""Shares of GPUs on a node: `tencent.com/vcuda-core` and `-memory` with limits of time and memory.

Most nodes have no shares, so the operand imports this package late.
"""

from gpuplane.device_plugin.shares.limits import ShareLimits
from gpuplane.device_plugin.shares.node import ShareNode, share_node
from gpuplane.device_plugin.shares.plugin import SharePlugin, share_plugins
from gpuplane.device_plugin.shares.steering import Steering

__all__ = ["ShareLimits", "ShareNode", "SharePlugin", "Steering", "share_node", "share_plugins"]
