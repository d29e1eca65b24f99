"""filter, prioritize and bind over HTTP: a pod's GPUs, and the answers to all callers."""

from __future__ import annotations

import json

import pytest

from gpuplane import names
from gpuplane.sharing import of_pod
from tests.support.extender_world import MEMORY, Running, World, gpu_pod


async def two_nodes(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2)
    await cluster.node("n2", 2)
    await running.until(lambda: sum(1 for _ in running.leader.cluster.ledger.nodes()) == 2)


async def test_a_share_is_bound_with_its_assignment_in_the_same_write(cluster: World, running: Running) -> None:
    await two_nodes(cluster, running)
    pod = await cluster.pod(gpu_pod("a", (30, 20)))
    answer = await running.filter(pod, ["n1", "n2", "nowhere"])
    assert answer["NodeNames"] == ["n1", "n2"]
    assert answer["FailedAndUnresolvableNodes"] == {"nowhere": "the node is unknown"}
    assert answer["FailedNodes"] == {} and answer["Error"] == "" and answer["Nodes"] is None
    scores = {
        one["Host"]: one["Score"] for one in await running.call("/prioritize", {"pod": pod, "nodenames": ["n1", "n2"]})
    }
    assert sorted(scores) == ["n1", "n2"] and max(scores.values()) == 10
    assert await running.bind(pod, "n1") == ""
    bound = await cluster.get("a")
    assert bound.spec.node_name == "n1"
    assignment = of_pod(bound)
    assert assignment is not None
    (part,) = assignment.containers["c0"]
    assert (part.core, part.memory_mib, part.uuid) == (30, 5120, "GPU-n1-0")
    assert bound.metadata.annotations[names.PREDICATE_NODE_ANNOTATION] == "n1"
    assert bound.metadata.annotations[names.PREDICATE_INDEX_PREFIX + "0"] == "0"
    await running.seen(pod["metadata"]["uid"])
    assert len(running.leader.reservations) == 0
    assert await running.bind(pod, "n1") == "", "asked again, since the first answer got lost"
    running.well()


async def test_what_does_not_fit_is_told_in_words_that_can_be_counted(cluster: World, running: Running) -> None:
    await two_nodes(cluster, running)
    await cluster.node("unready", 2, ready=False)
    await running.until(lambda: running.leader.cluster.node("unready"))
    for index in range(4):
        held = await cluster.pod(gpu_pod(f"h{index}", (60, 10)))
        assert await running.bind(held, ["n1", "n2"][index % 2]) == ""
    pod = await cluster.pod(gpu_pod("a", (50, 10)))
    answer = await running.filter(pod, ["n1", "n2", "unready"])
    assert answer["NodeNames"] == []
    assert answer["FailedNodes"] == dict.fromkeys(["n1", "n2"], "no GPU has 50 percent core and 2560 MiB together")
    assert answer["FailedAndUnresolvableNodes"] == {"unready": "the node is not Ready"}
    assert await running.bind(pod, "n1") == (
        "n1: no GPU has 50 percent core and 2560 MiB together; kube-scheduler tries again by itself"
    )
    assert "not Ready" in await running.bind(pod, "unready")
    assert "unknown" in await running.bind(pod, "elsewhere")
    large = await cluster.pod(gpu_pod("b", (50, 100)))
    answer = await running.filter(large, ["n1"])
    assert answer["FailedAndUnresolvableNodes"] == {"n1": "no GPU has 50 percent core and 25600 MiB together"}
    running.well()


@pytest.mark.parametrize("path", ["/filter", "/scheduler/predicates"])
async def test_what_can_never_run_is_refused_everywhere_with_every_reason(
    cluster: World, running: Running, path: str
) -> None:
    await two_nodes(cluster, running)
    pod = await cluster.pod(gpu_pod("a", (150, 0), (30, 4)))
    answer = await running.filter(pod, ["n1", "n2"], path)
    assert answer["NodeNames"] == [] and set(answer["FailedAndUnresolvableNodes"]) == {"n1", "n2"}
    assert "150" in answer["FailedAndUnresolvableNodes"]["n1"]


