"""`/metrics`, `/healthz` and `/readyz` of the autoscaler. Metrics have Karpenter's names where Karpenter has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from gpuplane.api import karpenter
from gpuplane.api.karpenter import DeclaredPool
from gpuplane.api.nodeclaim import INITIALIZED, NodeClaim
from gpuplane.autoscaler.disruption.figures import DisruptionFigures, disruption_metrics
from gpuplane.autoscaler.nodes import is_true
from gpuplane.autoscaler.purchase import NodePurchase
from kubekit.api.core import Node
from kubekit.errors import InvalidInput
from kubekit.http_server import Handler, HttpAnswer, metrics_answer
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, Series, gauge, series
from kubekit.scheduling.podinfo import amounts

CREATED: Final = Metric("karpenter_nodeclaims_created_total", MetricType.COUNTER, "Claims created, by pool.")
DISRUPTED: Final = Metric(
    "karpenter_nodeclaims_disrupted_total", MetricType.COUNTER, "Claims that were deleted, by reason and pool."
)
TERMINATED: Final = Metric(
    "karpenter_nodeclaims_terminated_total", MetricType.COUNTER, "Claims that have ended, by pool."
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
USAGE: Final = Metric("karpenter_nodepools_usage", MetricType.GAUGE, "What a pool's nodes have, in base units.")
ALLOCATABLE: Final = Metric("karpenter_nodes_allocatable", MetricType.GAUGE, "Allocatable of nodes, in base units.")


class AutoscalerState(msgspec.Struct, frozen=True):
    """The facts behind the metrics. `disrupted` counts claims by (reason, pool), `cost` is dollars an hour by pool."""

    synced: bool = False
    created: Mapping[str, int] = {}
    disrupted: Mapping[tuple[str, str], int] = {}
    terminated: Mapping[str, int] = {}
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


def autoscaler_metrics(state: AutoscalerState) -> Iterator[MetricFamily]:
    """Yield the metrics of one moment."""
    yield MetricFamily(CREATED, _by("nodepool", state.created))
    by_reason = sorted(state.disrupted.items())
    yield MetricFamily(
        DISRUPTED, [(series({"reason": reason, "nodepool": pool}), count) for (reason, pool), count in by_reason]
    )
    yield MetricFamily(TERMINATED, _by("nodepool", state.terminated))
    yield MetricFamily(EVICTIONS, _by("code", {str(code): count for code, count in state.evictions.items()}))
    yield MetricFamily(NOTICES, _by("message_type", state.notices))
    yield MetricFamily(COST, _by("nodepool", state.cost))
    yield MetricFamily(LIMIT, [*_of_pools((pool.name, pool.limits) for pool in state.pools)])
    yield MetricFamily(USAGE, [*_of_pools((pool.name, pool.used) for pool in state.pools)])
    yield MetricFamily(
        ALLOCATABLE,
        [
            (series({"node_name": node.metadata.name, "resource_type": name}), _base(name, amount))
            for node in state.nodes
            if karpenter.POOL_LABEL in node.metadata.labels
            for name, amount in amounts(node.status.allocatable).items()
        ],
    )
    yield from disruption_metrics(state.disruption)
    ready = Counter(is_true(claim.status.conditions, INITIALIZED) for claim in state.claims)
    yield gauge("karpenter_cluster_state_node_count", "Nodes of pools that are initialised.", ready[True])
    yield gauge("gpuplane_nodeclaims_on_their_way", "Claims whose node is not initialised yet.", ready[False])
    yield gauge("karpenter_cluster_state_synced", "Whether every object has been seen.", int(state.synced))
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
            yield series({"nodepool": pool, "resource_type": name}), _base(name, amount)


def _base(name: str, amount: int) -> float:
    return amount / 1000 if name == "cpu" else amount


def paths(state: Callable[[], AutoscalerState]) -> dict[str, Handler]:
    """Return the served paths."""

    async def metrics() -> HttpAnswer:
        return metrics_answer(autoscaler_metrics(state()))

    async def healthy() -> HttpAnswer:
        return HttpAnswer(b"ok\n")

    async def ready() -> HttpAnswer:
        if state().synced:
            return HttpAnswer(b"ok\n")
        return HttpAnswer(b"waiting for the lease or the first list\n", HTTPStatus.SERVICE_UNAVAILABLE)

    return {"/metrics": metrics, "/healthz": healthy, "/readyz": ready}
