"""Gangs of scheduler-plugins' and of Kubernetes' PodGroups, where the API server has them and where it does not."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.explain.answer import explain
from gpuplane.explain.reading import read
from gpuplane.scheduler.gangs.gang import GangSource
from kubekit.api.core import CustomResourceDefinition, Pod
from kubekit.kube import NotFound, informer
from tests.support.extender_world import Running, World, gpu_pod
from tests.support.pod_groups import KINDS, create_group, definition, join_gang
from tests.support.scheduled_pods import bound, ours, plain, reasons, refused
from tests.support.until import until, until_objects

PLUGIN, WORKLOAD = GangSource.PLUGIN_GROUP, GangSource.WORKLOAD_GROUP
GROUPS = (PLUGIN, WORKLOAD)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds that are not served are asked for again soon."""
    monkeypatch.setattr(informer, "UNSERVED_SECONDS", 0.2)


async def serve(cluster: World, source: GangSource) -> None:
    """Let the API server have the kind."""
    await cluster.client.apply(definition(source), "test", resource=CustomResourceDefinition.RESOURCE)

    async def served() -> bool:
        await cluster.client.list(KINDS[source])
        return True

    await until(served, ignored=NotFound)


async def members(cluster: World, source: GangSource, gang: str, count: int, **annotations: str) -> list[str]:
    made = [f"{gang}-{at}" for at in range(count)]
    for name in made:
        pod = join_gang(ours(gpu_pod(name, (100, 0)), terminationGracePeriodSeconds=0), source, gang, 0, **annotations)
        await cluster.pod(pod)
    return made


async def said(cluster: World, text: str) -> None:
    await until_objects(
        cluster.client, Pod, lambda pods: any(text in reason for pod in pods for reason in reasons(pod))
    )


def unbound(pods: list[Pod]) -> set[str]:
    return {pod.metadata.name for pod in pods if not pod.spec.node_name}


@pytest.mark.parametrize("source", GROUPS)
async def test_its_pods_start_together(cluster: World, running: Running, source: GangSource) -> None:
    """The kind comes after the pods, then the group, then a pod that was missing."""
    await cluster.node("n1", 2)
    await cluster.node("n2", 2)
    made = await members(cluster, source, "train", 3)
    message = await refused(cluster, made[0])
    assert message.startswith(f"gang train: the API server does not serve podgroups.{source}; cure: ")
    found = explain(*await read(cluster.client, "default", "train-0"), "2026-01-01T00:00:00Z").gang
    assert found is not None and message in f"gang train: {found.message}"
    await serve(cluster, source)
    await said(cluster, f"gang train: its PodGroup does not exist yet (podgroups.{source} default/train)")
    await create_group(cluster.client, source, "train", 4)
    await said(cluster, "gang train: 3 of 4 pods are there")
    assert unbound(await cluster.client.list(Pod)) == set(made)
    await cluster.pod(join_gang(ours(gpu_pod("train-3", (100, 0))), source, "train", 0))
    pods = await bound(cluster, *made, "train-3")
    assert len({pods[name].metadata.annotations[names.GANG_ROUND_ANNOTATION] for name in pods}) == 1


@pytest.mark.parametrize("source", GROUPS)
async def test_two_gangs_that_want_the_same_gpus(cluster: World, running: Running, source: GangSource) -> None:
    await serve(cluster, source)
    for node in ("n1", "n2", "n3"):
        await cluster.node(node, 4)
    for gang in ("one", "two"):
        await create_group(cluster.client, source, gang, 8)
    one = await members(cluster, source, "one", 8)
    await bound(cluster, *one)
    two = await members(cluster, source, "two", 8)
    await said(cluster, "gang two: 4 of 8 pods have room together")
    assert unbound(await cluster.client.list(Pod)) == set(two), "no pod of the other gang holds a GPU"
    for name in one:
        await cluster.end(name)
    await bound(cluster, *two)


async def test_a_group_with_a_topology(cluster: World, running: Running) -> None:
    await serve(cluster, WORKLOAD)
    for at, rack in enumerate("aabbb"):
        await cluster.node(f"n{at}", 1, labels={"example.com/rack": rack})
    await create_group(cluster.client, WORKLOAD, "train", 3, rack="example.com/rack")
    pods = await bound(cluster, *await members(cluster, WORKLOAD, "train", 3))
    assert {pod.spec.node_name for pod in pods.values()} == {"n2", "n3", "n4"}


async def test_the_topology_of_annotations_holds_for_a_group(cluster: World, running: Running) -> None:
    await serve(cluster, PLUGIN)
    for node, gpus in (("n1", 2), ("n2", 3)):
        await cluster.node(node, gpus)
    await create_group(cluster.client, PLUGIN, "train", 3)
    pods = await bound(cluster, *await members(cluster, PLUGIN, "train", 3, required_topology="node"))
    assert {pod.spec.node_name for pod in pods.values()} == {"n2"}


