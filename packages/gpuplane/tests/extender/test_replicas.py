"""Nodes whose `nvidia.com/gpu` are replicas or MIG devices: kube-scheduler counts them, and the extender lets it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.scheduler.drift import BYPASSED
from gpuplane.sharing import of_pod
from kubekit.api.core import Node
from packages.gpuplane.tests.extender.test_conformance import bind
from tests.support.extender_world import Running, World, extender, gpu_pod, http

WAITS = "1 whole GPU asked, 0 wholly free"


async def offer(cluster: World, node: str, count: int, **more: str) -> None:
    """Make the node offer so many `nvidia.com/gpu`, and no shares unless `more` says so."""
    amounts = {names.GPU_RESOURCE: str(count), names.VCUDA_CORE: "0", names.VCUDA_MEMORY: "0", **more}
    status = {"capacity": amounts, "allocatable": amounts}
    await cluster.client.patch(Node, node, {"status": status}, subresource="status")


async def replicas(cluster: World, running: Running, count: int = 10) -> None:
    """One GPU, offered as ten."""
    await cluster.node("n1", 1)
    await offer(cluster, "n1", count)
    await running.until(lambda: (state := running.leader.cluster.ledger.node("n1")) and state.by_count)


async def run(cluster: World, running: Running, *pods: str, node: str = "n1") -> list[dict[str, Any]]:
    made = [await cluster.pod(gpu_pod(name, whole=1)) for name in pods]
    for pod in made:
        assert (await running.filter(pod, [node]))["NodeNames"] == [node]
        assert await running.bind(pod, node) == ""
    await running.seen(*(pod["metadata"]["uid"] for pod in made))
    return made


async def test_ten_pods_share_a_gpu_of_ten_replicas(cluster: World, running: Running) -> None:
    await replicas(cluster, running)
    made = await run(cluster, running, *(f"p{at}" for at in range(10)))
    for pod in made:
        bound = await cluster.get(pod["metadata"]["name"])
        assert bound.spec.node_name == "n1" and of_pod(bound) is None
        assert bound.metadata.annotations == {}, "a plain Binding"
    state = running.leader.cluster.ledger.node("n1")
    assert state is not None and state.core == (100,)
    assert len(running.leader.reservations) == 0
    assert await running.bind(made[0], "n1") == "", "asked again, since the first answer got lost"
    await running.leader._recorder.flush()
    assert await cluster.events("Placed") == []


async def test_gauges_of_gpus_count_the_nodes_that_the_extender_gives_out(cluster: World, running: Running) -> None:
    """The operator's gauges count every node."""
    await replicas(cluster, running)
    await run(cluster, running, "on-a-replica")
    await cluster.node("n2", 2)
    await running.until(lambda: running.leader.cluster.ledger.node("n2"))

    async def gauges() -> tuple[str, str]:
        text = (await http(running.port, "GET", "/metrics")).body.decode()
        found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return found["gpuplane_scheduler_gpus"], found["gpuplane_scheduler_free_gpus"]

    assert await gauges() == ("2", "2")
    await run(cluster, running, "whole", node="n2")
    assert await gauges() == ("2", "1")
    share = await cluster.pod(gpu_pod("share", (30, 4)))
    assert (await running.filter(share, ["n2"]))["NodeNames"] == ["n2"]
    assert await running.bind(share, "n2") == ""
    assert await gauges() == ("2", "0.7")


async def test_mig_devices_under_the_name_of_gpus_are_not_counted_as_gpus(cluster: World, running: Running) -> None:
    await cluster.node("n1", 1)
    gpu = {"index": 0, "uuid": "GPU-n1-0", "model": "A100", "memoryMib": 40960, "mig": "enabled"}
    await cluster.client.patch(GPUNode, "n1", {"status": {"gpus": [gpu]}})
    await offer(cluster, "n1", 1)  # no more devices than GPUs: only that the GPU is cut tells
    await running.until(lambda: (state := running.leader.cluster.ledger.node("n1")) and state.by_count)
    await run(cluster, running, "a", "b")


async def test_pods_on_replicas_are_no_drift_after_a_restart(cluster: World, running: Running) -> None:
    await replicas(cluster, running)
    await run(cluster, running, "a", "b")
    past = await cluster.pod(gpu_pod("past", whole=1))
    await bind(cluster, past, "n1")
    await running.seen(past["metadata"]["uid"])
    async with extender(cluster.client) as second:
        inside = second.leader.cluster
        state = inside.ledger.node("n1")
        assert state is not None and state.core == (100,)
        assert (len(inside.by_count), inside.guessed, inside.unplaced) == (3, set(), {})
        await run(cluster, second, "c")
        second.well()
    await running.leader._recorder.flush()
    assert await cluster.events(BYPASSED) == []


async def test_a_selector_holds_for_replicas_too(cluster: World, running: Running) -> None:
    await replicas(cluster, running)
    for name, model, nodes in (("t4", "T4", ["n1"]), ("a100", "A100", [])):
        metadata = {"annotations": {names.GPU_MODELS_ANNOTATION: model}}
        pod = await cluster.pod(gpu_pod(name, whole=1, metadata=metadata))
        assert (await running.filter(pod, ["n1"]))["NodeNames"] == nodes
        assert (await running.bind(pod, "n1") == "") == bool(nodes)


