"""The embedded cluster as processes: start it, find it, end it."""

from tinykube.cluster.lifecycle import ClusterHandle, clusters, down, load, up
from tinykube.cluster.spec import ClusterSpec, NodeSpec

__all__ = ["ClusterHandle", "ClusterSpec", "NodeSpec", "clusters", "down", "load", "up"]