async def test_pods_of_a_group_without_a_gang_are_placed_one_by_one(cluster: World, running: Running) -> None:
    await serve(cluster, WORKLOAD)
    await cluster.node("n1", 1)
    await create_group(cluster.client, WORKLOAD, "web", 1, schedulingPolicy={"basic": {}})
    made = await members(cluster, WORKLOAD, "web", 2)
    await until_objects(cluster.client, Pod, lambda pods: len(unbound(pods)) == 1)
    await said(cluster, "0/1 nodes are available")
    (waiting,) = unbound(await cluster.client.list(Pod))
    await cluster.end(*(set(made) - {waiting}))
    await bound(cluster, waiting)


async def test_the_resources_that_a_group_requires_have_to_be_free(cluster: World, running: Running) -> None:
    """The launcher alone would fit."""
    await serve(cluster, PLUGIN)
    await cluster.node("n1", 2)
    await create_group(cluster.client, PLUGIN, "mpi", 1, minResources={"nvidia.com/gpu": "4"})
    await cluster.pod(join_gang(plain("launcher"), PLUGIN, "mpi", 0))
    await said(cluster, "gang mpi: its PodGroup requires 4 of nvidia.com/gpu in all (minResources), and 2 are free")
    await cluster.node("n2", 2)
    await bound(cluster, "launcher")


async def test_a_group_that_changes_wakes_its_pods(cluster: World, running: Running) -> None:
    await serve(cluster, PLUGIN)
    await cluster.node("n1", 4)
    await create_group(cluster.client, PLUGIN, "train", 4)
    made = await members(cluster, PLUGIN, "train", 2)
    await said(cluster, "2 of 4 pods are there")
    await cluster.client.patch(KINDS[PLUGIN], "train", {"spec": {"minMember": 2}}, "default")
    await bound(cluster, *made)


async def test_a_group_and_an_annotation_of_one_name_are_two_gangs(cluster: World, running: Running) -> None:
    await serve(cluster, PLUGIN)
    await cluster.node("n1", 4)
    await create_group(cluster.client, PLUGIN, "train", 2)
    await cluster.pod(join_gang(ours(gpu_pod("a", (100, 0))), PLUGIN, "train", 0))
    await cluster.pod(join_gang(ours(gpu_pod("b", (100, 0))), GangSource.ANNOTATIONS, "train", 2))
    await said(cluster, "gang train: 1 of 2 pods are there")
    await cluster.pod(join_gang(ours(gpu_pod("c", (100, 0))), GangSource.ANNOTATIONS, "train", 2))
    await bound(cluster, "b", "c")
    assert unbound(await cluster.client.list(Pod)) == {"a"}


@pytest.mark.parametrize(
    ("source", "spec", "annotations", "text"),
    [
        (PLUGIN, {"minMember": 5000}, {}, "minMember of its PodGroup is 5000"),
        (PLUGIN, {"minResources": {"cpu": "much"}}, {}, "minResources of its PodGroup: "),
        (
            WORKLOAD,
            {"schedulingConstraints": {"topology": [{"key": "zone"}]}},
            {},
            "the label 'zone' of its PodGroup's",
        ),
        (
            WORKLOAD,
            {"schedulingConstraints": {"topology": [{"key": "a/rack"}]}},
            {"required_topology": "node"},
            "its pods require the topology node, and its PodGroup a/rack",
        ),
        (WORKLOAD, {"resourceClaims": [{"name": "gpu"}]}, {}, "its PodGroup has resource claims"),
        (WORKLOAD, {}, {"size": "2"}, "gpuplane.dev/gang-size is set, and the gang has a PodGroup"),
    ],
)
async def test_what_is_wrong_with_a_group_is_named(
    cluster: World, running: Running, source: GangSource, spec: dict[str, Any], annotations: dict[str, str], text: str
) -> None:
    await serve(cluster, source)
    await cluster.node("n1", 4)
    await create_group(cluster.client, source, "train", 1, **spec)
    await members(cluster, source, "train", 1, **annotations)
    await said(cluster, text)


async def test_a_pod_in_two_gangs_is_refused(cluster: World, running: Running) -> None:
    await cluster.node("n1", 4)
    pod = join_gang(ours(gpu_pod("a", (100, 0))), PLUGIN, "one", 0)
    pod["spec"]["schedulingGroup"] = {"podGroupName": "two"}
    await cluster.pod(pod)
    assert "in several gangs: scheduling.x-k8s.io/pod-group, spec.schedulingGroup" in await refused(cluster, "a")
