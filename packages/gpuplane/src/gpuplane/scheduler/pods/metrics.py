"""Metrics of the pod scheduler, on the extender's page. Counted here, or read from its state at each scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kubekit.kube.exposition import Metric, MetricFamily, MetricType, gauge, histogram_values, series

if TYPE_CHECKING:
    from gpuplane.scheduler.pods.scheduler import PodScheduler

_PREFIX: Final = "gpuplane_pod_scheduler_"
BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
PENDING: Final = Metric(
    _PREFIX + "pending_pods",
    MetricType.GAUGE,
    "Pods without a node, by where they wait: active, backoff, unschedulable, gated, or trying (bound just now).",
)
ATTEMPTS: Final = Metric(
    _PREFIX + "attempts_total",
    MetricType.COUNTER,
    "Tries of pods by result: scheduled, unschedulable, or error.",
)
DECISIONS: Final = Metric(_PREFIX + "decision_seconds", MetricType.HISTOGRAM, "Time to decide about a pod.")
_PLACES: Final = {"active": "active", "backoff": "backoff", "waiting": "unschedulable", "gated": "gated"}


class TryCounts:
    """The counts of one process."""

    def __init__(self) -> None:
        self.results = {"scheduled": 0, "unschedulable": 0, "error": 0}
        self.within = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0

    def decided(self, seconds: float) -> None:
        self.within[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds


def families(pods: PodScheduler) -> Iterator[MetricFamily]:
    """Yield the metrics of a replica that leads."""
    places = pods.model.queue.places()
    named = {**_PLACES, "trying": "trying"}
    yield MetricFamily(PENDING, [(series({"queue": name}), places.get(place, 0)) for place, name in named.items()])
    results = sorted(pods.counts.results.items())
    yield MetricFamily(ATTEMPTS, [(series({"result": result}), count) for result, count in results])
    yield MetricFamily(DECISIONS, list(histogram_values({}, BUCKETS, pods.counts.within, pods.counts.seconds)))
    yield gauge(_PREFIX + "bindings", "Bindings without an answer yet.", pods.bindings.in_flight)
