"""The operator's metrics: every name that dashboards of the GPU operator use, with what it says at each moment."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from typing import Any

import pytest

from gpuplane.operator.metrics import operator_metrics
from kubekit.kube.exposition import exposition
from packages.gpuplane.tests.operator.conftest import GPUNODES
from tests.support.until import until

# As the GPU operator documents them.
CLUSTER = {
    *(f"gpu_operator_reconciliation_{name}" for name in ("status", "has_nfd_labels", "last_success_ts_seconds")),
    *("gpu_operator_reconciliation_total", "gpu_operator_reconciliation_failed_total", "gpu_operator_gpu_nodes_total"),
    *(f"gpu_operator_nodes_upgrades_{name}" for name in ("in_progress", "done", "failed", "available", "pending")),
    "gpu_operator_driver_auto_upgrade_enabled",
}
NODE = {f"gpu_operator_node_{name}_ready" for name in ("driver", "toolkit", "cuda", "plugin")}


def text_of(operator: Any) -> str:
    return exposition(operator_metrics(operator.state())).decode()


def values(operator: Any) -> dict[str, float]:
    """`name` or `name{labels}` -> value."""
    found = re.findall(r"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", text_of(operator), flags=re.M)
    assert len({name for name, _ in found}) == len(found), "each line once"
    return {name: float(value) for name, value in found}


def promtool(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)


async def test_they_follow_the_cluster_from_nothing_to_a_node_that_fails(played: Any, work: Any) -> None:
    async with work(played) as operator:
        await until(lambda: operator.state().synced and operator.nodes.policies.has_synced)
        now = values(operator)
        assert now.keys() >= CLUSTER
        assert now["gpu_operator_reconciliation_status"] == -1, "there is no policy"
        assert now["gpu_operator_reconciliation_has_nfd_labels"] == now["gpu_operator_gpu_nodes_total"] == 0
        for number in range(2):
            await played.add_node(f"n{number}")
        await played.policy(upgradePolicy={"autoUpgrade": True, "maxUnavailable": "100%"})
        await played.until(lambda: played.states() == ["upgrade-done"] * 2)
        await until(lambda: values(operator)["gpu_operator_nodes_upgrades_done"] == 2)
        await until(lambda: values(operator)["gpu_operator_reconciliation_last_success_ts_seconds"] > 1.7e9)
        await until(lambda: values(operator)["gpu_operator_reconciliation_status"] == 0, what="operands are not ready")
        # The last gates and the allocatable GPUs are no part of what is played: nodes get as far as their plugin.
        stages = {f'{name}{{node="n{number}"}}' for name in NODE for number in range(2)}
        await until(lambda: {values(operator).get(name) for name in stages} == {1}, what="two nodes with a plugin")
        now = values(operator)
        assert now["gpu_operator_gpu_nodes_total"] == 2
        assert now["gpu_operator_reconciliation_has_nfd_labels"] == 1
        assert now["gpu_operator_driver_auto_upgrade_enabled"] == 1
        assert now["gpu_operator_reconciliation_total"] > 0
        assert now["gpu_operator_reconciliation_failed_total"] < now["gpu_operator_reconciliation_total"]
        patch = {"status": {"stages": {"cuda": {"state": "failed", "reason": "VectorAddFailed"}}}}
        await played.registry.patch(("gpuplane.dev", "gpunodes"), None, "n0", patch, "merge")
        await until(lambda: values(operator)['gpu_operator_node_cuda_ready{node="n0"}'] == 0)
        assert values(operator)['gpu_operator_node_cuda_ready{node="n1"}'] == 1


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool here (Debian: apt-get install prometheus)")
async def test_promtool_reads_them(played: Any, work: Any) -> None:
    async with work(played) as operator:
        await played.add_node("n0")
        await played.policy()
        await until(lambda: 'node="n0"' in text_of(operator))
        text = text_of(operator)
    done = await asyncio.to_thread(promtool, text)
    assert done.returncode in (0, 3), done.stderr
    # NB: these names are the GPU operator's; a gauge that ends in _total is not ours to rename.
    said = [line for line in done.stderr.splitlines() if not line.startswith("gpu_operator_gpu_nodes_total ")]
    assert said == []


def gpu(index: int, **more: Any) -> dict[str, Any]:
    return {"index": index, "uuid": f"GPU-{index}", "model": "A100", "memoryMib": 40960, **more}


async def holds(played: Any, name: str, node: str, resource: str, count: int) -> None:
    limits = {resource: str(count)}
    containers = [{"name": "c", "image": "train", "resources": {"limits": limits, "requests": limits}}]
    body = {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": containers}}
    await played.registry.create("pods", "default", body)


async def test_free_gpus_of_a_node_whatever_it_calls_them(played: Any, work: Any) -> None:
    """FREE of `kubectl get gpunodes`, and the gauges: replicas, GPUs in seven parts, shares, a lost GPU."""
    offers = {
        "replicas": ([gpu(0)], {"nvidia.com/gpu": "10"}),
        "mixed": ([gpu(0), gpu(1, mig="enabled")], {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.5gb": "7"}),
        "single": ([gpu(0, mig="enabled")], {"nvidia.com/gpu": "7"}),
        "shares": ([gpu(0), gpu(1)], {"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "320"}),
        "lost": ([gpu(0), gpu(1)], {"nvidia.com/gpu": "1"}),
    }
    async with work(played) as operator:
        await played.policy()
        for name in offers:
            await played.add_node(name)
        await played.until(lambda: len(played.registry.list(GPUNODES)) == len(offers))
        for name, (gpus, amounts) in offers.items():
            health = {"GPU-1": "Xid 79: fallen off the bus"} if name == "lost" else {}
            found = {"gpus": gpus, "health": health}
            await played.registry.patch(GPUNODES, None, name, {"status": found}, "merge", subresource="status")
            amounts = {"cpu": "4", "memory": "8Gi", "pods": "110", **amounts}
            status = {"capacity": amounts, "allocatable": amounts}
            await played.registry.patch("nodes", None, name, {"status": status}, "merge", subresource="status")
        for number in range(4):
            await holds(played, f"replica-{number}", "replicas", "nvidia.com/gpu", 1)
        await holds(played, "part", "mixed", "nvidia.com/mig-1g.5gb", 1)
        await holds(played, "part-too", "single", "nvidia.com/gpu", 2)
        await holds(played, "share", "shares", "tencent.com/vcuda-core", 30)
        await holds(played, "ended", "lost", "nvidia.com/gpu", 1)
        await played.registry.patch(
            "pods", "default", "ended", {"status": {"phase": "Succeeded"}}, "merge", subresource="status"
        )
        free = {"replicas": 0.6, "mixed": 1.86, "single": 0.71, "shares": 1.7, "lost": 1.0}
        usable = {"replicas": 1, "mixed": 2, "single": 1, "shares": 2, "lost": 1}

        def gauges(name: str) -> dict[str, float]:
            now = values(operator)
            return {node: now.get(f'{name}{{node="{node}"}}', -1.0) for node in offers}

        await until(lambda: gauges("gpuplane_node_free_gpus") == free, seen=lambda: gauges("gpuplane_node_free_gpus"))
        assert gauges("gpuplane_node_gpus") == usable
        nodes = played.registry.list(GPUNODES)
        assert {node["metadata"]["name"]: float(node["status"]["summary"]["free"]) for node in nodes} == free
