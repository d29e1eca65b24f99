"""Metrics of nodes that are there, by Karpenter's names: what their pods request, what the system takes, their age."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from gpuplane.api import karpenter
from gpuplane.api.upgrade import unix_time
from gpuplane.autoscaler.observed import PodView
from kubekit.api.core import Node, Pod
from kubekit.errors import InvalidInput
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, Series, extend, series
from kubekit.scheduling.podinfo import Requests, amounts

REQUESTS: Final = Metric(
    "karpenter_nodes_total_pod_requests", MetricType.GAUGE, "Requests of the pods of a node, DaemonSets included."
)
DAEMON_REQUESTS: Final = Metric(
    "karpenter_nodes_total_daemon_requests", MetricType.GAUGE, "Requests of the pods of DaemonSets on a node."
)
OVERHEAD: Final = Metric(
    "karpenter_nodes_system_overhead", MetricType.GAUGE, "Capacity of a node less its allocatable, in base units."
)
AGE: Final = Metric("karpenter_nodes_current_lifetime_seconds", MetricType.GAUGE, "Age of a node.")
UTILIZATION: Final = Metric(
    "karpenter_cluster_utilization_percent",
    MetricType.GAUGE,
    "Requests of pods in percent of the allocatable of the nodes of pools, by resource.",
)


def node_metrics(nodes: Iterable[Node], pods: Callable[[str], Iterable[Pod]], now: float) -> Iterator[MetricFamily]:
    """Yield the metrics of the nodes of pools.

    Args:
        pods: returns the pods of a node by its name.
        now: seconds since 1970.
    """
    requests: list[tuple[Series, float]] = []
    daemons: list[tuple[Series, float]] = []
    overhead: list[tuple[Series, float]] = []
    ages: list[tuple[Series, float]] = []
    requested: Requests = {}
    offered: Requests = {}
    for node in nodes:
        pool = node.metadata.labels.get(karpenter.POOL_LABEL)
        if pool is None:
            continue
        own = series({"node_name": node.metadata.name, "nodepool": pool})
        of_pods, of_daemons = _sums(pods(node.metadata.name))
        requests += _by_resource(own, of_pods)
        daemons += _by_resource(own, of_daemons)
        capacity, free = _read(node.status.capacity), _read(node.status.allocatable)
        overhead += _by_resource(own, {name: amount - free.get(name, 0) for name, amount in capacity.items()})
        created = unix_time(node.metadata.creation_timestamp)
        if created is not None:
            ages.append((own, max(0.0, now - created)))
        _add(requested, of_pods)
        _add(offered, free)
    for metric, values in ((REQUESTS, requests), (DAEMON_REQUESTS, daemons), (OVERHEAD, overhead), (AGE, ages)):
        yield MetricFamily(metric, values)
    parts = {name: 100 * requested.get(name, 0) / amount for name, amount in offered.items() if amount > 0}
    yield MetricFamily(UTILIZATION, [(series({"resource_type": name}), part) for name, part in sorted(parts.items())])


def base_unit(name: str, amount: int) -> float:
    """Return an amount in its base unit: CPUs, bytes, pieces."""
    return amount / 1000 if name == "cpu" else amount


def _sums(pods: Iterable[Pod]) -> tuple[Requests, Requests]:
    """Return the sums of all pods, and of those of DaemonSets; `pods` counts them."""
    every: Requests = {}
    daemons: Requests = {}
    for pod in pods:
        if isinstance(pod, PodView) and pod.info is not None:
            own = {**pod.info.requests, "pods": 1}
            _add(every, own)
            if pod.daemon:
                _add(daemons, own)
    return every, daemons


def _add(total: Requests, more: Requests) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _read(counted: Mapping[str, object]) -> Requests:
    try:
        return amounts(counted)
    except InvalidInput:
        return {}  # its kubelet's mistake; it has no value to report


def _by_resource(own: Series, counted: Requests) -> Iterator[tuple[Series, float]]:
    for name, amount in counted.items():
        yield extend(own, {"resource_type": name}), base_unit(name, amount)
