"""`/metrics` of the extender."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from itertools import chain
from typing import TYPE_CHECKING, Final

from gpuplane.scheduler.pods.metrics import families
from gpuplane.scheduler.queues.metrics import queue_families
from gpuplane.scheduler.reservation import ReservationState
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, counter, gauge, histogram_values, series

if TYPE_CHECKING:
    from gpuplane.scheduler.leader import Leader

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_PREFIX: Final = "gpuplane_scheduler_"
REQUESTS: Final = Metric(_PREFIX + "requests_total", MetricType.COUNTER, "Requests answered, by verb and HTTP status.")
DURATIONS: Final = Metric(_PREFIX + "request_seconds", MetricType.HISTOGRAM, "Time to an answer, by verb.")
RESERVATIONS: Final = Metric(
    _PREFIX + "flights",
    MetricType.GAUGE,
    "Reservations of pods that no watch has delivered bound yet, by state.",
)
USED_GPUS: Final = Metric(
    _PREFIX + "quota_used_gpus",
    MetricType.GAUGE,
    "GPUs held or reserved, by namespace and model as quotas call it.",
)


_STATES: Final = {
    "posting": (ReservationState.POSTING, ReservationState.REPOSTING),
    "doubt": (ReservationState.DOUBT,),
    "bound": (ReservationState.BOUND,),
    "annotated": (ReservationState.ANNOTATED,),
}
"""The label `state` of RESERVATIONS. Tentative ones are the metric claims."""


class Metrics:
    """Counts answers; the rest is read from the leader's state at each scrape."""

    def __init__(self) -> None:
        self._statuses: Counter[tuple[str, int]] = Counter()
        self._within: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def answered(self, verb: str, status: HTTPStatus, seconds: float) -> None:
        self._statuses[verb, status.value] += 1
        within = self._within.setdefault(verb, [0] * (len(BUCKETS) + 1))
        within[bisect_left(BUCKETS, seconds)] += 1
        self._seconds[verb] = self._seconds.get(verb, 0.0) + seconds

    def families(self, leader: Leader | None) -> Iterator[MetricFamily]:
        """Yield the metrics; `leader` is None on a replica that does not answer."""
        statuses = sorted(self._statuses.items())
        yield MetricFamily(
            REQUESTS, [(series({"verb": verb, "code": str(code)}), count) for (verb, code), count in statuses]
        )
        durations = [
            histogram_values({"verb": verb}, BUCKETS, within, self._seconds[verb])
            for verb, within in sorted(self._within.items())
        ]
        yield MetricFamily(DURATIONS, list(chain.from_iterable(durations)))
        yield gauge(_PREFIX + "leader", "1 on the replica that answers.", leader is not None)
        if leader is not None:
            yield from _of(leader)


def _of(leader: Leader) -> Iterator[MetricFamily]:
    ledger, reservations, binder = leader.cluster.ledger, leader.reservations, leader.binder
    states = [state for state in ledger.nodes() if not state.by_count]
    yield gauge(
        _PREFIX + "gpus",
        "GPUs that the extender gives out: those of nodes without replicas and MIG devices.",
        sum(len(state.gpus) for state in states),
    )
    free = sum(core for state in states for core, gpu in zip(state.core, state.gpus, strict=True) if gpu.usable)
    yield gauge(_PREFIX + "free_gpus", "Free capacity of these GPUs where they are healthy, in GPUs.", free / 100)
    counts = [(series({"state": name}), reservations.count(*states)) for name, states in _STATES.items()]
    yield MetricFamily(RESERVATIONS, counts)
    yield gauge(_PREFIX + "claims", "Pods between filter and bind.", reservations.count(ReservationState.TENTATIVE))
    yield gauge(_PREFIX + "waiting_pods", "Pods that no node was found for.", len(leader.requeuer))
    yield gauge(
        _PREFIX + "unassigned_pods",
        "Pods with GPUs that were bound past the extender.",
        len(leader.cluster.guessed) + len(leader.cluster.unplaced),
    )
    yield counter(_PREFIX + "bound_total", "Pods bound.", binder.bound)
    yield counter(_PREFIX + "bind_failures_total", "Binds that failed.", binder.refused)
    yield counter(_PREFIX + "bind_doubts_total", "Binds after which the pod was read.", binder.doubted)
    yield counter(_PREFIX + "wakes_total", "Nodes touched so that pods are tried again.", leader.requeuer.touched)
    yield gauge(_PREFIX + "quota_broken", "1 when the quotas do not parse.", leader.quotas.broken)
    if leader.pods is not None:
        yield from families(leader.pods)


def quota_families(leader: Leader | None) -> Iterator[MetricFamily]:
    """Yield the metrics that name tenants, for callers with a certificate only."""
    sums = sorted(leader.cluster.usage.sums().items()) if leader is not None else []
    yield MetricFamily(
        USED_GPUS,
        [(series({"namespace": namespace, "model": model}), used / 100) for (namespace, model), used in sums],
    )
    yield from queue_families(leader.pods.model.fair if leader is not None and leader.pods is not None else None)
