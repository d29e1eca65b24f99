"""Pods that name the scheduler get a node and GPUs; the others are left alone."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.sharing import of_pod
from kubekit.api.core import Event
from tests.support.extender_world import Running, World, gpu_pod
from tests.support.scheduled_pods import bound, ours, plain, refused
from tests.support.until import until_objects


async def test_a_share_is_bound_with_its_assignment_and_an_event(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2)
    await cluster.pod(ours(gpu_pod("a", (30, 20))))
    pods = await bound(cluster, "a")
    assignment = of_pod(pods["a"])
    assert assignment is not None
    (part,) = assignment.containers["c0"]
    assert (part.core, part.memory_mib, part.uuid) == (30, 5120, "GPU-n1-0")
    (text,) = await until_objects(
        cluster.client, Event, lambda events: [one.message for one in events if one.reason == "Scheduled"]
    )
    assert text == "Successfully assigned default/a to n1"


async def test_pods_of_other_schedulers_are_left_alone(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2)
    await cluster.pod(gpu_pod("theirs", (30, 20)))
    await cluster.pod(ours(gpu_pod("gated", (30, 20)), schedulingGates=[{"name": "example.com/hold"}]))
    await cluster.pod(ours(gpu_pod("mine", (30, 20))))
    pods = await bound(cluster, "mine")
    assert not pods["theirs"].spec.node_name and not pods["gated"].spec.node_name


async def test_a_pod_without_gpus_goes_by_all_filters_also_to_a_node_without_gpus(
    cluster: World, running: Running
) -> None:
    await cluster.node("gpu", 1, labels={"pool": "gpu"})
    await cluster.node("web", 0, labels={"pool": "web"}, gpunode=False)
    await cluster.pod(plain("a", nodeSelector={"pool": "web"}))
    pods = await bound(cluster, "a")
    assert pods["a"].spec.node_name == "web"
    assert not pods["a"].metadata.annotations


async def test_a_waiting_pod_is_bound_as_soon_as_a_share_is_free(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2)
    for name in ("a", "b"):
        await cluster.pod(ours(gpu_pod(name, (60, 20))))
    await bound(cluster, "a", "b")
    await cluster.pod(ours(gpu_pod("late", (50, 10))))
    assert (await refused(cluster, "late")).startswith(
        "0/1 nodes are available: 1 no GPU has 50% core and 2560 MiB together. no new claims to deallocate, preemption:"
    )
    warned = await until_objects(
        cluster.client, Event, lambda events: [one for one in events if one.reason == "FailedScheduling"]
    )
    assert [one.type for one in warned] == ["Warning"]
    await cluster.delete("a")
    pods = await bound(cluster, "late")
    assert of_pod(pods["late"]) is not None


@pytest.mark.parametrize(
    ("cause", "cure"),
    [("taint", "untolerated taint"), ("cpu", "Insufficient cpu"), ("label", "node affinity/selector")],
)
async def test_a_waiting_pod_is_woken_by_what_it_waits_for(
    cluster: World, running: Running, cause: str, cure: str
) -> None:
    await cluster.node("n1", 1)
    patches: dict[str, tuple[Any, Any]] = {
        "taint": ({"spec": {"taints": [{"key": "held", "effect": "NoSchedule"}]}}, {"spec": {"taints": None}}),
        "cpu": ({}, {}),
        "label": ({}, {"metadata": {"labels": {"pool": "gpu"}}}),
    }
    before, after = patches[cause]
    await cluster.client.request("PATCH", "/api/v1/nodes/n1", None, before, "application/merge-patch+json")
    pod = ours(gpu_pod("a", (30, 20)))
    if cause == "label":
        pod["spec"]["nodeSelector"] = {"pool": "gpu"}
    if cause == "cpu":
        await cluster.pod(plain("web", "63"))
        await bound(cluster, "web")
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "8"
    await cluster.pod(pod)
    assert cure in await refused(cluster, "a")
    if cause == "cpu":
        await cluster.delete("web")
    else:
        await cluster.client.request("PATCH", "/api/v1/nodes/n1", None, after, "application/merge-patch+json")
    await bound(cluster, "a")


async def test_a_quota_that_is_raised_wakes_the_pods_of_the_namespace(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2, labels={names.QUOTA_MODEL_LABEL: "T4"})
    await cluster.quota('{"default": {"quota": {"T4": 0.2}}}')
    await running.until(lambda: running.leader.quotas("default") is not None)
    await cluster.pod(ours(gpu_pod("a", (30, 20))))
    assert "ExceedsGPUQuota" in await refused(cluster, "a")
    await cluster.quota('{"default": {"quota": {"T4": 1}}}')
    await bound(cluster, "a")


async def test_a_pod_that_is_not_supported_holds_up_no_equal_pod(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2)
    group = {"scheduling.k8s.io/group-name": "training"}
    await cluster.pod(ours(gpu_pod("group", (30, 20), metadata={"annotations": group})))
    await refused(cluster, "group")
    await cluster.pod(ours(gpu_pod("equal", (30, 20))))
    pods = await bound(cluster, "equal")
    assert not pods["group"].spec.node_name


async def test_a_pod_group_waits_and_says_so(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2)
    annotations = {"scheduling.k8s.io/group-name": "training"}  # Volcano's
    await cluster.pod(ours(gpu_pod("a", (30, 20), metadata={"annotations": annotations})))
    assert "pod groups (scheduling.k8s.io/group-name)" in await refused(cluster, "a")


async def test_the_extender_sees_what_the_scheduler_holds_and_the_other_way_round(
    cluster: World, running: Running
) -> None:
    await cluster.node("n1", 1)
    theirs = await cluster.pod(gpu_pod("theirs", (60, 20)))
    assert await running.bind(theirs, "n1") == ""
    await cluster.pod(ours(gpu_pod("a", (50, 20))))
    assert "Insufficient tencent.com/vcuda-core" in await refused(cluster, "a")
    await cluster.pod(ours(gpu_pod("b", (30, 20))))
    await bound(cluster, "b")
    another = await cluster.pod(gpu_pod("another", (20, 4)))
    assert (await running.filter(another, ["n1"]))["NodeNames"] == []
