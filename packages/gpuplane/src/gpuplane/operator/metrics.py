"""`/metrics`, `/healthz` and `/readyz` of the operator. Names are those that dashboards of the GPU operator use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from gpuplane.api.clusterpolicy import ClusterPolicy, is_paused
from gpuplane.api.gpunode import GPUNode, StageName
from gpuplane.operator.upgrade.controller import UpgradeReport
from kubekit.http_server import Handler, component_paths
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, counter, gauge, series

_READY_GAUGES = (
    ("gpu_operator_node_driver_ready", StageName.DRIVER),
    ("gpu_operator_node_toolkit_ready", StageName.TOOLKIT),
    ("gpu_operator_node_cuda_ready", StageName.CUDA),
    ("gpu_operator_node_plugin_ready", StageName.PLUGIN),
)
WRITES: Final = Metric("gpuplane_operator_writes_total", MetricType.COUNTER, "Writes to the API server, by resource.")
NODE_GPUS: Final = Metric("gpuplane_node_gpus", MetricType.GAUGE, "Usable GPUs of the node.")
NODE_FREE_GPUS: Final = Metric(
    "gpuplane_node_free_gpus",
    MetricType.GAUGE,
    "Capacity of the node that no pod holds, in GPUs: whole GPUs, replicas, MIG devices and shares.",
)
BY_STAGE: Final = Metric("gpuplane_nodes_by_stage", MetricType.GAUGE, "GPU nodes by the stage they are in.")


class OperatorState(msgspec.Struct, frozen=True):
    """The facts that the metrics are made from.

    `synced`: this process leads and has the nodes. `reconciled`, `failed`: counts of reconciliations of the policy, the
    failed ones among all; `failing`: the last one failed. `last_success` is Unix time. `writes` is by resource.
    """

    synced: bool = False
    gpunodes: Sequence[GPUNode] = ()
    policy: ClusterPolicy | None = None
    discovered: bool = False
    reconciled: int = 0
    failed: int = 0
    failing: bool = False
    last_success: float = 0.0
    upgrades: UpgradeReport = UpgradeReport()
    writes: Mapping[str, int] = {}


def operator_metrics(state: OperatorState) -> Iterator[MetricFamily]:
    """Yield the metrics of now."""
    nodes = state.gpunodes
    policy, last = state.policy, state.upgrades
    recon, upgrades = "gpu_operator_reconciliation_", "gpu_operator_nodes_upgrades_"
    yield gauge("gpu_operator_gpu_nodes_total", "Nodes with GPUs.", len(nodes))
    yield gauge(
        recon + "status",
        "1 when the cluster is as the policy wants, 0 when operands are not ready, -1 without a policy, "
        "-2 when the operator cannot do its work.",
        _status(policy, failing=state.failing),
    )
    yield counter(recon + "total", "Reconciliations of the policy.", state.reconciled)
    yield counter(recon + "failed_total", "Reconciliations that failed.", state.failed)
    yield gauge(recon + "last_success_ts_seconds", "Unix time of the last success.", state.last_success)
    yield gauge(recon + "has_nfd_labels", "1 when discovery has labelled a node.", state.discovered)
    yield gauge(
        "gpu_operator_driver_auto_upgrade_enabled",
        "1 when drivers are upgraded by the operator.",
        last.rules.enabled,
    )
    yield gauge(upgrades + "in_progress", "Nodes on their way to another driver.", last.census.in_progress)
    yield gauge(upgrades + "done", "Nodes that run the wanted driver.", last.census.done)
    yield gauge(upgrades + "failed", "Nodes whose upgrade failed.", last.census.failed)
    yield gauge(upgrades + "available", "Waiting nodes that may begin now.", last.census.available)
    yield gauge(upgrades + "pending", "Nodes that wait for their turn.", last.census.pending)
    yield gauge("gpuplane_operator_paused", "1 while the policy is paused.", policy is not None and is_paused(policy))
    writes = sorted(state.writes.items())
    yield MetricFamily(WRITES, [(series({"resource": kind}), count) for kind, count in writes])
    for name, stage in _READY_GAUGES:
        metric = Metric(name, MetricType.GAUGE, f"1 when {stage.value} holds on the node.")
        yield MetricFamily(metric, [(series({"node": node.metadata.name}), _holds(node, stage)) for node in nodes])
    yield MetricFamily(NODE_GPUS, [(series({"node": node.metadata.name}), _usable(node)) for node in nodes])
    free = [(node.metadata.name, node.status.summary.free) for node in nodes]
    yield MetricFamily(NODE_FREE_GPUS, [(series({"node": name}), float(gpus)) for name, gpus in free if gpus])
    at = Counter(node.status.summary.stage for node in nodes)
    yield MetricFamily(BY_STAGE, [(series({"stage": stage.value}), at[stage.value]) for stage in StageName])


def _status(policy: ClusterPolicy | None, *, failing: bool) -> int:
    """The GPU operator's code for how the last reconciliation ended."""
    if policy is None:
        return -1
    if failing:
        return -2
    return int(policy.status.state == "ready")


def _holds(node: GPUNode, name: StageName) -> bool:
    stage = node.status.stages.get(name.value)
    return stage is not None and stage.state.holds


def _usable(node: GPUNode) -> int:
    return sum(1 for gpu in node.status.gpus if gpu.uuid not in node.status.health)


def paths(state: Callable[[], OperatorState]) -> dict[str, Handler]:
    """Return the served paths."""
    return component_paths(lambda: operator_metrics(state()), lambda: state().synced)
