"""The nodes on which a pod without GPUs may run: those of the real kube-scheduler, in random clusters.

They are the same, and so are the words for pods that fit nowhere. kube-scheduler shows the nodes to an extender, which
takes none, so no pod is bound and one cluster is many questions. Ours are what the pod scheduler, `explain` and the
autoscaler compute. GPUPLANE_TEST_CLUSTERS is how many clusters.
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

from gpulab.kubernetes.control_plane import ControlPlane
from gpulab.kubernetes.unavailable import Unavailable
from kubekit.api.core import Namespace, Node, Pod
from kubekit.api.meta import Resource
from kubekit.http_server import HttpAnswer, serving
from kubekit.kube import Client
from kubekit.scheduling import decide
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.devices.facts import compile_device_claim, compile_device_class
from kubekit.scheduling.devices.slices import compile_slice
from kubekit.scheduling.podinfo import compile_node, compile_pod
from kubekit.scheduling.preemption import NEVER
from kubekit.scheduling.volumes import facts
from tests.support.random_clusters import NAMESPACES, RandomCluster, random_cluster
from tests.support.random_devices import RandomDevices
from tests.support.random_volumes import RandomVolumes, Stored
from tests.support.share_burst import free_port
from tests.support.until import until

CLUSTERS: Final = int(os.environ.get("GPUPLANE_TEST_CLUSTERS", "40"))
SCHEDULER: Final = "default-scheduler"
PRIORITY: Final = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
EVERYTHING: Final = 100


class KubeScheduler:
    """A real kube-scheduler on a control plane, with an extender that records the nodes of each request."""

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

    async def message(self, pod: str, namespace: str) -> str:
        """Return why the pod waits."""
        found = await self.client.get(Pod, pod, namespace)
        return next((one.message for one in found.status.conditions if one.type == "PodScheduled"), "")


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


async def make_objects(client: Client, objects: Iterable[Stored]) -> list[Stored]:
    """Make claims, volumes, devices and their kin; returns them as they are stored."""
    made = []
    for resource, wanted in objects:
        stored = await client.create(
            {key: value for key, value in wanted.items() if key != "status"}, resource=resource
        )
        if wanted.get("status"):
            meta = stored["metadata"]
            path = resource.path(meta.get("namespace"), meta["name"], "status")
            patch = {"status": wanted["status"]}
            stored = json.loads(await client.request("PATCH", path, None, patch, "application/merge-patch+json"))
        made.append((resource, stored))
    return made


def store(objects: Iterable[Stored], cache: SchedulerCache) -> None:
    """Put objects into the stores of our model."""
    found = cache.volumes
    for resource, stored in objects:
        name = stored["metadata"]["name"]
        match resource.kind:
            case "PersistentVolumeClaim":
                found.set_claim(facts.compile_claim(stored))
            case "PersistentVolume":
                found.set_volume(facts.compile_volume(stored))
            case "StorageClass":
                found.classes[name] = facts.compile_class(stored)
            case "CSINode":
                found.node_limits[name] = facts.compile_node_limits(stored)
            case "CSIDriver" if facts.tracks_capacity(stored):
                found.tracked_drivers.add(name)
            case "CSIStorageCapacity":
                found.capacities[name] = facts.compile_capacity(stored)
            case "VolumeAttachment":
                found.set_attachment(facts.compile_attachment(stored))
            case "DeviceClass":
                cache.devices.classes[name] = compile_device_class(stored)
            case "ResourceSlice":
                cache.devices.set_slice(compile_slice(stored))
            case "ResourceClaim":
                cache.devices.set_claim(compile_device_claim(stored))


async def unmake(client: Client, cluster: RandomCluster) -> None:
    def places(pods: Iterable[dict[str, Any]]) -> Iterable[tuple[str, str]]:
        return ((pod["metadata"]["name"], pod["metadata"]["namespace"]) for pod in pods)

    pods = places((*cluster.running, *cluster.waiting))
    await asyncio.gather(*(client.delete(Pod, name, space, grace_seconds=0) for name, space in pods))
    await asyncio.gather(*(client.delete(Node, node["metadata"]["name"]) for node in cluster.nodes))


def ours(cluster: RandomCluster, objects: Iterable[Stored] = ()) -> dict[str, decide.Found]:
    """Return the nodes that may run each pod that waits, as our model of kube-scheduler decides."""
    cache = SchedulerCache()
    store(objects, cache)
    for name, labels in NAMESPACES.items():
        cache.set_namespace(name, {**labels, "kubernetes.io/metadata.name": name})
    for node in cluster.nodes:
        cache.set_node(compile_node(node))
    for pod in cluster.running:
        cache.place(compile_pod(pod))
    found = {}
    for pod in cluster.waiting:
        found[pod["metadata"]["name"]] = decide.find(compile_pod(pod), cache, percent=EVERYTHING)
    return found


def names(found: decide.Found) -> frozenset[str]:
    return frozenset(node.name for node in found.feasible)


async def compared(scheduler: KubeScheduler, cluster: RandomCluster, expected: dict[str, decide.Found]) -> list[str]:
    """Return the pods that kube-scheduler decides otherwise: other nodes, or another message where there are none."""
    unlike: list[str] = []
    for pod in cluster.waiting:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        found = expected[name]
        words = decide.fit_error(found, NEVER) if not found.feasible else ""

        async def agrees(name: str = name, namespace: str = namespace, found: decide.Found = found) -> bool:
            return await scheduler.decided(name, namespace) == names(found)

        async def says(name: str = name, namespace: str = namespace, words: str = words) -> bool:
            return not words or await scheduler.message(name, namespace) == words

        try:
            # It may have tried the pod before it knew all objects, and tries it again when it does.
            await until(agrees, seconds=10, poll=0.02)
            await until(says, seconds=10, poll=0.02)
        except AssertionError:
            theirs = await scheduler.decided(name, namespace)
            said = await scheduler.message(name, namespace)
            unlike.append(f"{name}: {sorted(names(found))} {words!r}; kube-scheduler: {sorted(theirs or ())} {said!r}")
    return unlike


async def test_the_same_nodes_as_kube_scheduler(scheduler: KubeScheduler) -> None:
    unlike, sizes = [], set()
    for seed in range(CLUSTERS):
        cluster = await make(scheduler.client, random_cluster(seed, SCHEDULER))
        expected = ours(cluster)
        sizes |= {len(found.feasible) for found in expected.values()}
        unlike += await compared(scheduler, cluster, expected)
        await unmake(scheduler.client, cluster)
    assert not unlike, "\n".join(unlike)
    assert {0, 1, 2} <= sizes, "the clusters ask nothing"


async def test_the_same_nodes_for_pods_with_volumes(scheduler: KubeScheduler) -> None:
    unlike, plugins = [], set()
    for seed in range(CLUSTERS):
        wanted = random_cluster(seed, SCHEDULER)
        stored = await make_objects(scheduler.client, RandomVolumes(seed, wanted).objects)
        cluster = await make(scheduler.client, wanted)
        expected = ours(cluster, stored)
        plugins |= {plugin for found in expected.values() for plugin in found.plugins()}
        unlike += await compared(scheduler, cluster, expected)
        await unmake(scheduler.client, cluster)
    assert not unlike, "\n".join(unlike)
    assert {"VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"} <= plugins


async def test_the_same_nodes_for_pods_that_claim_devices(scheduler: KubeScheduler) -> None:
    unlike, reasons, feasible = [], set(), 0
    for seed in range(CLUSTERS):
        wanted = random_cluster(seed, SCHEDULER)
        stored = await make_objects(scheduler.client, RandomDevices(seed, wanted).objects)
        cluster = await make(scheduler.client, wanted)
        expected = ours(cluster, stored)
        claimed = [found for found in expected.values() if found.claimed]
        reasons |= {reason for found in claimed for one in found.failures.values() for reason in one.reasons}
        feasible += sum(bool(found.feasible) for found in claimed)
        unlike += await compared(scheduler, cluster, expected)
        await unmake(scheduler.client, cluster)
        for resource, one in stored:
            if resource.kind == "ResourceSlice":  # the next cluster's nodes would reach its devices too
                await scheduler.client.request("DELETE", resource.path(None, one["metadata"]["name"]))
    assert not unlike, "\n".join(unlike)
    assert {"cannot allocate all claims", "resourceclaim not available on the node"} <= reasons
    assert feasible > CLUSTERS // 2, "hardly any claim gets devices"
