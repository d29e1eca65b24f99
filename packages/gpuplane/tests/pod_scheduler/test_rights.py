"""Rights of the pod scheduler in an installation, with no other part of a pod's status."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.gpuqueue import GPUQueue
from gpuplane.operator.installation import installation
from gpuplane.scheduler.defrag.limits import MoveLimits
from kubekit.api.core import ConfigMap, Pod
from kubekit.errors import InvalidInput
from kubekit.kube import Client, Forbidden
from tests.support.extender_world import World, account_client, extender, gpu_pod
from tests.support.replaced_pods import workloads
from tests.support.scheduled_pods import bound, ours, refused
from tests.support.until import until_objects


@pytest.fixture
async def account(cluster: World) -> AsyncIterator[Client]:
    """A client with the scheduler's own service account, on a cluster with the installation."""
    async with account_client(cluster, pod_scheduler=True) as client:
        yield client


async def test_its_account_suffices_for_all_it_does(cluster: World, account: Client) -> None:
    await cluster.node("n1", 2)
    async with extender(account, scheduler_name=names.SCHEDULER_NAME):
        for name in ("a", "b"):
            await cluster.pod(ours(gpu_pod(name, (60, 10))))
        await bound(cluster, "a", "b")
        await cluster.pod(ours(gpu_pod("late", (60, 10))))
        await refused(cluster, "late")
        await cluster.end("a")
        await bound(cluster, "late")
        await cluster.client.create({"metadata": {"name": "a"}, "spec": {}}, resource=GPUQueue.RESOURCE)
        await until_objects(cluster.client, GPUQueue, lambda queues: [one for one in queues if one.status.observed])


RUNNING: dict[str, Any] = {
    "phase": "Running",
    "podIP": "10.0.0.1",
    "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "False"}],
}


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Failed"},
        {"podIP": "10.0.0.9"},
        {"conditions": [{"type": "Ready", "status": "False"}]},
        {"conditions": [{"type": "example.com/gate", "status": "True"}]},
        {"conditions": [{"$patch": "delete", "type": "Ready"}]},
        {"containerStatuses": [{"name": "c0", "image": "x", "imageID": "", "ready": True, "restartCount": 0}]},
    ],
)
async def test_it_reports_nothing_that_a_kubelet_reports(
    cluster: World, account: Client, status: dict[str, Any]
) -> None:
    await cluster.pod(gpu_pod("a", (30, 20)))
    await cluster.client.patch(Pod, "a", {"status": RUNNING}, "default", "strategic", "status")
    with pytest.raises(Forbidden):
        await account.patch(Pod, "a", {"status": status}, "default", "strategic", "status")


async def test_it_reports_that_a_pod_waits_and_where_it_is_nominated(cluster: World, account: Client) -> None:
    await cluster.pod(gpu_pod("a", (30, 20)))
    await cluster.client.patch(Pod, "a", {"status": RUNNING}, "default", "strategic", "status")
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"}]
    body = {"status": {"conditions": conditions, "nominatedNodeName": "n1"}}
    patched = await account.patch(Pod, "a", body, "default", "strategic", "status")
    assert "full" in [one.message for one in patched.status.conditions]
    assert patched.status.phase == "Running"


def test_it_needs_the_schedulers_process() -> None:
    with pytest.raises(InvalidInput, match="scheduler's process"):
        installation(scheduler=False, pod_scheduler=True)
    (deployment,) = (
        one
        for one in installation(pod_scheduler=True)
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", "gpuplane-scheduler")
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["run", "scheduler", "--scheduler-name=gpuplane"]


async def test_its_account_suffices_to_move_a_pod(cluster: World, account: Client) -> None:
    limits = MoveLimits(automatic=True, after_seconds=0.0)
    async with workloads(cluster.client) as sets:
        await cluster.node("n1", 2)
        async with extender(
            account, scheduler_name=names.SCHEDULER_NAME, moves=limits, namespace=names.OPERATOR_NAMESPACE
        ):
            here = {names.GPU_UUIDS_ANNOTATION: "GPU-n1-0"}
            await cluster.pod(ours(gpu_pod("first", (60, 0), metadata={"annotations": here})))
            stays = await sets.add("b", 50, movable=False, gpu="GPU-n1-1")
            await bound(cluster, "first", *stays)
            await bound(cluster, *await sets.add("a", 40))  # it fills GPU 0
            await cluster.delete("first")
            await cluster.pod(ours(gpu_pod("train", whole=1)))
            await bound(cluster, "train")
        assert len(sets.deleted) == 2


async def test_it_creates_no_configmap_but_that_of_its_moves(cluster: World, account: Client) -> None:
    """The settings of a component may name a missing one, such as the repositories of the driver's packages."""
    space = names.OPERATOR_NAMESPACE
    for meta in ({"name": "repo-config"}, {"generateName": "gpuplane-moves"}):
        with pytest.raises(Forbidden, match="the scheduler creates the ConfigMap gpuplane-moves, and no other"):
            await account.create({"metadata": {**meta, "namespace": space}}, resource=ConfigMap.RESOURCE)
    moves = {"metadata": {"name": names.MOVES_CONFIGMAP, "namespace": space}}
    await account.create(moves, resource=ConfigMap.RESOURCE)
