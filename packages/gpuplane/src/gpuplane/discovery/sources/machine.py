"""All features of a machine but those that users write."""

from __future__ import annotations

from gpuplane.discovery.features import Features, union
from gpuplane.discovery.sources import cpu, devices, kernel, memory, system
from gpuplane.host import Host


def observe(host: Host, node_name: str = "", before: Features | None = None) -> Features:
    """The machine's features now. Facts that cannot change while its kernel runs are copied from `before`."""
    return union(
        cpu.discover(host),
        kernel.discover(host, before),
        memory.discover(host),
        devices.discover(host),
        system.discover(host, node_name),
    )
