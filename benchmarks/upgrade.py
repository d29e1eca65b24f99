"""Light nodes through an upgrade of their drivers: time, and how many were away at once.

    python benchmarks/upgrade.py [NODES]

The same cluster as in scale.py. Every node installs a driver, and then another one is wanted: the policy's
`driver.env` changes, which is another driver by its digest. A quarter of the nodes may be away.
"""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import show
from gpulab.clusters import down, up
from gpulab.demo.following import watching
from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.upgrade import UpgradeState, upgrade_state
from gpuplane.cli.install import apply
from gpuplane.operator.installation import installation
from kubekit.api.core import Node
from kubekit.kube import Client
from scale import ca, operator_token
from tinykube.cluster import ClusterSpec
from tinykube.cluster.kubeconfig import save

NAME = "upgrade"
SHARE = 0.25


async def measure(count: int) -> None:
    handle = await up(ClusterSpec(name=NAME, light_nodes=count, light_machine="t4-ubuntu22"), timeout=120)
    settings = [
        "driver.upgradePolicy.autoUpgrade=true",
        "driver.upgradePolicy.maxParallelUpgrades=0",
        f"driver.upgradePolicy.maxUnavailable={SHARE:.0%}",
    ]
    async with Client.connect(handle.kubeconfig, user_agent="benchmark") as client:
        for manifest in installation(settings=settings, admission="", scheduler=False):
            if manifest["kind"] != "Deployment":
                await apply(client, manifest)
        token = await operator_token(client)
        kubeconfig = Path(os.environ["GPUPLANE_HOME"]) / "operator.kubeconfig"
        save(kubeconfig, context=NAME, server=handle.server, ca=ca(handle), user="gpu-operator", token=token)
        command = [sys.executable, "-m", "gpuplane", "run", "operator", "--kubeconfig", str(kubeconfig), "--port", "0"]
        with (kubeconfig.parent / "operator.log").open("wb") as log:
            operator = subprocess.Popen(command, stderr=log)  # noqa: ASYNC220 - once, before anything is measured
        try:
            await follow(client, count)
        finally:
            operator.terminate()
            operator.wait()


async def follow(client: Client, count: int) -> None:
    async with watching(client, GPUNode) as gpunodes, watching(client, Node) as nodes:
        await gpunodes.until(lambda: sum(n.status.summary.stage == "ready" for n in gpunodes.items()) == count)
        await nodes.until(lambda: states(nodes.items()).get(UpgradeState.DONE, 0) == count)
        most = 0

        def count_away(*_: Any) -> None:
            nonlocal most
            most = max(most, sum(node.spec.unschedulable for node in nodes.items()))

        nodes.add_handler(count_away)
        spec = {"driver": {"env": [{"name": "GENERATION", "value": "2"}]}}
        began = time.monotonic()
        policy = (await client.list(ClusterPolicy))[0]
        await client.patch(ClusterPolicy, policy.metadata.name, {"spec": spec})
        await nodes.until(lambda: states(nodes.items()).get(UpgradeState.DONE, 0) < count)
        await nodes.until(lambda: states(nodes.items()).get(UpgradeState.DONE, 0) == count)
        show(f"{count} nodes to another driver", time.monotonic() - began, "s")
        show("away at once, at most", most, "nodes", goal=math.ceil(count * SHARE))
        left = sum(names.UPGRADE_RECORD_ANNOTATION in node.metadata.annotations for node in nodes.items())
        show("nodes with a record left", left, "nodes", goal=0)


def states(nodes: list[Node]) -> dict[UpgradeState, int]:
    found: dict[UpgradeState, int] = {}
    for node in nodes:
        found[upgrade_state(node)] = found.get(upgrade_state(node), 0) + 1
    return found


async def main(count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="gpuplane-") as home:
        os.environ["GPUPLANE_HOME"] = home
        try:
            async with asyncio.timeout(float(os.environ.get("LIMIT", 600))):
                await measure(count)
        except TimeoutError:
            print((Path(home) / "operator.log").read_text()[-4000:], file=sys.stderr)
            raise
        finally:
            await down(NAME)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