async def test_no_node_of_replicas_is_better_than_another(cluster: World, running: Running) -> None:
    await replicas(cluster, running)
    await cluster.node("n2", 1)
    await offer(cluster, "n2", 4)
    await running.until(lambda: (state := running.leader.cluster.ledger.node("n2")) and state.by_count)
    pod = await cluster.pod(gpu_pod("a", whole=1))
    scores = await running.call("/prioritize", {"pod": pod, "nodenames": ["n1", "n2"]})
    assert [one["Score"] for one in scores] == [0, 0]


async def test_a_replica_comes_before_a_whole_gpu(cluster: World, running: Running) -> None:
    """A pod that requests one GPU leaves whole GPUs to pods that request several."""
    await replicas(cluster, running)
    await cluster.node("n2", 2)
    await running.until(lambda: running.leader.cluster.ledger.node("n2"))

    async def scores(pod: dict[str, Any]) -> dict[str, int]:
        found = await running.call("/prioritize", {"pod": pod, "nodenames": ["n1", "n2"]})
        return {one["Host"]: one["Score"] for one in found}

    assert await scores(await cluster.pod(gpu_pod("one", whole=1))) == {"n1": 10, "n2": 0}
    found = await scores(await cluster.pod(gpu_pod("two", whole=2)))
    assert found["n2"] > found["n1"] == 0


async def test_a_quota_counts_replicas_as_the_parts_of_gpus_that_they_are(cluster: World, running: Running) -> None:
    """Ten pods on ten replicas use the one GPU of the quota; the eleventh pod is refused."""
    await cluster.node("n1", 2, labels={names.QUOTA_MODEL_LABEL: "T4"})
    await offer(cluster, "n1", 20)
    await running.until(lambda: (state := running.leader.cluster.ledger.node("n1")) and state.by_count)
    await cluster.quota('{"default": {"quota": {"T4": 1}}}')
    await running.until(lambda: running.leader.quotas("default"))
    await run(cluster, running, *(f"p{at}" for at in range(10)))
    assert running.leader.cluster.usage.used("default", "T4") == 100
    pod = await cluster.pod(gpu_pod("p10", whole=1))
    why = (await running.filter(pod, ["n1"]))["FailedNodes"]["n1"]
    assert why.startswith("ExceedsGPUQuota: namespace default uses 1 of 1 T4 (p0 0.1 + p1 0.1 +")
    await cluster.end("p0")
    await running.until(lambda: running.leader.cluster.usage.used("default", "T4") == 90)
    assert (await running.filter(pod, ["n1"]))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("verb", ["/filter", "/scheduler/predicates"])
async def test_whole_gpus_and_shares_stay_the_extenders(cluster: World, running: Running, verb: str) -> None:
    """A node changes from whole GPUs to replicas and back, and to replicas together with shares; pods stay."""
    ledger = running.leader.cluster.ledger
    await cluster.node("n1", 1)
    await offer(cluster, "n1", 1)
    await running.until(lambda: ledger.node("n1"))
    (held,) = await run(cluster, running, "held")
    assert of_pod(await cluster.get("held")) is not None
    pod = await cluster.pod(gpu_pod("a", whole=1))
    assert (await running.filter(pod, ["n1"], verb))["FailedNodes"] == {"n1": WAITS}
    await offer(cluster, "n1", 10)
    await running.until(lambda: ledger.node("n1").by_count)
    assert (await running.filter(pod, ["n1"], verb))["NodeNames"] == ["n1"]
    await bind(cluster, pod, "n1")
    await running.seen(pod["metadata"]["uid"])
    await cluster.delete("held")
    await running.until(lambda: held["metadata"]["uid"] not in running.leader.cluster.by_uid)
    assert ledger.node("n1").core == (100,)
    for back in ({}, {names.VCUDA_CORE: "100"}):
        await offer(cluster, "n1", 10 if back else 1, **back)
        await running.until(lambda: not ledger.node("n1").by_count)
        assert ledger.node("n1").core == (0,), "the pod that stayed holds the GPU"
        more = await cluster.pod(gpu_pod("more", whole=1))
        assert (await running.filter(more, ["n1"], verb))["FailedNodes"] == {"n1": WAITS}
        await cluster.delete("more")
        await offer(cluster, "n1", 10)
        await running.until(lambda: ledger.node("n1").by_count and ledger.node("n1").core == (100,))


async def test_kube_scheduler_evicts_for_a_replica_whom_it_chose(cluster: World, running: Running) -> None:
    await replicas(cluster, running, 2)
    made = await run(cluster, running, "a", "b")
    pod = await cluster.pod(gpu_pod("urgent", whole=1))
    pod["spec"]["priority"] = 100
    victims = {"n1": {"Pods": [{"UID": made[0]["metadata"]["uid"]}], "NumPDBViolations": 0}}
    answer = await running.call("/preempt", {"Pod": pod, "NodeNameToMetaVictims": victims})
    chosen = answer["NodeNameToMetaVictims"]["n1"]["Pods"]
    assert chosen == [{"UID": made[0]["metadata"]["uid"]}]
