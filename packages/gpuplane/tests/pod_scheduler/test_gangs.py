"""Pods of a gang start together or not at all, in the topology that they require."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane import names
from gpuplane.explain.answer import explain
from gpuplane.explain.gangs import NO_ROOM
from gpuplane.explain.reading import read
from gpuplane.scheduler.gangs.placing import MOST_DOMAINS
from gpuplane.sharing import of_pod
from kubekit.api.core import Pod
from tests.support.extender_world import Running, World, gpu_pod
from tests.support.scheduled_pods import bound, ours, plain, reasons, refused
from tests.support.until import until_objects


def member(name: str, gang: str, size: int, *, core: int = 100, **annotations: str) -> dict[str, Any]:
    """A pod of a gang. Keywords are further annotations: `required_topology="node"`."""
    meta = {
        names.GANG_ANNOTATION: gang,
        names.GANG_SIZE_ANNOTATION: str(size),
        **{f"gpuplane.dev/gang-{key.replace('_', '-')}": value for key, value in annotations.items()},
    }
    pod = gpu_pod(name, (core, 4 if core < 100 else 0), metadata={"annotations": meta}) if core else plain(name)
    pod["metadata"]["annotations"] = meta
    return ours(pod, terminationGracePeriodSeconds=0)


async def create(cluster: World, gang: str, size: int, count: int | None = None, **how: Any) -> list[str]:
    made = [f"{gang}-{at}" for at in range(size if count is None else count)]
    for name in made:
        await cluster.pod(member(name, gang, size, **how))
    return made


async def join(cluster: World, running: Running, name: str, gpus: int, labels: dict[str, str]) -> None:
    """A node that comes while pods wait: its GPUs are known before it is Ready."""
    await cluster.node(name, gpus, ready=False, labels=labels)
    await running.until(lambda: running.leader.cluster.gpunodes.get(name))
    await cluster.set_ready(name, ready=True)


async def on_nodes(cluster: World, names_of: list[str]) -> set[str]:
    pods = await bound(cluster, *names_of)
    return {pods[name].spec.node_name for name in names_of}


async def test_two_gangs_of_8_that_want_the_same_12_gpus(cluster: World, running: Running) -> None:
    """One runs whole, the other waits whole and says why, and runs when the first has ended."""
    for node in ("n1", "n2", "n3"):
        await cluster.node(node, 4)
    one, two = [f"one-{at}" for at in range(8)], [f"two-{at}" for at in range(8)]
    for first, second in zip(one, two, strict=True):  # mixed, as two controllers would make them
        await cluster.pod(member(first, "one", 8))
        await cluster.pod(member(second, "two", 8))
    await bound(cluster, *one)
    assert "gang two: 4 of 8 pods have room together; the next one: 0/3 nodes are available" in await refused(
        cluster, "two-7"
    )
    explained = explain(*await read(cluster.client, "default", "two-7"), "2026-01-01T00:00:00Z")
    assert explained.gang is not None and explained.gang.state == NO_ROOM
    assert explained.gang.message.startswith("4 of 8 pods have room together; the next one: 0/3 nodes are available")
    waiting = {pod.metadata.name: pod for pod in await cluster.client.list(Pod) if not pod.spec.node_name}
    assert set(waiting) == set(two), "no pod of the other gang holds a GPU"
    for name in one:
        await cluster.end(name)
    await bound(cluster, *two)


async def test_the_page_s_job_runs(cluster: World, running: Running) -> None:
    page = (Path(__file__).parents[4] / "docs/tasks/gangs.md").read_text()
    job = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    template, made = job["spec"]["template"], [f"train-{at}" for at in range(job["spec"]["completions"])]
    for node in ("n1", "n2", "n3"):
        await cluster.node(node, 4 if node == "n2" else 3)
    for name in made:
        meta = {"name": name, "namespace": "default", **template["metadata"]}
        await cluster.pod({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]})
    assert await on_nodes(cluster, made) == {"n2"}


async def test_a_gang_waits_until_all_its_pods_are_there(cluster: World, running: Running) -> None:
    await cluster.node("n1", 4)
    made = await create(cluster, "train", 4, 3)
    assert await refused(cluster, made[0])
    await until_objects(
        cluster.client, Pod, lambda pods: any("gang train: 3 of 4 pods are there" in reasons(pod) for pod in pods)
    )
    assert not [pod for pod in await cluster.client.list(Pod) if pod.spec.node_name]
    await cluster.pod(member("train-3", "train", 4))
    pods = await bound(cluster, *made, "train-3")
    rounds = {pods[name].metadata.annotations[names.GANG_ROUND_ANNOTATION] for name in [*made, "train-3"]}
    assert len(rounds) == 1 and len(rounds.pop().split(",")) == 4


async def test_more_pods_than_the_size_follow_one_by_one(cluster: World, running: Running) -> None:
    await cluster.node("n1", 3)
    made = await create(cluster, "train", 2, 4)
    await until_objects(cluster.client, Pod, lambda pods: sum(bool(pod.spec.node_name) for pod in pods) == 3)
    await join(cluster, running, "n2", 1, {})
    await bound(cluster, *made)


@pytest.mark.parametrize(
    ("level", "nearest"),
    [
        ("node", "needs room for 4 pods in one node; the nearest is node n1, for 2"),
        ("nvlink", "needs room for 4 pods in one nvlink; the nearest is nvidia.com/gpu.clique=a, for 2"),
        ("example.com/rack", "needs room for 4 pods in one example.com/rack; the nearest is example.com/rack=a, for 2"),
        ("zone", "no node is in a topology domain (zone), which it requires"),
    ],
)
async def test_a_required_topology_is_one_domain(cluster: World, running: Running, level: str, nearest: str) -> None:
    """Two nodes have room for the gang together, but are in different domains; then one large enough comes."""
    for name in ("a", "b"):
        labels = {} if level == "node" else {names.NVLINK_LABEL: name, "example.com/rack": name}
        await cluster.node("n1" if name == "a" else "n2", 2, labels=labels)
    made = await create(cluster, "train", 4, required_topology=level)
    await until_objects(cluster.client, Pod, lambda pods: any(f"gang train: {nearest}" in reasons(pod) for pod in pods))
    labels = {names.NVLINK_LABEL: "c", "example.com/rack": "c", "topology.kubernetes.io/zone": "c"}
    await join(cluster, running, "n3", 2 if level != "node" else 4, labels)
    await join(cluster, running, "n4", 2, labels)
    assert await on_nodes(cluster, made) == ({"n3"} if level == "node" else {"n3", "n4"})


@pytest.mark.parametrize("label", ["batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index"])
async def test_pods_with_numbers_of_their_own_are_counted_together(
    cluster: World, running: Running, label: str
) -> None:
    """Pods of an Indexed Job differ by a label. Small nodes, more than are tried, do not hide the large one."""
    for at in range(MOST_DOMAINS + 1):
        await cluster.node(f"small-{at}", 1)
    made = [f"train-{at}" for at in range(4)]
    for at, name in enumerate(made):
        pod = member(name, "train", 4, required_topology="node")
        pod["metadata"]["labels"] = {label: str(at)}
        await cluster.pod(pod)
    nearest = "gang train: needs room for 4 pods in one node; the nearest is node small-"
    await until_objects(cluster.client, Pod, lambda pods: any(nearest in " ".join(reasons(pod)) for pod in pods))
    await join(cluster, running, "large", 4, {})
    assert await on_nodes(cluster, made) == {"large"}


async def test_shares_of_one_gpu(cluster: World, running: Running) -> None:
    """30% + 30% of one GPU, although the policy would fill the part that is free on the other."""
    await cluster.node("n1", 2)
    await cluster.pod(ours(gpu_pod("a", (60, 4))))
    await bound(cluster, "a")
    made = await create(cluster, "train", 3, core=30, required_topology="gpu")
    pods = await bound(cluster, *made)
    held = [of_pod(pods[name]) for name in made]
    assert len({uuid for one in held if one is not None for uuid, _ in one.held()}) == 1


async def test_a_preferred_topology_gives_way(cluster: World, running: Running) -> None:
    await cluster.node("n1", 3)
    await cluster.node("n2", 4)
    await cluster.node("n3", 2)
    assert await on_nodes(cluster, await create(cluster, "small", 4, preferred_topology="node")) == {"n2"}
    assert await on_nodes(cluster, await create(cluster, "large", 5, preferred_topology="node")) == {"n1", "n3"}


async def test_pods_without_gpus_are_a_gang_too(cluster: World, running: Running) -> None:
    await cluster.node("n1", 0, gpunode=False)
    made = await create(cluster, "mpi", 3, core=0)
    await bound(cluster, *made)


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({names.GANG_ANNOTATION: "g"}, "gpuplane.dev/gang-size is ''"),
        ({names.GANG_ANNOTATION: "g", names.GANG_SIZE_ANNOTATION: "-1"}, "gpuplane.dev/gang-size is '-1'"),
        ({names.GANG_SIZE_ANNOTATION: "2"}, "gpuplane.dev/gang-size is set without gpuplane.dev/gang"),
        ({names.GANG_ANNOTATION: "a\nERROR", names.GANG_SIZE_ANNOTATION: "2"}, r"gpuplane.dev/gang is 'a\nERROR'"),
        ({names.GANG_ANNOTATION: "g" * 254, names.GANG_SIZE_ANNOTATION: "2"}, f"gpuplane.dev/gang is '{'g' * 64}'."),
        (
            {
                names.GANG_ANNOTATION: "g",
                names.GANG_SIZE_ANNOTATION: "1",
                names.GANG_REQUIRED_TOPOLOGY_ANNOTATION: "rack",
            },
            "gpuplane.dev/gang-required-topology is 'rack'",
        ),
    ],
)
async def test_wrong_annotations_are_named(
    cluster: World, running: Running, annotations: dict[str, str], text: str
) -> None:
    await cluster.node("n1", 2)
    await cluster.pod(ours(gpu_pod("a", (60, 4), metadata={"annotations": annotations})))
    assert text in await refused(cluster, "a")


async def test_pods_that_disagree_wait_and_say_so(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2)
    await cluster.pod(member("a", "g", 2))
    await cluster.pod(member("b", "g", 3))
    assert "gang g: its pods differ in size" in await refused(cluster, "b")


async def test_a_gang_that_stays_half_bound_is_evicted_at_its_time_out(cluster: World, running: Running) -> None:
    """As a process leaves it that ended between two Bindings, with the room for the rest gone."""
    await cluster.node("n1", 2)
    await cluster.pod(ours(gpu_pod("other", (100, 0))))
    await bound(cluster, "other")
    made = [await cluster.pod(member(f"g-{at}", "g", 2, timeout_seconds="1")) for at in range(2)]
    assert "1 of 2 pods have room" in await refused(cluster, "g-1")
    mark = ",".join(sorted(pod["metadata"]["uid"][:8] for pod in made))
    binding = {
        "metadata": {"name": "g-0", "namespace": "default", "annotations": {names.GANG_ROUND_ANNOTATION: mark}},
        "target": {"kind": "Node", "name": "n1"},
    }
    await cluster.client.request("POST", Pod.RESOURCE.path("default", "g-0", "binding"), None, binding)
    await until_objects(cluster.client, Pod, lambda pods: {pod.metadata.name for pod in pods} == {"other", "g-1"})
    (event,) = await cluster.events("GangDissolved")
    assert "gang g: not all of its pods were bound in time" in event.message
    await cluster.end("other")
    await cluster.pod(member("g-0", "g", 2, timeout_seconds="1"))
    await bound(cluster, "g-0", "g-1")
