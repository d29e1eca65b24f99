"""Why `gpuplane explain` counts a GPU out: held, short of core or memory, of another model, lost."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.gpunode import Summary
from gpuplane.cli.explain_text import NODES
from packages.gpuplane.tests.cli import explained_clusters as built
from packages.gpuplane.tests.cli.explained_pages import SHARE, changes, drawn


@pytest.fixture
def cluster() -> Any:
    return built.Cluster()


def test_whole_gpus_that_are_not_together(cluster, monkeypatch):
    for node in ("a", "b"):
        cluster.node(node)
        cluster.whole(f"w-{node}", f"{node}/0,1")
    cluster.share("s", "a/2", 30, 1)
    found = cluster.explain(cluster.pod("p", limits={names.GPU_RESOURCE: 3}))
    assert [(t.count, t.reason) for t in found.gpu_reasons] == [(4, "whole"), (3, "together"), (1, "held")]
    assert changes(found) == {
        "ask 2 instead of 3 GPUs": "b/2,3",
        "ml/w-a ends or is deleted": "a/0,1,3",
        "add a node like a": "the new node",
    }
    assert "would do, but too few on one node" in drawn(found, monkeypatch, 80)


def test_more_gpus_than_any_node_has_can_never_run(cluster):
    cluster.node("a", 4)
    found = cluster.explain(cluster.pod("p", limits={names.GPU_RESOURCE: 5}))
    assert not found.can_ever_run and changes(found) == {"ask 4 instead of 5 GPUs": "a"}


def test_a_selector_of_models(cluster):
    cluster.node("a", 2)
    pod = cluster.pod("p", limits=SHARE, annotations={names.GPU_MODELS_ANNOTATION: "H100"})
    found = cluster.explain(pod)
    assert [(t.count, t.reason) for t in found.gpu_reasons] == [(2, "model")]
    assert changes(found) == {f"drop the annotation {names.GPU_MODELS_ANNOTATION}": "a/0"}


def test_without_the_extender_whole_gpus_are_counted(cluster, monkeypatch):
    """No pod says which GPUs it holds, so only their number is known."""
    cluster.node("a", 4, offers=(names.GPU_RESOURCE,), lost=(3,))
    cluster.pod("w", limits={names.GPU_RESOURCE: 2}, on="a")
    found = cluster.explain(cluster.pod("p", limits={names.GPU_RESOURCE: 2}))
    assert [tally.reason for tally in found.node_reasons] == ["2 whole GPUs asked, 1 free"]
    assert {tally.reason: tally.count for tally in found.gpu_reasons} == {"whole": 2, "together": 1, "lost": 1}
    assert "1 of 4 wholly free; which are held is unknown" in drawn(found, monkeypatch)
    assert changes(found)["ask 1 instead of 2 GPUs"] == "a"


@pytest.mark.parametrize("limits", [{names.GPU_RESOURCE: 1}, SHARE])
@pytest.mark.parametrize("told", [True, False], ids=["kubelet counts them", "plugin started after the loss"])
@pytest.mark.parametrize("extender", [True, False])
def test_a_node_whose_gpus_are_all_lost_is_not_said_to_offer_none(cluster, monkeypatch, limits, told, extender):
    cluster.node("a", 1, lost=(0,))
    cluster.node("b", 2, lost=(0, 1))
    if not told:
        for node in cluster.nodes:
            node["status"]["capacity"] = node["status"]["allocatable"]
    cluster.node("other", 1)
    held = {names.GPU_RESOURCE: 1}
    cluster.whole("w", "other/0") if extender else cluster.pod("w", limits=held, on="other")
    found = cluster.explain(cluster.pod("p", limits=limits))
    assert {tally.reason: tally.count for tally in found.node_reasons}["all of its GPUs are lost"] == 2
    assert [(tally.count, tally.reason, tally.nearest) for tally in found.gpu_reasons][-1] == (3, "lost", "a/0, b/0")
    assert found.gpus == 4 and found.can_ever_run
    lines = drawn(found, monkeypatch, 80).splitlines()
    assert "           3  lost          a/0, b/0" in lines and " a       lost" in [line.rstrip() for line in lines]


def test_nothing_is_free_of_a_lost_gpu_so_that_its_node_is_none_of_the_nearest(cluster, monkeypatch):
    for number in range(NODES + 1):
        cluster.node(f"a{number}", 1, lost=(0,))
    cluster.node("z", 1)
    cluster.share("s", "z/0", 70, 2)
    found = cluster.explain(cluster.pod("p", limits=SHARE))
    free = {node.node: [(gpu.core, gpu.memory_mib) for gpu in node.gpus] for node in found.free}
    assert (free["a0"], free["z"]) == ([(0, 0)], [(30, 13 * 1024)])
    assert " z      30%  13G core" in drawn(found, monkeypatch, 80)


def test_what_a_node_would_not_offer_either_is_not_blamed_on_its_lost_gpu(cluster):
    cluster.node("a", 1, lost=(0,), offers=(names.GPU_RESOURCE,))
    cluster.node("new", 1, lost=(0,), summary=Summary(stage="driver", waits_for="kernel-headers"))
    found = cluster.explain(cluster.pod("p", limits=SHARE))
    assert {tally.reason for tally in found.node_reasons} == {
        "tencent.com/vcuda-core not offered",
        "not prepared: waits for kernel-headers",
    }
    found = cluster.explain(cluster.pod("q", limits={"nvidia.com/mig-1g.10gb": 1}))
    assert {tally.reason for tally in found.node_reasons} >= {"nvidia.com/mig-1g.10gb not offered"}


def test_a_lost_gpu_that_would_help_is_a_cure(cluster):
    """Its holders keep it, so that one that another pod holds is no cure."""
    cluster.node("held", 1, lost=(0,))
    cluster.pod("keeps", limits={names.GPU_RESOURCE: 1}, on="held")
    cluster.node("a", 2, lost=(0, 1))
    pod = cluster.pod("p", limits={names.GPU_RESOURCE: 1})
    repair = "bring GPUs 0,1 of a back: gpuplane status names the way"
    found = changes(cluster.explain(pod))
    assert found == {repair: "a", "add a node like a": "the new node"}
    cluster.whole("w", "a/0")
    assert changes(cluster.explain(pod))[repair] == "a/1"


def test_containers_that_fit_singly_and_not_together(cluster):
    cluster.node("a", 1)
    pod = cluster.pod("p", limits={names.VCUDA_CORE: 60})
    pod["spec"]["containers"].append({**pod["spec"]["containers"][0], "name": "side"})
    found = cluster.explain(pod)
    assert found.asks == "main 60% core of one GPU, side 60% core of one GPU" and not found.can_ever_run
    assert [tally.reason for tally in found.node_reasons] == ["no room for its 2 containers together"]
