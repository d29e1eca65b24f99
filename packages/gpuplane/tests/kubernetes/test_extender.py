"""A real kube-scheduler with the extender, told by the configuration that gpuplane prints.

The extender runs as a process under its own account.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from gpulab.kubernetes.control_plane import ControlPlane
from gpulab.kubernetes.unavailable import Unavailable
from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.scheduler.configuration import printed
from kubekit.api.core import ConfigMap, Event, Node, Pod
from kubekit.kube import Client
from tests.support.extender_world import gpu_pod
from tests.support.realkube.watching import until_objects
from tests.support.share_burst import add_nodes, burst, extending, free_port, mixed_shares, verdict, write_certificates

NODES: Final = 60
GPUS: Final = 8
PODS: Final = int(os.environ.get("GPUPLANE_TEST_BURST", "1000"))


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """An administrator's, on a cluster whose kube-scheduler calls an extender that runs, by mutual TLS."""
    port = free_port()
    plane = ControlPlane(tmp_path / "plane")
    try:
        plane.start(print)
    except Unavailable as problem:
        pytest.skip(f"no real cluster: {problem}")
    try:
        async with Client.connect(plane.kubeconfig) as client, extending(client, plane.kubeconfig, port, https=True):
            certificates = await write_certificates(client, tmp_path / "extender")
            config = tmp_path / "scheduler.yaml"
            config.write_text(printed("kube", f"https://127.0.0.1:{port}", str(certificates)))
            await asyncio.to_thread(restart_scheduler, plane, config)
            yield client
    finally:
        plane.stop()


def restart_scheduler(plane: ControlPlane, config: Path) -> None:
    plane.kill("kube-scheduler")
    plane.scheduler_config = config
    plane.start_part("kube-scheduler")


async def test_a_burst_of_mixed_shares(client: Client) -> None:
    await add_nodes(client, NODES, GPUS)
    times = await burst(client, mixed_shares(PODS))
    assert await verdict(client) == []
    rate = PODS / times.bound[-1]
    print(f"{PODS} pods stored after {times.created:.1f} s, bound after {times.bound[-1]:.1f} s: {rate:.0f} a second")


async def test_who_is_over_quota_is_told_what_is_used_and_by_whom(client: Client) -> None:
    await add_nodes(client, 1, 2)
    await client.patch(Node, "gpu-00", {"metadata": {"labels": {names.QUOTA_MODEL_LABEL: "T4"}}})
    data = {names.QUOTA_KEY: '{"default": {"quota": {"T4": 1}}}'}
    meta = {"name": names.QUOTA_CONFIGMAP, "namespace": names.QUOTA_NAMESPACE}
    quota = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
    await client.apply({**quota, "data": data}, "test", resource=ConfigMap.RESOURCE)
    await client.create(gpu_pod("first", (80, 20)), resource=Pod.RESOURCE)
    await until_objects(client, Pod, lambda pods: any(pod.spec.node_name for pod in pods))
    await client.create(gpu_pod("second", (60, 20)), resource=Pod.RESOURCE)
    why = "1 ExceedsGPUQuota: namespace default uses 0.8 of 1 T4 (first 0.8), and this pod asks 0.6"
    await until_objects(client, Event, lambda events: any(why in event.message for event in events))
    # A ConfigMap that does not parse gets an event, and the previous quota stays; a valid one queues pods again.
    broken = {names.QUOTA_KEY: '{"default": {"qouta": {"T4": 2}}}'}
    await client.apply({**quota, "data": broken}, "test", resource=ConfigMap.RESOURCE)
    told = "default: qouta is unknown; it knows quota and pool; the previous quota stays in force"
    await until_objects(client, Event, lambda events: any(told in event.message for event in events))
    good = {names.QUOTA_KEY: '{"default": {"quota": {"T4": 2}}}'}
    await client.apply({**quota, "data": good}, "test", resource=ConfigMap.RESOURCE)
    await until_objects(client, Pod, lambda pods: all(pod.spec.node_name for pod in pods))
    assert await verdict(client) == []


async def test_who_waits_is_told_why_and_woken(client: Client) -> None:
    await add_nodes(client, 2, 2)
    for index in range(4):
        await client.create(gpu_pod(f"p{index}", (60, 20)), resource=Pod.RESOURCE)
    await until_objects(client, Pod, lambda pods: sum(bool(pod.spec.node_name) for pod in pods) == 4)
    await client.create(gpu_pod("waits", (60, 20)), resource=Pod.RESOURCE)  # each node has 80% left, no GPU has 60%
    why = "2 no GPU has 60 percent core and 5120 MiB together"
    await until_objects(client, Event, lambda events: any(why in event.message for event in events))
    await client.delete(Pod, "p1", "default", grace_seconds=0)
    await until_objects(
        client, Pod, lambda pods: any(pod.metadata.name == "waits" and pod.spec.node_name for pod in pods)
    )
    assert await verdict(client) == []
    # A GPU that recovers is no event for kube-scheduler, but for the annotation.
    for health in ("Xid 79", ""):
        for node in await client.list(GPUNode):
            sick = {gpu.uuid: health or None for gpu in node.status.gpus}
            await client.patch(GPUNode, node.metadata.name, {"status": {"health": sick}})
        if health:
            await client.create(gpu_pod("small", (10, 4)), resource=Pod.RESOURCE)
            await until_objects(
                client, Event, lambda events: any("2 all of its GPUs are lost" in e.message for e in events)
            )
    await until_objects(
        client, Pod, lambda pods: any(pod.metadata.name == "small" and pod.spec.node_name for pod in pods)
    )
