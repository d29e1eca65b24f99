"""The nodes on which a pod without GPUs may run: those of the real kube-scheduler, in random clusters.

kube-scheduler shows them to an extender, which takes none, so no pod is bound and one cluster is many questions. Ours
are what the pod scheduler, `explain` and the autoscaler compute. GPUPLANE_TEST_CLUSTERS is how many clusters.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest

from kubekit.api.core import Namespace, Node, Pod
from kubekit.api.meta import Resource
from kubekit.http_server import HttpAnswer, serving
from kubekit.kube import Client
from kubekit.scheduling import decide
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.podinfo import compile_node, compile_pod
from tests.support.random_clusters import NAMESPACES, RandomCluster, random_cluster
from tests.support.realkube.binaries import Unavailable
from tests.support.realkube.control_plane import ControlPlane
from tests.support.share_burst import free_port
from tests.support.until import until

CLUSTERS: Final = int(os.environ.get("GPUPLANE_TEST_CLUSTERS", "40"))
SCHEDULER: Final = "default-scheduler"
PRIORITY: Final = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
EVERYTHING: Final = 100


class KubeScheduler:
    """The real one on a control plane, with an extender that writes down which nodes it is shown for a pod."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.shown: dict[str, frozenset[str]] = {}

    async def filter(self, body: bytes) -> HttpAnswer:
        asked = json.loads(body)
        names = asked["NodeNames"]
        self.shown[asked["Pod"]["metadata"]["name"]] = frozenset(names)
        answer = {"NodeNames": [], "FailedNodes": dict.fromkeys(names, "only looked at")}
        return HttpAnswer(json.dumps(answer).encode(), HTTPStatus.OK, "application/json")

    async def decided(self, pod: str, namespace: str) -> frozenset[str] | None:
        """Return the nodes on which the pod may run; None while it was not tried."""
        found = await self.client.get(Pod, pod, namespace)
        tried = any(one.type == "PodScheduled" and one.status == "False" for one in found.status.conditions)
        return self.shown.get(pod, frozenset()) if tried else None


def configuration(port: int) -> dict[str, Any]:
    extender = {
        "urlPrefix": f"http://127.0.0.1:{port}",
        "filterVerb": "filter",
        "nodeCacheCapable": True,
        "httpTimeout": "30s",
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": EVERYTHING,
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
        "clientConnection": {"qps": 500, "burst": 1000},
        "extenders": [extender],
    }


@pytest.fixture
async def scheduler(tmp_path: Path) -> AsyncIterator[KubeScheduler]:
    port = free_port()
    file = tmp_path / "scheduler.yaml"
    file.write_text(json.dumps(configuration(port)))
    plane = ControlPlane(tmp_path / "plane", scheduler_config=file)
    try:
        plane.start(print)
    except Unavailable as problem:
        pytest.skip(f"no real cluster: {problem}")
    try:
        # It would say of nodes without kubelets that they are not ready.
        plane.kill("kube-controller-manager")
        async with Client.connect(plane.kubeconfig) as client:
            found = KubeScheduler(client)
            never = {"metadata": {"name": "never"}, "value": 0, "globalDefault": True, "preemptionPolicy": "Never"}
            await client.create(never, resource=PRIORITY)
            for name, labels in NAMESPACES.items():
                await client.create({"metadata": {"name": name, "labels": labels}}, resource=Namespace.RESOURCE)
                account = {"metadata": {"name": "default"}}
                await client.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", None, account)
            async with serving({}, "127.0.0.1", port, posts={"/filter": found.filter}):
                yield found
    finally:
        plane.stop()


async def make(client: Client, cluster: RandomCluster) -> RandomCluster:
    """Make the objects; returns the pods as they are stored, with what the API server put in."""

    async def node(wanted: dict[str, Any]) -> None:
        await client.create(wanted, resource=Node.RESOURCE)
        # A new node has the taint not-ready, which the controller that is away would take off.
        await client.patch(Node, wanted["metadata"]["name"], {"spec": {"taints": wanted["spec"].get("taints", [])}})

    await asyncio.gather(*map(node, cluster.nodes))
    running = await asyncio.gather(*(client.create(pod, resource=Pod.RESOURCE) for pod in cluster.running))
    waiting = await asyncio.gather(*(client.create(pod, resource=Pod.RESOURCE) for pod in cluster.waiting))
    return RandomCluster(cluster.nodes, running, waiting)


async def unmake(client: Client, cluster: RandomCluster) -> None:
    def places(pods: Iterable[dict[str, Any]]) -> Iterable[tuple[str, str]]:
        return ((pod["metadata"]["name"], pod["metadata"]["namespace"]) for pod in pods)

    pods = places((*cluster.running, *cluster.waiting))
    await asyncio.gather(*(client.delete(Pod, name, space, grace_seconds=0) for name, space in pods))
    await asyncio.gather(*(client.delete(Node, node["metadata"]["name"]) for node in cluster.nodes))


def ours(cluster: RandomCluster) -> dict[str, frozenset[str]]:
    """Return the nodes that may run each pod that waits, as our model of kube-scheduler decides."""
    cache = SchedulerCache()
    for name, labels in NAMESPACES.items():
        cache.set_namespace(name, {**labels, "kubernetes.io/metadata.name": name})
    for node in cluster.nodes:
        cache.set_node(compile_node(node))
    for pod in cluster.running:
        cache.place(compile_pod(pod))
    found = {}
    for pod in cluster.waiting:
        feasible = decide.find(compile_pod(pod), cache, percent=EVERYTHING).feasible
        found[pod["metadata"]["name"]] = frozenset(node.name for node in feasible)
    return found


async def test_the_same_nodes_as_kube_scheduler(scheduler: KubeScheduler) -> None:
    unlike, sizes = [], set()
    for seed in range(CLUSTERS):
        cluster = await make(scheduler.client, random_cluster(seed, SCHEDULER))
        expected = ours(cluster)
        for pod in cluster.waiting:
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            wanted = expected[name]
            sizes.add(len(wanted))

            async def agrees(name: str = name, namespace: str = namespace, wanted: object = wanted) -> bool:
                return await scheduler.decided(name, namespace) == wanted

            try:
                # It may have tried the pod before it knew all nodes, and tries it again when it does.
                await until(agrees, seconds=10, poll=0.02)
            except AssertionError:
                theirs = await scheduler.decided(name, namespace)
                unlike.append((pod, sorted(wanted), sorted(theirs or ())))
        await unmake(scheduler.client, cluster)
    assert unlike == []
    assert {0, 1, 2} <= sizes, "the clusters ask nothing"
