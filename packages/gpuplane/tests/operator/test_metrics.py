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
        now = values(operator)
        assert now["gpu_operator_gpu_nodes_total"] == 2
        assert now["gpu_operator_reconciliation_has_nfd_labels"] == 1
        assert now["gpu_operator_driver_auto_upgrade_enabled"] == 1
        assert now["gpu_operator_reconciliation_total"] > 0
        assert now["gpu_operator_reconciliation_failed_total"] < now["gpu_operator_reconciliation_total"]
        for name in NODE:
            assert {now[f'{name}{{node="n{number}"}}'] for number in range(2)} == {1}, name
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
