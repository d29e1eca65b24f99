"""Two gangs of 8 that want the same 12 GPUs, for each way to declare a gang, on a real control plane.

The pod scheduler runs as a process under its own account. It starts before the API server has scheduler-plugins' kind.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane.scheduler.gangs.gang import GangSource
from kubekit.api.core import CustomResourceDefinition, Node, Pod
from kubekit.kube import Client, NotFound
from tests.support.extender_world import gpu_pod
from tests.support.pod_groups import create_group, definition, join_gang
from tests.support.realkube.started import started
from tests.support.realkube.watching import until_objects
from tests.support.scheduled_pods import ours, reasons
from tests.support.share_burst import add_nodes, extending, free_port, verdict
from tests.support.until import until

SIZE: Final = 8
RACK: Final = "kubernetes.io/hostname"


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    """A control plane with Kubernetes' own PodGroups."""
    made = ControlPlane(
        tmp_path / "plane",
        features=("GenericWorkload", "TopologyAwareWorkloadScheduling"),
        apis=("scheduling.k8s.io/v1alpha2",),
    )
    with started(made) as plane:
        yield plane


async def test_two_gangs_that_want_the_same_gpus(plane: ControlPlane) -> None:
    async with (
        Client.connect(plane.kubeconfig) as client,
        extending(client, plane.kubeconfig, free_port(), pod_scheduler=True),
    ):
        await add_nodes(client, 3, 4)
        for source in (GangSource.ANNOTATIONS, GangSource.WORKLOAD_GROUP, GangSource.PLUGIN_GROUP):
            await _one_runs_and_the_other_waits(client, source)
        await _a_topology_of_kubernetes(client)


async def test_a_gang_evicts_another_as_a_whole_through_a_kill(plane: ControlPlane) -> None:
    """The scheduler is killed once the first victim has gone. Pods that run alone stay: they would not suffice."""
    port = free_port()
    high = [f"high-{at}" for at in range(SIZE)]
    async with Client.connect(plane.kubeconfig) as client:
        async with extending(client, plane.kubeconfig, port, pod_scheduler=True) as pid:
            await add_nodes(client, 3, 4)
            for name, value in (("low", 0), ("high", 1000)):
                body = {"metadata": {"name": name}, "value": value}
                await client.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", None, body)
            await create_group(client, GangSource.WORKLOAD_GROUP, "high", SIZE)
            for at in range(4):
                await client.create(_pod(f"alone-{at}", "low"), resource=Pod.RESOURCE)
            for at in range(SIZE):
                pod = join_gang(_pod(f"low-{at}", "low"), GangSource.ANNOTATIONS, "low", SIZE)
                await client.create(pod, resource=Pod.RESOURCE)
            await until_objects(client, Pod, lambda pods: sum(bool(pod.spec.node_name) for pod in pods) == 12)
            for name in high:
                pod = join_gang(_pod(name, "high"), GangSource.WORKLOAD_GROUP, "high", SIZE)
                await client.create(pod, resource=Pod.RESOURCE)
            await until_objects(client, Pod, lambda pods: len(pods) < 12 + SIZE)
            os.kill(pid, 9)
        async with extending(client, plane.kubeconfig, port, pod_scheduler=True):
            pods = await until_objects(
                client, Pod, lambda pods: pods if len(pods) == 12 and all(pod.spec.node_name for pod in pods) else []
            )
            assert {pod.metadata.name for pod in pods} == {*high, *(f"alone-{at}" for at in range(4))}
            assert await verdict(client) == []


def _pod(name: str, priority: str) -> dict[str, Any]:
    return ours(gpu_pod(name, (100, 0)), terminationGracePeriodSeconds=0, priorityClassName=priority)


async def _one_runs_and_the_other_waits(client: Client, source: GangSource) -> None:
    gangs = tuple(f"{name}-{source.name.lower().replace('_', '-')}" for name in ("one", "two"))
    for at in range(SIZE):  # mixed, as two controllers would make them
        for gang in gangs:
            pod = ours(gpu_pod(f"{gang}-{at}", (100, 0)), terminationGracePeriodSeconds=0)
            await client.create(join_gang(pod, source, gang, SIZE), resource=Pod.RESOURCE)
    if source is not GangSource.ANNOTATIONS:
        missing = "does not serve" if source is GangSource.PLUGIN_GROUP else "its PodGroup does not exist yet"
        await until_objects(client, Pod, lambda pods: all(any(missing in one for one in reasons(pod)) for pod in pods))
    if source is GangSource.PLUGIN_GROUP:
        await client.apply(definition(source), "test", resource=CustomResourceDefinition.RESOURCE)
    for gang in gangs if source is not GangSource.ANNOTATIONS else ():
        await until_created(client, source, gang)
    await until_objects(client, Pod, lambda pods: sum(bool(pod.spec.node_name) for pod in pods) == SIZE)
    text = "4 of 8 pods have room together"
    pods = await until_objects(
        client,
        Pod,
        lambda pods: pods if any(text in one for pod in pods for one in reasons(pod)) else [],
    )
    first = {pod.metadata.name.rpartition("-")[0] for pod in pods if pod.spec.node_name}
    assert len(first) == 1 and first < set(gangs), "no half gangs"
    assert await verdict(client) == []
    for bound in [pod for pod in pods if pod.spec.node_name]:
        await client.delete(Pod, bound.metadata.name, "default", grace_seconds=0)
    await until_objects(client, Pod, lambda pods: len(pods) == SIZE and all(pod.spec.node_name for pod in pods))
    assert await verdict(client) == []
    await _delete_all(client)


async def until_created(client: Client, source: GangSource, gang: str) -> None:
    """Create the group once the API server serves the kind."""

    async def created() -> bool:
        await create_group(client, source, gang, SIZE)
        return True

    await until(created, ignored=NotFound)


async def _a_topology_of_kubernetes(client: Client) -> None:
    """A gang of four fits one node; the label is that of the node's name."""
    for at in range(3):
        name = f"gpu-{at:02}"
        await client.patch(Node, name, {"metadata": {"labels": {RACK: name}}})
    await create_group(client, GangSource.WORKLOAD_GROUP, "near", 4, rack=RACK)
    for at in range(4):
        pod = ours(gpu_pod(f"near-{at}", (100, 0)), terminationGracePeriodSeconds=0)
        await client.create(join_gang(pod, GangSource.WORKLOAD_GROUP, "near", 4), resource=Pod.RESOURCE)
    pods = await until_objects(
        client, Pod, lambda pods: pods if len(pods) == 4 and all(pod.spec.node_name for pod in pods) else []
    )
    assert len({pod.spec.node_name for pod in pods}) == 1


async def _delete_all(client: Client) -> None:
    for pod in await client.list(Pod):
        await client.delete(Pod, pod.metadata.name, "default", grace_seconds=0)
    await until_objects(client, Pod, lambda pods: not pods)
