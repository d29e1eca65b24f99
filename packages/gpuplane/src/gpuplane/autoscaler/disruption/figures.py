"""The figures of disruption, and their metrics by Karpenter's names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from gpuplane.autoscaler.counting import Durations, LabelledCounts
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, Series, counter, series

ALLOWED: Final = Metric(
    "karpenter_nodepools_allowed_disruptions",
    MetricType.GAUGE,
    "Nodes of a pool that its budgets let go now, by reason; left out without a budget.",
)
ELIGIBLE: Final = Metric(
    "karpenter_voluntary_disruption_eligible_nodes",
    MetricType.GAUGE,
    "Nodes that would be disrupted if nothing held them, by reason.",
)
DECISIONS: Final = Metric(
    "karpenter_voluntary_disruption_decisions_total",
    MetricType.COUNTER,
    "Decisions, by decision (delete or replace), reason and policy.",
)
FAILED_VALIDATIONS: Final = Metric(
    "karpenter_voluntary_disruption_failed_validations_total",
    MetricType.COUNTER,
    "Decisions that did not hold 15 s later, by policy.",
)


BY_POOL: Final = Metric(
    "karpenter_voluntary_disruption_decisions_by_nodepool_total",
    MetricType.COUNTER,
    "Decisions, by pool, decision (delete or replace), reason and policy.",
)
CONSUMING: Final = Metric(
    "karpenter_nodepools_nodes_consuming_budgets",
    MetricType.GAUGE,
    "Nodes of a pool that count against its budgets: they end, or are not ready.",
)
SECONDS: Final = Metric(
    "karpenter_voluntary_disruption_decision_evaluation_duration_seconds",
    MetricType.HISTOGRAM,
    "Seconds that a decision took, by reason and kind.",
)
CUT_OFF: Final = Metric(
    "karpenter_voluntary_disruption_consolidation_timeouts_total",
    MetricType.COUNTER,
    "Passes of consolidation that took their steps before each node was tried; the next pass goes on.",
)


class DisruptionFigures(msgspec.Struct):
    """LabelledCounts since the start, and the last pass.

    `room` maps a reason and a pool to the nodes that may go, infinite without a budget. `eligible` counts nodes by
    reason. `decisions` counts by (decision, reason, policy), `unconfirmed` by policy. `failures` are replacements that
    took no pods. `by_pool` counts decisions with the pool, `away` maps a pool to its nodes that count against budgets,
    `cut_off` counts passes of consolidation that did not get to each node.
    """

    room: dict[str, dict[str, float]] = {}
    eligible: dict[str, int] = {}
    decisions: dict[tuple[str, str, str], int] = {}
    unconfirmed: dict[str, int] = {}
    failures: int = 0
    by_pool: LabelledCounts = msgspec.field(default_factory=LabelledCounts)
    away: dict[str, int] = {}
    cut_off: int = 0
    seconds: Durations = msgspec.field(default_factory=Durations)

    def decide(self, decision: str, reason: str, policy: str, pools: Iterable[str] = ()) -> None:
        """Count a decision about nodes of some pools."""
        for pool in sorted(pools):
            self.by_pool.add(nodepool=pool, decision=decision, reason=reason.lower(), policy=policy)
        key = (decision, reason.lower(), policy)
        self.decisions[key] = self.decisions.get(key, 0) + 1

    def refute(self, policy: str) -> None:
        """Count a decision that was not confirmed."""
        self.unconfirmed[policy] = self.unconfirmed.get(policy, 0) + 1


def disruption_metrics(figures: DisruptionFigures) -> Iterator[MetricFamily]:
    """Yield the metrics of one moment."""
    room = [(pool, reason, left) for reason, pools in figures.room.items() for pool, left in pools.items()]
    finite = [({"nodepool": pool, "reason": reason}, left) for pool, reason, left in room if not math.isinf(left)]
    yield MetricFamily(ALLOWED, [(series(labels), left) for labels, left in finite])
    yield MetricFamily(ELIGIBLE, _by("reason", {reason.lower(): count for reason, count in figures.eligible.items()}))
    decisions = sorted(figures.decisions.items())
    yield MetricFamily(
        DECISIONS,
        [
            (series({"decision": decision, "reason": reason, "policy": policy}), count)
            for (decision, reason, policy), count in decisions
        ],
    )
    yield MetricFamily(FAILED_VALIDATIONS, _by("policy", figures.unconfirmed))
    yield figures.by_pool.family(BY_POOL)
    yield MetricFamily(CONSUMING, _by("nodepool", figures.away))
    yield figures.seconds.family(SECONDS)
    yield MetricFamily(CUT_OFF, [(series({"consolidation_type": "single"}), figures.cut_off)])
    about = "Replacements that took no pods in time, so that their nodes stayed."
    yield counter("karpenter_voluntary_disruption_queue_failures_total", about, figures.failures)


def _by(label: str, counts: Mapping[str, int]) -> list[tuple[Series, float]]:
    return [(series({label: name}), count) for name, count in sorted(counts.items())]
