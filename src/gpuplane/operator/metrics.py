"""`/metrics`, `/healthz` and `/readyz` of the operator. Names are those that dashboards of the GPU operator use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING

from gpuplane.api.clusterpolicy import ClusterPolicy, is_paused
from gpuplane.api.gpunode import GPUNode, StageName
from gpuplane.operand.http import Answer, Handler

if TYPE_CHECKING:
    from gpuplane.operator.operator import Operator

_READY_GAUGES = (
    ("gpu_operator_node_driver_ready", StageName.DRIVER),
    ("gpu_operator_node_toolkit_ready", StageName.TOOLKIT),
    ("gpu_operator_node_cuda_ready", StageName.CUDA),
    ("gpu_operator_node_plugin_ready", StageName.PLUGIN),
)


def exposition(operator: Operator) -> str:
    """The metrics in Prometheus' text format."""
    nodes = operator.gpunodes.items()
    stats = operator.policy_controller.stats()
    policy = operator.policy
    failing = stats.retryable + stats.terminal + stats.crashed
    last = operator.upgrades.seen
    recon = "gpu_operator_reconciliation_"
    writes = [(f'resource="{kind}"', count) for kind, count in sorted(operator.writer.writes.items())]
    lines = [
        *_gauge("gpu_operator_gpu_nodes_total", "Nodes with GPUs.", len(nodes)),
        *_gauge(
            recon + "status",
            "1 when the cluster is as the policy wants, 0 when operands are not ready, -1 without a policy, "
            "-2 when the operator cannot do its work.",
            _status(policy, failing=operator.policy_controller.failing),
        ),
        *_metric(recon + "total", "counter", "Reconciliations of the policy.", [("", stats.reconciled)]),
        *_metric(recon + "failed_total", "counter", "Reconciliations that failed.", [("", failing)]),
        *_gauge(recon + "last_success_ts_seconds", "Unix time of the last success.", operator.last_success),
        *_gauge(recon + "has_nfd_labels", "1 when discovery has labelled a node.", int(operator.discovered)),
        *_gauge(
            "gpu_operator_driver_auto_upgrade_enabled",
            "1 when drivers are upgraded by the operator.",
            int(last.rules.enabled),
        ),
        *_gauge(
            "gpu_operator_nodes_upgrades_in_progress", "Nodes on their way to another driver.", last.census.in_progress
        ),
        *_gauge("gpu_operator_nodes_upgrades_done", "Nodes that run the wanted driver.", last.census.done),
        *_gauge("gpu_operator_nodes_upgrades_failed", "Nodes whose upgrade failed.", last.census.failed),
        *_gauge("gpu_operator_nodes_upgrades_available", "Waiting nodes that may begin now.", last.census.available),
        *_gauge("gpu_operator_nodes_upgrades_pending", "Nodes that wait for their turn.", last.census.pending),
        *_gauge(
            "gpuplane_operator_paused", "1 while the policy is paused.", int(policy is not None and is_paused(policy))
        ),
        *_metric("gpuplane_operator_writes_total", "counter", "Writes to the API server, by resource.", writes),
    ]
    for name, stage in _READY_GAUGES:
        values = [(f'node="{node.metadata.name}"', int(_holds(node, stage))) for node in nodes]
        lines += _metric(name, "gauge", f"1 when {stage.value} holds on the node.", values)
    at = Counter(node.status.summary.stage for node in nodes)
    waiting = [(f'stage="{stage.value}"', at[stage.value]) for stage in StageName]
    lines += _metric("gpuplane_nodes_by_stage", "gauge", "GPU nodes by the stage they are in.", waiting)
    return "\n".join(lines) + "\n"


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


def _gauge(name: str, about: str, value: float) -> list[str]:
    return _metric(name, "gauge", about, [("", value)])


def _metric(name: str, kind: str, about: str, values: Iterable[tuple[str, float]]) -> list[str]:
    lines = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    return lines + [f"{name}{{{labels}}} {value}" if labels else f"{name} {value}" for labels, value in values]


def paths(operator: Operator) -> dict[str, Handler]:
    """What is served where."""

    async def metrics() -> Answer:
        text = exposition(operator)
        return Answer(text.encode(), content_type="text/plain; version=0.0.4; charset=utf-8")

    async def healthy() -> Answer:
        return Answer(b"ok\n")

    async def ready() -> Answer:
        if operator.nodes.has_synced:
            return Answer(b"ok\n")
        return Answer(b"waiting for the lease or the first list\n", HTTPStatus.SERVICE_UNAVAILABLE)

    return {"/metrics": metrics, "/healthz": healthy, "/readyz": ready}