async def test_a_pod_without_gpus_may_go_anywhere(cluster: World, running: Running) -> None:
    await two_nodes(cluster, running)
    pod = await cluster.pod(
        {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    )
    assert (await running.filter(pod, ["n1", "unknown"]))["NodeNames"] == ["n1", "unknown"]
    assert "requests no GPU" in await running.bind(pod, "n1")


async def test_shares_are_free_again_when_their_pod_ends_or_is_gone(cluster: World, running: Running) -> None:
    await cluster.node("n1", 1)
    ledger = running.leader.cluster.ledger
    await running.until(lambda: ledger.node("n1"))
    for name, finish in (("a", cluster.end), ("b", cluster.delete)):
        pod = await cluster.pod(gpu_pod(name, whole=1))
        assert await running.bind(pod, "n1") == ""
        other = await cluster.pod(gpu_pod(f"{name}-other", (10, 1)))
        assert (await running.filter(other, ["n1"]))["NodeNames"] == []
        await finish(name)
        await running.until(lambda: ledger.node("n1").core == (100,))
        assert (await running.filter(other, ["n1"]))["NodeNames"] == ["n1"]
    running.well()


async def test_between_filter_and_bind_the_next_pod_is_sent_elsewhere(cluster: World, running: Running) -> None:
    await two_nodes(cluster, running)
    pods = [await cluster.pod(gpu_pod(f"p{index}", whole=2)) for index in range(3)]
    for pod, expected in zip(pods[:2], ("n1", "n2"), strict=True):
        kept = (await running.filter(pod, ["n1", "n2"]))["NodeNames"]
        assert expected in kept
        if len(kept) > 1:
            scores = await running.call("/prioritize", {"Pod": pod, "NodeNames": kept})
            assert [one["Host"] for one in scores if one["Score"] == 10] == [expected]
    # Tentative reservations refuse no pod: the third may still come first.
    assert (await running.filter(pods[2], ["n1", "n2"]))["NodeNames"] == ["n1", "n2"]
    assert await running.bind(pods[2], "n1") == ""
    assert "2 whole GPUs asked, 0 wholly free" in await running.bind(pods[0], "n1")
    assert await running.bind(pods[1], "n2") == ""
    running.well()


async def test_a_lost_gpu_is_not_given_and_one_that_recovers_is(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2)
    ledger = running.leader.cluster.ledger
    await cluster.set_gpus("n1", 2, health={"GPU-n1-0": "Xid 79"})
    await running.until(lambda: ledger.node("n1") and not ledger.node("n1").gpus[0].usable)
    pod = await cluster.pod(gpu_pod("a", whole=2))
    assert (await running.filter(pod, ["n1"]))["NodeNames"] == []
    await cluster.set_gpus("n1", 2)
    await running.until(lambda: ledger.node("n1").gpus[0].usable)
    assert await running.bind(pod, "n1") == ""


async def test_a_pod_bound_past_the_extender_is_counted(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2)
    await running.until(lambda: running.leader.cluster.ledger.node("n1"))
    past = await cluster.pod(gpu_pod("past", whole=1, nodeName="n1"))
    await running.seen(past["metadata"]["uid"])
    both = await cluster.pod(gpu_pod("both", whole=2))
    answer = await running.filter(both, ["n1"])
    assert answer["FailedNodes"] == {"n1": "2 whole GPUs asked, 1 wholly free"}


async def test_a_tenants_own_annotation_gives_nothing(cluster: World, running: Running) -> None:
    await cluster.node("n1", 1)
    await running.until(lambda: running.leader.cluster.ledger.node("n1"))
    forged = {
        "node": "n1",
        "containers": {"c0": [{"uuid": "GPU-n1-0", "index": 0, "core": 100, "memory_mib": MEMORY}]},
    }
    said = {names.ASSIGNMENT_ANNOTATION: json.dumps(forged), names.PREDICATE_NODE_ANNOTATION: "n1"}
    forger = await cluster.pod(gpu_pod("forger", (10, 4), metadata={"annotations": said}))
    other = await cluster.pod(gpu_pod("other", (90, 40)))
    assert await running.bind(other, "n1") == ""
    assert await running.bind(forger, "n1") == ""
    assignment = of_pod(await cluster.get("forger"))
    assert assignment is not None and assignment.containers["c0"][0].core == 10
    # A later change by a tenant has no effect either.
    await running.seen(forger["metadata"]["uid"])
    await cluster.client.patch(
        type(await cluster.get("forger")), "forger", {"metadata": {"annotations": said}}, "default"
    )
    await running.until(lambda: running.leader.cluster.pods.events > 0)
    assert running.leader.cluster.ledger.node("n1").core == (0,)
    running.well()
