"""Metrics of queues, read from the scheduler's state at each scrape. They name teams, as those of quotas do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuplane.scheduler.queues.fair import FairQueues
from gpuplane.scheduler.queues.shares import dominant_share
from gpuplane.scheduler.queues.tree import RESOURCES
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, series

_PREFIX: Final = "gpuplane_queue_"
_OF: Final = "by queue and resource: cpu, memory (bytes), gpus, gpuMemory (bytes)."
HELD: Final = Metric(_PREFIX + "held", MetricType.GAUGE, f"Amounts that pods of a queue and below it hold, {_OF}")
BORROWED: Final = Metric(_PREFIX + "borrowed", MetricType.GAUGE, f"Amounts held beyond the guarantee, {_OF}")
GUARANTEED: Final = Metric(_PREFIX + "guaranteed", MetricType.GAUGE, f"Guaranteed amounts, {_OF}")
SHARE: Final = Metric(
    _PREFIX + "dominant_share", MetricType.GAUGE, "Largest part of the cluster among the four resources, 0 to 1."
)
_UNITS: Final = (1 / 1000, 1, 1 / 100, 1 << 20)


def queue_families(fair: FairQueues | None) -> Iterator[MetricFamily]:
    """Yield the metrics of all queues; None on a replica that does not schedule."""
    held, borrowed, guaranteed, shares = [], [], [], []
    for name in sorted(queue.name for queue in fair.tree) if fair is not None else ():
        assert fair is not None
        for at, resource in enumerate(RESOURCES):
            labels = series({"queue": name, "resource": resource})
            held.append((labels, fair.sums.held(name)[at] * _UNITS[at]))
            borrowed.append((labels, fair.sums.borrowed(name)[at] * _UNITS[at]))
            if (bound := fair.tree.guaranteed(name)[at]) is not None:
                guaranteed.append((labels, bound * _UNITS[at]))
        share = dominant_share(fair.sums.held(name), fair.capacity.total)
        shares.append((series({"queue": name}), share))
    yield MetricFamily(HELD, held)
    yield MetricFamily(BORROWED, borrowed)
    yield MetricFamily(GUARANTEED, guaranteed)
    yield MetricFamily(SHARE, shares)
