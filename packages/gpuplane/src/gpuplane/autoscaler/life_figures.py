"""Counts of claims, nodes and pods since the start, and how long their steps took: metrics by Karpenter's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuplane.autoscaler.counting import DAYS, Durations, LabelledCounts, sample_counts
from kubekit.kube.exposition import Metric, MetricFamily, MetricType

_COUNTS: Final = {
    "nodes_created": ("karpenter_nodes_created_total", "Nodes that registered, by pool and zone."),
    "nodes_ended": ("karpenter_nodes_terminated_total", "Nodes that have ended, by pool and zone."),
    "nodes_drained": ("karpenter_nodes_drained_total", "Nodes that were drained, by pool."),
    "pods_drained": ("karpenter_pods_drained_total", "Pods that were evicted from nodes that end, by the reason."),
    "pods_disrupted": (
        "karpenter_pods_disruption_initiated_total",
        "Pods on nodes when their disruption began, by reason, pool, capacity type and policy.",
    ),
    "unhealthy": (
        "karpenter_nodeclaims_unhealthy_disrupted_total",
        "Claims of broken nodes that were deleted, by condition, pool, capacity type and image.",
    ),
}
_DURATIONS: Final = {
    "decisions": (
        "karpenter_scheduler_scheduling_duration_seconds",
        "Seconds that a decision about pods took: provisioner for those that wait, disruption for those of nodes.",
    ),
    "claim_ends": ("karpenter_nodeclaims_termination_duration_seconds", "From a claim's deletion until it was gone."),
    "instance_ends": (
        "karpenter_nodeclaims_instance_termination_duration_seconds",
        "From the order to end an instance until it was gone.",
    ),
    "node_ends": ("karpenter_nodes_termination_duration_seconds", "From a node's deletion until its finalizer went."),
}
_LIFETIMES: Final = Metric(
    "karpenter_nodes_lifetime_duration_seconds", MetricType.HISTOGRAM, "Lifetimes of nodes that have ended."
)


class LifeFigures:
    """The figures. Controllers count in them; a scrape reads them."""

    def __init__(self) -> None:
        self.nodes_created, self.nodes_ended, self.nodes_drained = LabelledCounts(), LabelledCounts(), LabelledCounts()
        self.pods_drained, self.pods_disrupted, self.unhealthy = LabelledCounts(), LabelledCounts(), LabelledCounts()
        self.decisions, self.claim_ends, self.instance_ends = Durations(), Durations(), Durations()
        self.node_ends, self.lifetimes = Durations(), Durations(DAYS)

    def metrics(self) -> Iterator[MetricFamily]:
        """Yield the metrics of one moment."""
        for field, (name, about) in _COUNTS.items():
            counts: LabelledCounts = getattr(self, field)
            yield counts.family(Metric(name, MetricType.COUNTER, about))
        for field, (name, about) in _DURATIONS.items():
            durations: Durations = getattr(self, field)
            yield durations.family(Metric(name, MetricType.HISTOGRAM, about))
        yield self.lifetimes.family(_LIFETIMES)

    @classmethod
    def sample(cls) -> Iterator[MetricFamily]:
        """Yield the metrics with one value each, for documents that list their labels."""
        found = cls()
        found.nodes_created = found.nodes_ended = sample_counts("nodepool", "zone")
        found.nodes_drained, found.pods_drained = sample_counts("nodepool"), sample_counts("reason")
        found.pods_disrupted = sample_counts("reason", "nodepool", "capacity_type", "policy")
        found.unhealthy = sample_counts("condition", "nodepool", "capacity_type", "image_id")
        found.decisions.observe(0.0, controller="")
        for durations in (found.claim_ends, found.instance_ends, found.node_ends, found.lifetimes):
            durations.observe(0.0, nodepool="")
        return found.metrics()
