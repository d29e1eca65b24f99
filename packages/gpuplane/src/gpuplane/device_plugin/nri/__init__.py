"""The NRI plugin of a node: containers get their devices when the container runtime creates them.

Allocate answers the kubelet with a deferred response; the container runtime asks for the devices when it creates the
container, and names the container. Most nodes need only what is exported here; the messages of NRI load late.
"""

from gpuplane.device_plugin.nri.deferred import WHY_NOTHING, DeferredAllocation, deferred
from gpuplane.device_plugin.nri.node import NriScope, nri_connection, nri_scope

__all__ = ["WHY_NOTHING", "DeferredAllocation", "NriScope", "deferred", "nri_connection", "nri_scope"]
