"""The use of CPU and memory of a node and its containers: measured on request, served as a kubelet serves it."""

from tinykube.kubelet.stats.usage import NodeUsage
from tinykube.kubelet.stats.usage_meter import UsageMeter

__all__ = ["NodeUsage", "UsageMeter"]
