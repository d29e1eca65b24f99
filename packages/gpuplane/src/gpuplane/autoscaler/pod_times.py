"""The times that pods take from when they wait for a node until they run on one: metrics by Karpenter's names.

Only pods that the autoscaler has seen waiting count. A restart forgets them, so their times from memory begin again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.counting import Durations
from gpuplane.autoscaler.observed import PodView
from kubekit.api.core import Pod
from kubekit.kube import Clock, SystemClock
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, series

_PREFIX: Final = "karpenter_pods_"
_CREATED, _SEEN = "from a pod's creation", "from when the autoscaler saw that a pod waits"


class _Times(msgspec.Struct):
    """One pod: `seen` in monotonic seconds, `created` since 1970."""

    namespace: str
    name: str
    seen: float
    created: float
    decided: bool = False
    bound: bool = False


class PodTimes:
    """The pods that wait, or that have a node and do not run yet."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pods: dict[str, _Times] = {}  # by namespace/name
        self._bound, self._started = Durations(), Durations()
        self._bound_seen, self._started_seen, self._decided = Durations(), Durations(), Durations()

    def see(self, old: Pod | None, new: Pod | None) -> None:
        """Note a change of a pod."""
        about = new or old
        if about is None:
            return
        key = f"{about.metadata.namespace}/{about.metadata.name}"
        if not isinstance(new, PodView) or new.metadata.deletion_timestamp or new.status.ended:
            self._pods.pop(key, None)
            return
        times = self._pods.get(key)
        if times is None:
            if new.waits:
                created = unix_time(new.metadata.creation_timestamp) or self._wall()
                self._pods[key] = _Times(new.metadata.namespace, new.metadata.name, self._clock.now(), created)
            return
        if not times.bound and new.info is not None and new.info.node_name:
            times.bound = True
            self._bound.observe(self._wall() - times.created)
            self._bound_seen.observe(self._clock.now() - times.seen)
        if times.bound and new.status.phase == "Running":
            self._started.observe(self._wall() - times.created)
            self._started_seen.observe(self._clock.now() - times.seen)
            del self._pods[key]

    def decide(self, pods: Iterable[str]) -> None:
        """Note that a decision was made about pods, by namespace/name."""
        for key in pods:
            times = self._pods.get(key)
            if times is not None and not times.decided:
                times.decided = True
                self._decided.observe(self._clock.now() - times.seen)

    def metrics(self) -> Iterator[MetricFamily]:
        """Yield the metrics of one moment."""
        for name, durations, about in (
            ("bound_duration_seconds", self._bound, f"Seconds {_CREATED} until it has a node."),
            ("startup_duration_seconds", self._started, f"Seconds {_CREATED} until it runs."),
            ("provisioning_bound_duration_seconds", self._bound_seen, f"Seconds {_SEEN} until it has a node."),
            ("provisioning_startup_duration_seconds", self._started_seen, f"Seconds {_SEEN} until it runs."),
            ("scheduling_decision_duration_seconds", self._decided, f"Seconds {_SEEN} until the first decision."),
        ):
            yield durations.family(Metric(_PREFIX + name, MetricType.HISTOGRAM, about))
        now, wall = self._clock.now(), self._wall()
        unbound = [one for one in self._pods.values() if not one.bound]
        undecided = [one for one in unbound if not one.decided]
        every = list(self._pods.values())
        for name, pods, seen, about in (
            ("unbound_time_seconds", unbound, False, f"Seconds {_CREATED}, of one without a node."),
            ("unstarted_time_seconds", every, False, f"Seconds {_CREATED}, of one that does not run."),
            ("provisioning_unbound_time_seconds", unbound, True, f"Seconds {_SEEN}, of one without a node."),
            ("provisioning_unstarted_time_seconds", every, True, f"Seconds {_SEEN}, of one that does not run."),
            (
                "provisioning_scheduling_undecided_time_seconds",
                undecided,
                True,
                f"Seconds {_SEEN}, undecided.",
            ),
        ):
            values = [
                (
                    series({"name": one.name, "namespace": one.namespace}),
                    now - one.seen if seen else max(0.0, wall - one.created),
                )
                for one in pods
            ]
            yield MetricFamily(Metric(_PREFIX + name, MetricType.GAUGE, about), values)

    @classmethod
    def sample(cls) -> Iterator[MetricFamily]:
        """Yield the metrics with one value each, for documents that list their labels."""
        found = cls(SystemClock())
        found._pods["NAMESPACE/POD"] = _Times("NAMESPACE", "POD", 0.0, 0.0)
        return found.metrics()

    def _wall(self) -> float:
        return unix_time(self._clock.wall()) or 0.0
