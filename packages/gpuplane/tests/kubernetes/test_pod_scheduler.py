"""The pod scheduler on a real control plane, next to kube-scheduler; it is killed while it binds, and starts again.

It runs as a process under its own account.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane import names
from gpuplane.api.requests import uses_gpus
from kubekit.api.core import Event, Pod
from kubekit.kube import Client
from tests.support.extender_world import gpu_pod
from tests.support.realkube.started import started
from tests.support.realkube.watching import until_objects
from tests.support.scheduled_pods import ours, plain, reasons
from tests.support.share_burst import add_nodes, extending, free_port, mixed_shares, together, verdict

PODS: Final = int(os.environ.get("GPUPLANE_TEST_BURST", "200"))


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    """A control plane whose kube-scheduler asks no extender."""
    with started(ControlPlane(tmp_path / "plane")) as made:
        yield made


async def create(client: Client, pods: list[dict[str, Any]]) -> None:
    await together(len(pods), lambda at: client.create(pods[at], resource=Pod.RESOURCE))


def are_bound(pods: list[Pod], count: int) -> bool:
    return sum(bool(pod.spec.node_name) for pod in pods) >= count


async def test_pods_are_bound_through_a_kill_and_wait_evict_and_are_woken(plane: ControlPlane) -> None:
    port = free_port()
    async with Client.connect(plane.kubeconfig) as client:
        async with extending(client, plane.kubeconfig, port, pod_scheduler=True) as pid:
            await add_nodes(client, 20, 8)
            web = plain("web", schedulerName="default-scheduler")
            await create(client, [web, plain("own"), *(ours(pod) for pod in mixed_shares(PODS))])
            await until_objects(client, Pod, lambda pods: are_bound(pods, PODS // 3))
            os.kill(pid, 9)
        async with extending(client, plane.kubeconfig, port, pod_scheduler=True):
            await until_objects(client, Pod, lambda pods: are_bound(pods, PODS + 2))
            assert await verdict(client) == []
            for pod in await client.list(Pod):
                assert not reasons(pod), "bound, and reported to wait"
            await _waits_and_evicts(client)
            assert await verdict(client) == []


async def test_the_standby_takes_over_from_a_killed_leader(plane: ControlPlane) -> None:
    """Nothing is allocated twice, though the last Bindings of the leader are as late as watches are."""
    async with Client.connect(plane.kubeconfig) as client:
        leading = extending(client, plane.kubeconfig, free_port(), pod_scheduler=True, pod="first")
        async with leading as pid:
            await add_nodes(client, 20, 8)
            async with extending(client, plane.kubeconfig, free_port(), pod_scheduler=True, pod="second"):
                await create(client, [ours(pod) for pod in mixed_shares(PODS)])
                await until_objects(client, Pod, lambda pods: are_bound(pods, PODS // 3))
                os.kill(pid, 9)
                await create(client, [ours(pod) for pod in mixed_shares(20, prefix="late")])
                await until_objects(client, Pod, lambda pods: are_bound(pods, PODS + 20))
                assert await verdict(client) == []
                second = await client.get(Pod, "second", names.OPERATOR_NAMESPACE)
                assert names.LEADER_ANNOTATION in second.metadata.annotations, "it had followed the cluster before"


async def _waits_and_evicts(client: Client) -> None:
    """A pod that is larger than any free part waits with its reason; one of high priority evicts for itself."""
    for name, value in (("low", 0), ("high", 1000)):
        body = {"metadata": {"name": name}, "value": value}
        await client.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", None, body)
    ends: dict[str, Any] = {"terminationGracePeriodSeconds": 0}
    fill = [ours(gpu_pod(f"fill-{at}", (60, 30)), priorityClassName="low", **ends) for at in range(160)]
    await create(client, fill)
    full = await until_objects(
        client, Pod, lambda pods: [text for pod in pods for text in reasons(pod) if "no GPU has 60% core" in text]
    )
    assert full[0].startswith("0/20 nodes are available: ") and "No preemption victims found" in full[0]
    await create(client, [ours(gpu_pod("urgent", (60, 30)), priorityClassName="high", **ends)])
    await until_objects(
        client, Pod, lambda pods: any(pod.metadata.name == "urgent" and pod.spec.node_name for pod in pods)
    )
    await until_objects(client, Event, lambda events: any(event.reason == "Preempted" for event in events))
    assert all(pod.spec.scheduler_name == names.SCHEDULER_NAME for pod in await client.list(Pod) if uses_gpus(pod))
