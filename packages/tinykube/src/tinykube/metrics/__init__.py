"""The resource metrics API of the embedded cluster: CPU and memory of nodes and pods, as metrics-server has them."""

from tinykube.metrics.service import MetricsService

__all__ = ["MetricsService"]
