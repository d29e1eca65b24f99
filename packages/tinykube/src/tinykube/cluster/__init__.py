"""The embedded cluster as processes: start it, find it, change its nodes, end it."""

from tinykube.cluster.lifecycle import ClusterHandle, clusters, down, load, require_startable, up
from tinykube.cluster.membership import add_node, remove_node
from tinykube.cluster.spec import ClusterSpec, MachineSpec
from tinykube.kubelet.settings import KubeletSettings

__all__ = [
    "ClusterHandle",
    "ClusterSpec",
    "KubeletSettings",
    "MachineSpec",
    "add_node",
    "clusters",
    "down",
    "load",
    "remove_node",
    "require_startable",
    "up",
]
