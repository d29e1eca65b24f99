"""`/metrics` of the extender, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from gpuplane.scheduler.flights import State

if TYPE_CHECKING:
    from gpuplane.scheduler.brain import Brain

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts answers; the rest is read off the brain when somebody asks."""

    def __init__(self) -> None:
        self._statuses: Counter[tuple[str, int]] = Counter()
        self._within: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def answered(self, verb: str, status: HTTPStatus, seconds: float) -> None:
        self._statuses[verb, status.value] += 1
        within = self._within.setdefault(verb, [0] * (len(BUCKETS) + 1))
        within[bisect_left(BUCKETS, seconds)] += 1
        self._seconds[verb] = self._seconds.get(verb, 0.0) + seconds

    def exposition(self, brain: Brain | None) -> str:
        lines = [
            *_metric(
                "gpuplane_scheduler_requests_total",
                "counter",
                "Requests answered, by verb and HTTP status.",
                [(f'verb="{verb}",code="{code}"', count) for (verb, code), count in sorted(self._statuses.items())],
            ),
            *self._durations(),
            *_one("gpuplane_scheduler_leader", "gauge", "1 on the replica that answers.", int(brain is not None)),
        ]
        if brain is not None:
            lines += _of(brain)
        return "\n".join(lines) + "\n"

    def _durations(self) -> Iterable[str]:
        name = "gpuplane_scheduler_request_seconds"
        yield f"# HELP {name} Time to an answer, by verb."
        yield f"# TYPE {name} histogram"
        for verb, within in sorted(self._within.items()):
            total = 0
            for bound, count in zip((*BUCKETS, "+Inf"), within, strict=True):
                total += count
                yield f'{name}_bucket{{verb="{verb}",le="{bound}"}} {total}'
            yield f'{name}_sum{{verb="{verb}"}} {self._seconds[verb]:.6f}'
            yield f'{name}_count{{verb="{verb}"}} {total}'


def _of(brain: Brain) -> Iterable[str]:
    ledger, flights = brain.cluster.ledger, brain.binder.flights
    states = list(ledger.nodes())
    yield from _one(
        "gpuplane_scheduler_gpus", "gauge", "GPUs that the ledger knows.", sum(len(state.gpus) for state in states)
    )
    free = sum(core for state in states for core, gpu in zip(state.core, state.gpus, strict=True) if gpu.healthy)
    yield from _one("gpuplane_scheduler_free_gpus", "gauge", "What is free of healthy GPUs, in GPUs.", free / 100)
    yield from _metric(
        "gpuplane_scheduler_flights",
        "gauge",
        "Pods promised something that no watch has shown on them yet, by state.",
        [(f'state="{state.value}"', flights.count(state)) for state in State],
    )
    yield from _one("gpuplane_scheduler_claims", "gauge", "Pods between filter and bind.", len(brain.claims))
    yield from _one("gpuplane_scheduler_waiting_pods", "gauge", "Pods that no node was found for.", len(brain.waker))
    yield from _one(
        "gpuplane_scheduler_unassigned_pods",
        "gauge",
        "Pods with GPUs that were bound past the extender.",
        len(brain.cluster.guessed) + len(brain.cluster.unplaced),
    )
    yield from _one("gpuplane_scheduler_bound_total", "counter", "Pods bound.", brain.binder.bound)
    yield from _one("gpuplane_scheduler_bind_failures_total", "counter", "Binds that failed.", brain.binder.refused)
    yield from _one(
        "gpuplane_scheduler_bind_doubts_total", "counter", "Binds after which the pod was read.", brain.binder.doubted
    )
    yield from _one(
        "gpuplane_scheduler_wakes_total", "counter", "Nodes touched so that pods are tried again.", brain.waker.touched
    )
    yield from _one(
        "gpuplane_scheduler_quota_broken", "gauge", "1 when the quotas do not parse.", int(brain.quotas.broken)
    )
    yield from _metric(
        "gpuplane_scheduler_quota_used_gpus",
        "gauge",
        "GPUs held or reserved, by namespace and model as quotas call it.",
        [
            (f'namespace="{namespace}",model="{_escaped(model)}"', used / 100)
            for (namespace, model), used in sorted(brain.cluster.usage.sums().items())
        ],
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _one(name: str, kind: str, about: str, value: float) -> Iterable[str]:
    return _metric(name, kind, about, [("", value)])


def _metric(name: str, kind: str, about: str, values: Iterable[tuple[str, float]]) -> Iterable[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values:
        yield f"{name}{{{labels}}} {value:g}" if labels else f"{name} {value:g}"
