"""Machines through an upgrade of their drivers: time, and how many were away at once.

    python benchmarks/upgrade.py [MACHINES]

Bare simulated machines, on which the production operands install a driver. Then another one is wanted: the policy's
`driver.env` changes, which is another driver by its digest. A quarter of the machines may be away. Light nodes cannot
be measured so: they come with a driver of their own, which no upgrade replaces.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import tempfile
import time
from typing import Any

from figures import show
from gpulab.clusters import down, up
from gpulab.watching import watching
from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.upgrade import UpgradeState, upgrade_state
from gpuplane.cli.install_objects import apply
from gpuplane.operator.installation import installation
from kubekit.api.core import Node
from kubekit.kube import Client
from tinykube.cluster import ClusterSpec, MachineSpec

NAME = "upgrade"
SHARE = 0.25


async def measure(count: int) -> None:
    machines = tuple(MachineSpec(name=f"node-{at}", machine="t4-ubuntu22") for at in range(count))
    handle = await up(ClusterSpec(name=NAME, nodes=machines), timeout=120)
    settings = [
        "driver.upgradePolicy.autoUpgrade=true",
        "driver.upgradePolicy.maxParallelUpgrades=0",
        f"driver.upgradePolicy.maxUnavailable={SHARE:.0%}",
    ]
    async with Client.connect(handle.kubeconfig, user_agent="benchmark") as client:
        for manifest in installation(settings=settings, admission="", scheduler=False):
            await apply(client, manifest)
        await follow(client, count)


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
        took = time.monotonic() - began
        show(f"{count} machines to another driver", took, "s")
        show("  each turn of a quarter of them", took / math.ceil(1 / SHARE), "s")
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
        finally:
            await down(NAME)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8))
