"""The embedded cluster as processes: start it, find it, end it."""

from gpuplane.simulator.cluster.lifecycle import ClusterHandle, clusters, down, load, up
from gpuplane.simulator.cluster.spec import ClusterSpec, NodeSpec
from gpuplane.simulator.cluster.supervisor import run

__all__ = ["ClusterHandle", "ClusterSpec", "NodeSpec", "clusters", "down", "load", "run", "up"]
