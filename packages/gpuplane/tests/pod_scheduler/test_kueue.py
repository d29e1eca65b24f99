"""Queues declared by Kueue's objects, in both versions of its API, on a cluster without Kueue's controller."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.scheduler.queues.watch import NOT_AS_WRITTEN
from kubekit.api.core import Event, Pod
from tests.support.extender_world import World, extender, gpu_pod
from tests.support.kueue_world import Kueue
from tests.support.scheduled_pods import bound, ours, reasons, refused
from tests.support.until import until_objects


def pod_in(namespace: str, name: str, queue: str = "main") -> dict[str, Any]:
    meta = {"labels": {names.KUEUE_QUEUE_LABEL: queue}}
    pod = gpu_pod(name, (100, 0), namespace=namespace, metadata=meta)
    return ours(pod, terminationGracePeriodSeconds=0)


def cluster_queue(cohort: str, resource: str, quota: int, **spec: Any) -> dict[str, Any]:
    """The spec of a ClusterQueue in the cohort `all`, whose name stands in the field `cohort`."""
    flavor = {"name": "default", "resources": [{"name": resource, "nominalQuota": quota}]}
    return {
        cohort: "all",
        "namespaceSelector": {},
        "preemption": {"reclaimWithinCohort": "Any"},
        "resourceGroups": [{"coveredResources": [resource], "flavors": [flavor]}],
        **spec,
    }


async def declare(cluster: World, kueue: Kueue, cohort: str) -> None:
    """Two ClusterQueues of two GPUs each in one cohort, and a LocalQueue for each in a namespace of its name."""
    await kueue.create("ResourceFlavor", "default", {})
    for name, strategy in (("a", "StrictFIFO"), ("b", "BestEffortFIFO")):
        spec = cluster_queue(cohort, names.GPU_RESOURCE, 2, queueingStrategy=strategy)
        await kueue.create("ClusterQueue", name, spec)
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await cluster.client.request("POST", "/api/v1/namespaces", None, body)
        await kueue.create("LocalQueue", "main", {"clusterQueue": name}, name)


@pytest.mark.parametrize(("version", "cohort"), [("v1beta1", "cohort"), ("v1beta2", "cohortName")])
async def test_what_was_borrowed_in_a_cohort_is_reclaimed(cluster: World, version: str, cohort: str) -> None:
    kueue = Kueue(cluster.client, version)
    await kueue.install()
    await declare(cluster, kueue, cohort)
    await cluster.node("n1", 6)
    async with extender(cluster.client, scheduler_name="gpuplane") as running:
        for at in range(5):
            await cluster.pod(pod_in("b", f"b-{at}"))
        await until_objects(cluster.client, Pod, lambda pods: sum(bool(pod.spec.node_name) for pod in pods) == 4)
        (text,) = await until_objects(cluster.client, Pod, lambda pods: [text for pod in pods for text in reasons(pod)])
        assert "queue b/main of cohort/all: cohort/all holds 4 GPUs (4 GPUs guaranteed, 0 GPUs borrowed)" in text
        for at in range(2):
            await cluster.pod(pod_in("a", f"a-{at}"))
        await bound(cluster, "a-0", "a-1")
        (text,) = await until_objects(
            cluster.client, Event, lambda events: [one.message for one in events if one.reason == NOT_AS_WRITTEN]
        )
        assert text == "spec.queueingStrategy is not honoured"
        await cluster.pod(pod_in("a", "lost", "nowhere"))
        assert "LocalQueue nowhere of label kueue.x-k8s.io/queue-name does not exist" in await refused(cluster, "lost")
        running.well()


@pytest.mark.parametrize("label", ["other", "nowhere", None])
async def test_a_running_pod_stays_in_its_queue_when_its_label_changes(cluster: World, label: str | None) -> None:
    """Else a tenant fills a queue, and changes the labels of its pods, for as long as there are GPUs."""
    kueue = Kueue(cluster.client, "v1beta2")
    await kueue.install()
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}
    await cluster.client.request("POST", "/api/v1/namespaces", None, body)
    await kueue.create("ResourceFlavor", "default", {})
    for queue, local in (("a", "main"), ("b", "other")):
        spec = {**cluster_queue("cohortName", names.GPU_RESOURCE, 2), "cohortName": ""}
        await kueue.create("ClusterQueue", queue, spec)
        await kueue.create("LocalQueue", local, {"clusterQueue": queue}, "a")
    await cluster.node("n1", 6)
    async with extender(cluster.client, scheduler_name="gpuplane") as running:
        for name in ("a-0", "a-1"):
            await cluster.pod(pod_in("a", name))
        await bound(cluster, "a-0", "a-1")
        for name in ("a-0", "a-1"):
            await cluster.client.patch(Pod, name, {"metadata": {"labels": {names.KUEUE_QUEUE_LABEL: label}}}, "a")
        await cluster.pod(pod_in("a", "more"))
        assert "queue a/main of a: a holds 2 GPUs" in await refused(cluster, "more")
        running.well()
    async with extender(cluster.client, scheduler_name="gpuplane") as running:  # the next leader
        await cluster.pod(pod_in("a", "still-more"))
        assert "queue a/main of a: a holds 2 GPUs" in await refused(cluster, "still-more")
