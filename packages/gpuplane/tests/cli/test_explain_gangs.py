"""Explanations of pods that start together: of the gang, not of the pod by itself."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.pod_groups import PluginGroupSpec, PluginPodGroup
from gpuplane.explain.evictions import EVICTS, NONE
from gpuplane.explain.gangs import FITS, INCOMPLETE, NO_GROUP, NO_ROOM, GangDomain
from gpuplane.explain.scheduling_reading import SchedulingFacts
from gpuplane.scheduler.gangs.gang import GangSource, round_text
from gpuplane.scheduler.gangs.reading import ReadGroups
from kubekit.api.meta import ObjectMeta
from packages.gpuplane.tests.cli import explained_clusters as built
from packages.gpuplane.tests.cli.explained_pages import drawn

ONE_GPU = {names.GPU_RESOURCE: 1}


def gang(
    cluster: built.Cluster, size: int, *, there: int = 0, priority: int = 10, name: str = "train", **annotations: str
) -> list[dict[str, Any]]:
    """Pods of a gang; keywords are further annotations: `required_topology="node"`."""
    said = {names.GANG_ANNOTATION: name, names.GANG_SIZE_ANNOTATION: str(size)}
    said |= {f"gpuplane.dev/gang-{key.replace('_', '-')}": value for key, value in annotations.items()}
    spec = {"schedulerName": names.SCHEDULER_NAME, "priority": priority}
    return [cluster.pod(f"{name}-{at}", limits=ONE_GPU, annotations=dict(said), **spec) for at in range(there or size)]


def two_nodes(gpus: int = 4) -> built.Cluster:
    cluster = built.Cluster()
    for number in (1, 2):
        cluster.node(f"n{number}", gpus, labels={"example.com/rack": f"r{number}"})
    return cluster


def test_a_gang_that_is_not_complete_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its pods fits by itself, which is no answer."""
    cluster = two_nodes()
    pod, *_ = gang(cluster, 8, there=6)
    found = cluster.explain(pod)
    assert (found.gang.state, found.gang.size, found.gang.waiting, found.gang.bound) == (INCOMPLETE, 8, 6, 0)
    assert (found.runs_on, found.cures, found.evictions) == ("", (), None)
    page = drawn(found, monkeypatch, 80)
    assert " gang     train: 8 pods start together\n          6 waiting, 0 bound\n" in page
    assert "it starts when 2 more pods are there" in page
    assert " the pod by itself:\n 2 nodes   2  fits" in page


def test_a_gang_that_fits_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = two_nodes()
    pod = gang(cluster, 4)[2]
    found = cluster.explain(pod)
    assert (found.gang.state, found.runs_on) == (FITS, "n1")
    assert "all of it has room now" in drawn(found, monkeypatch, 80)


def test_the_domains_that_lack_room_and_who_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = two_nodes()
    cluster.whole("big", "n1/0")["spec"]["priority"] = 20
    cluster.whole("huge", "n2/0,1")["spec"]["priority"] = 20
    pod, *_ = gang(cluster, 4, required_topology="example.com/rack")
    found = cluster.explain(pod)
    assert found.gang.state == NO_ROOM
    assert found.gang.domains == (
        GangDomain("example.com/rack=r1", 3, False),
        GangDomain("example.com/rack=r2", 2, False),
    )
    assert [(one.pod, one.place, one.priority) for one in found.gang.held_by] == [("ml/big", "n1/0", 20)]
    assert found.evictions.state == NONE and found.evictions.why == ("no pod of lower priority than 10 runs",)
    page = drawn(found, monkeypatch, 80)
    assert " gang     train: 4 pods start together, in one example.com/rack\n" in page
    assert " room     for 3 of 4 at most in example.com/rack=r1\n" in page
    assert " held     pods with GPUs of example.com/rack=r1:\n          ml/big   n1/0   1 GPU   priority 20\n" in page


