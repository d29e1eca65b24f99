"""Two operators as processes on one cluster: one works, and when it is killed the other goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane import names
from gpuplane.operator.operator import LEASE, operator_lease
from kubekit.errors import InvalidInput

NODES, LEASE_SECONDS = 12, 5
LEASES = ("coordination.k8s.io", "leases")


@contextlib.asynccontextmanager
async def operators(played: Any, folder: Path) -> AsyncIterator[dict[str, asyncio.subprocess.Process]]:
    """Two of them, by identity; killed at the end."""
    cluster = {
        "server": f"https://127.0.0.1:{played.server.port}",
        "certificate-authority": str(played.server.authority),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "operator"}}],
    }
    kubeconfig = folder / "config"
    kubeconfig.write_text(json.dumps(config))
    flags = ("--kubeconfig", str(kubeconfig), "--port", "0", "--lease-duration", str(LEASE_SECONDS))
    started = {}
    for name in ("op-a", "op-b"):
        environment = {**os.environ, "POD_NAME": name, "GPUPLANE_IMAGE": "own", "POD_IP": "127.0.0.1"}
        started[name] = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gpuplane", "run", "operator", *flags),
            env=environment,
            stderr=asyncio.subprocess.DEVNULL,
        )
    try:
        yield started
    finally:
        for process in started.values():
            if process.returncode is None:
                process.kill()
            await process.wait()


def leader(played: Any) -> str:
    lease = played.registry.get(LEASES, names.OPERATOR_NAMESPACE, LEASE) or {}
    return str(lease.get("spec", {}).get("holderIdentity", ""))


async def test_the_other_goes_on_after_kill_9_and_nothing_is_done_twice(played: Any, tmp_path: Path) -> None:
    made: Counter[str] = Counter()

    def count(kind: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        if kind == "ADDED" and obj["metadata"]["labels"].get("app.kubernetes.io/component") == "driver":
            made[obj["spec"]["nodeName"]] += 1

    played.registry.subscribe("pods", count)
    for number in range(NODES):
        await played.add_node(f"n{number}")
    policy = {"autoUpgrade": True, "maxParallelUpgrades": 0, "maxUnavailable": "25%"}
    await played.policy(upgradePolicy=policy)
    async with operators(played, tmp_path) as processes:
        await played.until(lambda: played.states() == ["upgrade-done"] * NODES, 60)
        first = leader(played)
        played.most = 0
        await played.policy(env=[{"name": "GENERATION", "value": "2"}])
        # In the middle: some nodes are done, one is on its way, others have not begun.
        await played.until(lambda: {"upgrade-done", "upgrade-required"} < set(played.states()), 60)
        os.kill(processes[first].pid, signal.SIGKILL)
        killed = time.monotonic()
        await processes[first].wait()
        assert leader(played) == first, "nobody takes a lease that has just been renewed"
        [second] = processes.keys() - {first}
        await played.until(lambda: leader(played) == second, 60)
        # It was renewed at most 2/15 of it, and the time of that request, before the end.
        assert time.monotonic() - killed > LEASE_SECONDS * 0.5
        await played.until(lambda: played.states() == ["upgrade-done"] * NODES and len(played.drivers()) == 1, 60)
        assert played.registry.get(LEASES, names.OPERATOR_NAMESPACE, LEASE)["spec"]["leaseTransitions"] == 1
        assert processes[second].returncode is None
    assert 0 < played.most <= NODES / 4
    assert made == {f"n{number}": 2 for number in range(NODES)}, "each driver came once"
    assert len({played.driver(f"n{number}") for number in range(NODES)}) == 1
    assert not any(node["spec"].get("unschedulable") for node in played.nodes())


def test_a_lease_that_cannot_work_is_refused() -> None:
    with pytest.raises(InvalidInput, match="1 s is too short"):
        operator_lease(None, "me", 1)  # type: ignore[arg-type]  # never used
