"""The embedded cluster as processes: start it, find it, end it."""

from tinykube.cluster.lifecycle import ClusterHandle, clusters, down, load, up
from tinykube.cluster.spec import ClusterSpec, NodeSpec
from tinykube.cluster.supervisor import run

__all__ = ["ClusterHandle", "ClusterSpec", "NodeSpec", "clusters", "down", "load", "run", "up"]