def test_a_domain_that_was_tried_says_what_the_next_pod_lacks() -> None:
    cluster = two_nodes()
    cluster.whole("big", "n1/0")["spec"]["priority"] = 0
    pod, *_ = gang(cluster, 8)
    found = cluster.explain(pod)
    [domain] = found.gang.domains
    assert (domain.domain, domain.room_for, domain.tried) == ("", 7, True)
    assert domain.lacks.startswith("0/2 nodes are available: ")
    assert (found.evictions.state, [one.pod for one in found.evictions.victims]) == (EVICTS, ["ml/big"])


def test_the_gpus_of_one_gpu_s_gang() -> None:
    cluster = built.Cluster()
    cluster.node("n1", 2)
    cluster.share("a", "n1/0", 50, 4)
    cluster.share("b", "n1/1", 70, 4)
    pods = gang(cluster, 6, required_topology="gpu", priority=0)
    for pod in pods:
        pod["spec"]["containers"][0]["resources"]["limits"] = {names.VCUDA_CORE: "10", names.VCUDA_MEMORY: "4"}
    found = cluster.explain(pods[0])
    assert [(one.domain, one.room_for) for one in found.gang.domains] == [("GPU 0 of n1", 5), ("GPU 1 of n1", 3)]
    assert [one.pod for one in found.gang.held_by] == ["ml/a"]


def test_a_half_bound_gang_says_when_it_is_dissolved(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = two_nodes(2)
    pods = gang(cluster, 3, timeout_seconds="300")
    digests = round_text([pod["metadata"]["uid"] for pod in pods])
    for pod in pods[:2]:
        pod["spec"]["nodeName"] = "n1"
        pod["metadata"]["annotations"][names.GANG_ROUND_ANNOTATION] = digests
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-05-01T12:05:00Z"}
        pod["status"] = {"phase": "Pending", "conditions": [bound]}
    cluster.whole("big", "n2/0,1")["spec"]["priority"] = 20
    found = cluster.explain(pods[2])
    assert (found.gang.bound, found.gang.waiting, found.gang.together) == (2, 1, 1)
    assert found.gang.dissolves_in == 240
    page = drawn(found, monkeypatch, 80)
    assert "1 waiting, 2 bound, 1 of them to be placed together now" in page
    assert "a part of it is bound: in 240 s that part is evicted" in page


def test_a_pod_group_that_is_missing_or_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = two_nodes()
    labels = {names.POD_GROUP_LABEL: "train"}
    pod = cluster.pod("train-0", limits=ONE_GPU, schedulerName=names.SCHEDULER_NAME)
    pod["metadata"]["labels"] = labels
    found = cluster.explain(pod)
    assert found.gang.state == NO_GROUP and "does not serve podgroups.scheduling.x-k8s.io" in found.gang.message
    cluster.scheduling = SchedulingFacts(groups=ReadGroups({GangSource.PLUGIN_GROUP: []}))
    page = drawn(cluster.explain(pod), monkeypatch, 80)
    assert " gang     train: its PodGroup does not exist yet" in page
    group = PluginPodGroup(metadata=ObjectMeta(name="train", namespace="ml"), spec=PluginGroupSpec(min_member=2))
    cluster.scheduling = SchedulingFacts(groups=ReadGroups({GangSource.PLUGIN_GROUP: [group]}))
    found = cluster.explain(pod)
    assert (found.gang.state, found.gang.size, found.gang.declared_by) == (INCOMPLETE, 2, "scheduling.x-k8s.io")
    unread = ReadGroups(unread=("podgroups.scheduling.x-k8s.io",))
    cluster.scheduling = SchedulingFacts(groups=unread, unread=unread.unread)
    assert "this user may not list podgroups.scheduling.x-k8s.io" in cluster.explain(pod).gang.message


def test_a_gang_of_one_pod_is_a_pod() -> None:
    cluster = two_nodes()
    [pod] = gang(cluster, 1)
    found = cluster.explain(pod)
    assert (found.gang, found.runs_on) == (None, "n1")


def test_pods_of_kube_scheduler_are_no_gang() -> None:
    cluster = two_nodes()
    pod, *_ = gang(cluster, 8, there=1)
    del pod["spec"]["schedulerName"]
    assert cluster.explain(pod).gang is None
