"""A borrowed queue is reclaimed on a real control plane, with the rights of the installation."""

from __future__ import annotations

import contextlib
from typing import Any

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane import names
from gpuplane.api.gpuqueue import GPUQueue
from kubekit.api.core import Event, Pod
from kubekit.kube import AlreadyExists, Client
from packages.gpuplane.tests.kubernetes.test_pod_scheduler import create, plane
from packages.gpuplane.tests.pod_scheduler.test_kueue import cluster_queue, pod_in
from tests.support.extender_world import gpu_pod
from tests.support.kueue_world import Kueue
from tests.support.realkube.watching import until_objects
from tests.support.scheduled_pods import ours, reasons
from tests.support.share_burst import add_nodes, extending, free_port, verdict

__all__ = ["plane"]  # the fixture


def on_nodes(pods: list[Pod], namespace: str) -> list[str]:
    return [
        pod.metadata.name
        for pod in pods
        if pod.metadata.namespace == namespace and pod.spec.node_name and not pod.metadata.deletion_timestamp
    ]


async def namespaces(client: Client, *names: str) -> None:
    """Create namespaces with their default service account, which the controller manager may not have made yet."""
    for name in names:
        await client.request("POST", "/api/v1/namespaces", None, {"metadata": {"name": name}})
        account = {"metadata": {"name": "default"}}
        with contextlib.suppress(AlreadyExists):
            await client.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", None, account)


def pods_of(namespace: str, count: int) -> list[dict[str, Any]]:
    ends: dict[str, Any] = {"terminationGracePeriodSeconds": 0}
    return [ours(gpu_pod(f"{namespace}-{at}", (100, 0), namespace=namespace), **ends) for at in range(count)]


async def test_a_borrowed_queue_is_reclaimed(plane: ControlPlane) -> None:
    """Sixteen GPUs; `web` borrows what `science` does not use, and loses it when `science` comes."""
    async with (
        Client.connect(plane.kubeconfig) as client,
        extending(client, plane.kubeconfig, free_port(), pod_scheduler=True),
    ):
        await add_nodes(client, 2, 8)
        await namespaces(client, "science", "web")
        for name, guaranteed, limit in (("science", 10, 12), ("web", 4, 15)):
            spec = {"guaranteed": {"gpus": guaranteed}, "limit": {"gpus": limit}, "namespaces": [name]}
            await client.create({"metadata": {"name": name}, "spec": spec}, resource=GPUQueue.RESOURCE)
        await create(client, pods_of("web", 16))
        await until_objects(client, Pod, lambda pods: len(on_nodes(pods, "web")) == 15)
        full = await until_objects(client, Pod, lambda pods: [text for pod in pods for text in reasons(pod)])
        assert "queue web holds 15 GPUs (4 GPUs guaranteed, 11 GPUs borrowed)" in full[0]
        await create(client, pods_of("science", 12))
        await until_objects(client, Pod, lambda pods: len(on_nodes(pods, "science")) == 10)
        pods = await client.list(Pod)
        assert len(on_nodes(pods, "web")) == 6, "no more was taken back than is guaranteed"
        assert await verdict(client) == []
        events = await until_objects(
            client, Event, lambda events: [one.message for one in events if one.reason == "Preempted"]
        )
        assert events[0].endswith(": queue science takes back what is guaranteed to it and queue web has borrowed")
        borrowed = {"science": "0", "web": "2"}
        await until_objects(
            client,
            GPUQueue,
            lambda queues: {one.metadata.name: one.status.borrowed.gpus for one in queues} == borrowed,
        )


async def test_queues_of_kueue_are_read(plane: ControlPlane) -> None:
    """Its kinds are defined while the scheduler runs; two ClusterQueues of four GPUs in one cohort."""
    async with (
        Client.connect(plane.kubeconfig) as client,
        extending(client, plane.kubeconfig, free_port(), pod_scheduler=True),
    ):
        await add_nodes(client, 1, 8)
        await namespaces(client, "a", "b")
        kueue = Kueue(client, "v1beta2")
        await kueue.install()
        await kueue.create("ResourceFlavor", "default", {})
        for name in ("a", "b"):
            await kueue.create("ClusterQueue", name, cluster_queue("cohortName", names.VCUDA_CORE, 400))
            await kueue.create("LocalQueue", "main", {"clusterQueue": name}, name)
        await create(client, [pod_in("b", f"b-{at}") for at in range(9)])
        # NB: until the scheduler has looked for the group again the pods belong to no queue, and all GPUs are theirs.
        await until_objects(client, Pod, lambda pods: len(on_nodes(pods, "b")) == 8)
        await create(client, [pod_in("a", f"a-{at}") for at in range(5)])
        await until_objects(client, Pod, lambda pods: len(on_nodes(pods, "a")) == 4)
        assert len(on_nodes(await client.list(Pod), "b")) == 4
        assert await verdict(client) == []
