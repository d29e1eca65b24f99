"""A real kube-scheduler with the extender, told by the configuration that gpuplane prints.

The extender runs as a process under its own account.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from extender_world import gpu_pod
from realkube.binaries import Unavailable
from realkube.control_plane import ControlPlane
from realkube.life import account_config
from realkube.watching import until

from gpuplane import names
from gpuplane.api.core import Event, Node, Pod
from gpuplane.api.gpunode import GPUNode
from gpuplane.cli.install import apply
from gpuplane.kube import AlreadyExists, Client
from gpuplane.operator.installation import installation
from gpuplane.scheduler.configuration import printed
from gpuplane.sharing import Ledger, gpus_of, of_pod, violations

NODES: Final = 60
GPUS: Final = 8
MEMORY: Final = 15360
PODS: Final = int(os.environ.get("GPUPLANE_TEST_BURST", "1000"))
SHARES: Final = [(10, 4), (20, 8), (25, 15), (30, 20), (40, 20), (50, 30), (70, 30)]
PATIENCE_S: Final = 400.0

pytestmark = pytest.mark.timeout(900)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """An administrator's, on a cluster whose kube-scheduler calls an extender that runs."""
    port = _free_port()
    config = tmp_path / "scheduler.yaml"
    config.write_text(printed("kube", f"http://127.0.0.1:{port}"))
    plane = ControlPlane(tmp_path / "plane", scheduler_config=config)
    try:
        plane.start(print)
    except Unavailable as problem:
        pytest.skip(f"no real cluster: {problem}")
    process = None
    try:
        async with Client.connect(plane.kubeconfig) as client:
            for manifest in installation(scheduler=True):
                if manifest["kind"] not in ("Deployment", "PodDisruptionBudget", "ClusterPolicy"):
                    await apply(client, manifest)
            kubeconfig = await account_config(plane, client, names.OPERATOR_NAMESPACE, "gpuplane-scheduler")
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gpuplane", "run", "scheduler", "--port", str(port), "--kubeconfig", kubeconfig
            )
            yield client
    finally:
        if process is not None:
            process.terminate()
            await process.wait()
        plane.stop()


async def add_nodes(client: Client, count: int, size: int) -> None:
    """Nodes without a kubelet; a service account for pods, which the controller manager may not have made yet."""

    async def add(name: str) -> None:
        amounts = {
            "cpu": "64",
            "memory": "256Gi",
            "pods": "500",
            names.VCUDA_CORE: str(100 * size),
            names.VCUDA_MEMORY: str(MEMORY * size // 256),
        }
        await client.create({"metadata": {"name": name}}, resource=Node.RESOURCE)
        now = "2026-01-01T00:00:00Z"
        ready = {"type": "Ready", "status": "True", "reason": "Test", "lastTransitionTime": now}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        await client.patch(Node, name, {"status": status}, subresource="status")
        gpus = [
            {"index": index, "uuid": f"GPU-{name}-{index}", "model": "Tesla T4", "memoryMib": MEMORY}
            for index in range(size)
        ]
        await client.apply({"metadata": {"name": name}, "status": {"gpus": gpus}}, "test", resource=GPUNode.RESOURCE)

    await asyncio.gather(*(add(f"gpu-{index:02}") for index in range(count)))
    await until(client, Node, lambda nodes: sum(not node.spec.taints for node in nodes) == count)
    account = {"metadata": {"name": "default"}}
    with contextlib.suppress(AlreadyExists):
        await client.request("POST", "/api/v1/namespaces/default/serviceaccounts", None, account)


async def verdict(client: Client) -> list[str]:
    """The checker's, of a ledger made from nothing but what stands in the cluster."""
    ledger = Ledger()
    for node in await client.list(GPUNode):
        ledger.set_node(node.metadata.name, gpus_of(node))
    for pod in await client.list(Pod):
        if pod.spec.node_name:
            assignment = of_pod(pod)
            assert assignment is not None, f"{pod.metadata.name} has no share"
            ledger.hold(pod.metadata.uid, pod.spec.node_name, assignment)
    return violations(ledger)


async def test_a_burst_of_mixed_shares(client: Client) -> None:
    await add_nodes(client, NODES, GPUS)
    mixed = random.Random(11)
    pods = [gpu_pod(f"p{index}", mixed.choice(SHARES), schedulerName="default-scheduler") for index in range(PODS)]
    began = time.monotonic()
    turns = asyncio.Semaphore(20)

    async def create(pod: dict[str, Any]) -> None:
        async with turns:
            await client.create(pod, resource=Pod.RESOURCE)

    await asyncio.gather(*map(create, pods))
    created = time.monotonic() - began
    await until(
        client, Pod, lambda found: sum(bool(pod.spec.node_name) for pod in found) == PODS, patience_s=PATIENCE_S
    )
    print(f"{PODS} pods created in {created:.1f} s, all bound {time.monotonic() - began:.1f} s after the first")
    assert await verdict(client) == []


async def test_who_waits_is_told_why_and_woken(client: Client) -> None:
    await add_nodes(client, 2, 2)
    for index in range(4):
        await client.create(gpu_pod(f"p{index}", (60, 20)), resource=Pod.RESOURCE)
    await until(client, Pod, lambda pods: sum(bool(pod.spec.node_name) for pod in pods) == 4)
    await client.create(gpu_pod("waits", (60, 20)), resource=Pod.RESOURCE)  # each node has 80% left, no GPU has 60%
    why = "2 no GPU has 60 percent core and 5120 MiB together"
    await until(client, Event, lambda events: any(why in event.message for event in events))
    await client.delete(Pod, "p1", "default", grace_seconds=0)
    await until(client, Pod, lambda pods: any(pod.metadata.name == "waits" and pod.spec.node_name for pod in pods))
    assert await verdict(client) == []
    # A GPU that recovers is no event for kube-scheduler, but for the annotation.
    for health in ("Xid 79", ""):
        for node in await client.list(GPUNode):
            sick = {gpu.uuid: health or None for gpu in node.status.gpus}
            await client.patch(GPUNode, node.metadata.name, {"status": {"health": sick}})
        if health:
            await client.create(gpu_pod("small", (10, 4)), resource=Pod.RESOURCE)
            await until(client, Event, lambda events: any("2 all of its GPUs are lost" in e.message for e in events))
    await until(client, Pod, lambda pods: any(pod.metadata.name == "small" and pod.spec.node_name for pod in pods))
