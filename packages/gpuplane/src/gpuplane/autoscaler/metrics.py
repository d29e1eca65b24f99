"""`/metrics`, `/healthz` and `/readyz` of the autoscaler. Metrics have Karpenter's names where Karpenter has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Final

import msgspec

from gpuplane.api import karpenter
from gpuplane.api.karpenter import DeclaredPool
from gpuplane.api.nodeclaim import INITIALIZED, NodeClaim
from gpuplane.autoscaler.catalogue import InstanceType
from gpuplane.autoscaler.cloud_calls import type_metrics
from gpuplane.autoscaler.counting import LabelledCounts
from gpuplane.autoscaler.disruption.figures import DisruptionFigures, disruption_metrics
from gpuplane.autoscaler.node_metrics import base_unit, node_metrics
from gpuplane.autoscaler.nodes import is_true
from gpuplane.autoscaler.purchase import NodePurchase
from gpuplane.autoscaler.snapshot import ClosedOffering
from kubekit.api.core import Node, Pod
from kubekit.errors import InvalidInput
from kubekit.http_server import Handler, component_paths
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, Series, gauge, series
from kubekit.scheduling.podinfo import amounts

CREATED: Final = Metric(
    "karpenter_nodeclaims_created_total",
    MetricType.COUNTER,
    "Claims created, by reason, pool and whether minValues were relaxed.",
)
DISRUPTED: Final = Metric(
    "karpenter_nodeclaims_disrupted_total", MetricType.COUNTER, "Claims that were deleted, by reason and pool."
)
TERMINATED: Final = Metric(
    "karpenter_nodeclaims_terminated_total",
    MetricType.COUNTER,
    "Claims that have ended, by pool, capacity type and zone.",
)
EVICTIONS: Final = Metric(
    "karpenter_pods_eviction_requests_total", MetricType.COUNTER, "Evictions asked for, by the answer's HTTP status."
)
NOTICES: Final = Metric(
    "karpenter_interruption_received_messages_total", MetricType.COUNTER, "Notices of the cloud, by kind."
)
COST: Final = Metric(
    "karpenter_nodepools_cost_total", MetricType.GAUGE, "Dollars an hour of a pool's nodes whose price is known."
)
LIMIT: Final = Metric("karpenter_nodepools_limit", MetricType.GAUGE, "Limits of pools, in base units.")
USAGE: Final = Metric("karpenter_nodepools_usage", MetricType.GAUGE, "Resources of a pool's nodes, in base units.")
ALLOCATABLE: Final = Metric("karpenter_nodes_allocatable", MetricType.GAUGE, "Allocatable of nodes, in base units.")


class AutoscalerState(msgspec.Struct, frozen=True):
    """The facts behind the metrics. `disrupted` counts claims by (reason, pool), `cost` is dollars an hour by pool.

    `pods` returns those of a node. `waiting` counts the pods that wait for a node, `ignored` those of them that no
    decision can be made about, `deciding` is how long the decision under way takes, `unsynced` since when not every
    object has been seen (both in seconds). `more` are the metrics of other parts.
    """

    synced: bool = False
    created: LabelledCounts = msgspec.field(default_factory=LabelledCounts)
    disrupted: Mapping[tuple[str, str], int] = {}
    terminated: LabelledCounts = msgspec.field(default_factory=LabelledCounts)
    evictions: Mapping[int, int] = {}
    notices: Mapping[str, int] = {}
    cost: Mapping[str, float] = {}
    collected: int = 0
    pools: Sequence[DeclaredPool] = ()
    claims: Sequence[NodeClaim] = ()
    nodes: Sequence[Node] = ()
    last: NodePurchase = NodePurchase((), {})
    decided_seconds: float = 0.0
    disruption: DisruptionFigures = msgspec.field(default_factory=DisruptionFigures)
    pods: Callable[[str], Sequence[Pod]] = lambda node: ()
    now: float = 0.0
    waiting: int = 0
    ignored: int = 0
    deciding: float = 0.0
    unsynced: float = 0.0
    types: Sequence[InstanceType] = ()
    closed: Collection[ClosedOffering] = ()
    more: Sequence[MetricFamily] = ()


def autoscaler_metrics(state: AutoscalerState) -> Iterator[MetricFamily]:
    """Yield the metrics of one moment."""
    build = {"version": metadata.version("gpuplane")}
    about = "1, with the version of gpuplane."
    yield MetricFamily(Metric("karpenter_build_info", MetricType.GAUGE, about), [(series(build), 1)])
    yield state.created.family(CREATED)
    by_reason = sorted(state.disrupted.items())
    yield MetricFamily(
        DISRUPTED, [(series({"reason": reason, "nodepool": pool}), count) for (reason, pool), count in by_reason]
    )
    yield state.terminated.family(TERMINATED)
    yield MetricFamily(EVICTIONS, _by("code", {str(code): count for code, count in state.evictions.items()}))
    yield MetricFamily(NOTICES, _by("message_type", state.notices))
    yield MetricFamily(COST, _by("nodepool", state.cost))
    yield MetricFamily(LIMIT, [*_of_pools((pool.name, pool.limits) for pool in state.pools)])
    yield MetricFamily(USAGE, [*_of_pools((pool.name, pool.used) for pool in state.pools)])
    yield MetricFamily(
        ALLOCATABLE,
        [
            (series({"node_name": node.metadata.name, "resource_type": name}), base_unit(name, amount))
            for node in state.nodes
            if karpenter.POOL_LABEL in node.metadata.labels
            for name, amount in amounts(node.status.allocatable).items()
        ],
    )
    yield from node_metrics(state.nodes, state.pods, state.now)
    yield from disruption_metrics(state.disruption)
    yield from type_metrics(state.types, state.closed)
    yield from state.more
    ready = Counter(is_true(claim.status.conditions, INITIALIZED) for claim in state.claims)
    yield gauge("karpenter_cluster_state_node_count", "Nodes of pools that are initialised.", ready[True])
    yield gauge("gpuplane_nodeclaims_on_their_way", "Claims whose node is not initialised yet.", ready[False])
    yield gauge("karpenter_cluster_state_synced", "Whether every object has been seen.", int(state.synced))
    about = "Seconds for which not every object has been seen."
    yield gauge("karpenter_cluster_state_unsynced_time_seconds", about, state.unsynced)
    yield gauge("karpenter_scheduler_queue_depth", "Pods that wait for a node.", state.waiting)
    about = "Pods that wait and that no decision can be made about, such as those with missing volumes."
    yield gauge("karpenter_scheduler_ignored_pods_count", about, state.ignored)
    about = "Seconds that the decision under way takes."
    yield gauge("karpenter_scheduler_unfinished_work_seconds", about, state.deciding)
    waiting = len(state.last.waiting)
    yield gauge("karpenter_scheduler_unschedulable_pods_count", "Pods that no pool can buy a node for.", waiting)
    about = "Seconds that the last purchase took to decide."
    yield gauge("gpuplane_autoscaler_decision_seconds", about, state.decided_seconds)
    about = "Instances that were ended since no claim was for them."
    yield MetricFamily(
        Metric("gpuplane_instances_collected_total", MetricType.COUNTER, about), [(Series(""), state.collected)]
    )


def _by(label: str, counted: Mapping[str, float]) -> list[tuple[Series, float]]:
    return [(series({label: value}), number) for value, number in sorted(counted.items())]


def _of_pools(pools: Iterable[tuple[str, Mapping[str, object]]]) -> Iterator[tuple[Series, float]]:
    for pool, counted in pools:
        try:
            found = amounts(counted)
        except InvalidInput:
            continue  # the pool's own finding; it has no value to report
        for name, amount in found.items():
            yield series({"nodepool": pool, "resource_type": name}), base_unit(name, amount)


def paths(state: Callable[[], AutoscalerState]) -> dict[str, Handler]:
    """Return the served paths."""
    return component_paths(lambda: autoscaler_metrics(state()), lambda: state().synced)
