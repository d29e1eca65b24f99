"""The embedded cluster as processes: start it, find it, end it."""

from tinykube.cluster.lifecycle import ClusterHandle, clusters, down, load, up
from tinykube.cluster.spec import ClusterSpec, MachineSpec

__all__ = ["ClusterHandle", "ClusterSpec", "MachineSpec", "clusters", "down", "load", "up"]
