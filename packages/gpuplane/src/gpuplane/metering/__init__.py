"""The meter of a node: who held its GPUs, who used them, with how much memory and energy.

    meter = Meter()
    meter.read(reading)     # every few seconds, and with each scrape
    meter.families(names)   # the counters, for Prometheus

Pure: readings come from `gpuplane.exporter.usage`.
"""

from gpuplane.metering.booking import Booking, book
from gpuplane.metering.exposition import METRICS, MeterNames, families
from gpuplane.metering.facts import GPUReading, Hold, HoldKind, NodeReading, PodContainer
from gpuplane.metering.meter import Meter, MeterTotals

__all__ = [
    "METRICS",
    "Booking",
    "GPUReading",
    "Hold",
    "HoldKind",
    "Meter",
    "MeterNames",
    "MeterTotals",
    "NodeReading",
    "PodContainer",
    "book",
    "families",
]
