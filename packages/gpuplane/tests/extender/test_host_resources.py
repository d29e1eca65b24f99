"""CPU and memory of all pods in the ledger: they decide which free GPUs are worth keeping, and refuse no pod."""

from __future__ import annotations

from typing import Any

from gpuplane.sharing import NodeState
from tests.support.extender_world import Running, World, gpu_pod
from tests.support.fake_api import pod_of


def with_cpu(pod: dict[str, Any], cpu: str, memory: str = "1Gi") -> dict[str, Any]:
    for container in pod["spec"]["containers"]:
        container["resources"].setdefault("requests", {}).update({"cpu": cpu, "memory": memory})
    return pod


def plain_pod(name: str, cpu: str, **spec: Any) -> dict[str, Any]:
    """A pod without GPUs."""
    container = {"name": "c", "image": "app", "resources": {}}
    return with_cpu(
        {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [container], **spec}}, cpu
    )


def state(running: Running, node: str = "n1") -> NodeState:
    found = running.leader.cluster.ledger.node(node)
    assert found is not None
    return found


async def one_node(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2)
    await running.until(lambda: running.leader.cluster.ledger.node("n1"))


async def test_pods_with_and_without_gpus_hold_cpu_and_memory_until_they_end(cluster: World, running: Running) -> None:
    await one_node(cluster, running)
    assert (state(running).cpu_milli, state(running).host_memory_mib) == (64_000, 256 << 10)
    await cluster.pod(plain_pod("web", "2500m", nodeName="n1"))
    await running.until(lambda: state(running).cpu_milli == 61_500)
    assert state(running).host_memory_mib == 255 << 10
    share = await cluster.pod(with_cpu(gpu_pod("a", (30, 20)), "8"))
    assert await running.bind(share, "n1") == ""
    assert state(running).cpu_milli == 53_500, "also before a watch delivers the pod"
    await running.seen(share["metadata"]["uid"])
    assert state(running).cpu_milli == 53_500
    await cluster.end("web")
    await running.until(lambda: state(running).cpu_milli == 56_000)
    await cluster.delete("a")
    await running.until(lambda: state(running).cpu_milli == 64_000)


async def test_a_share_goes_where_the_cpu_suffices_for_the_gpus_that_stay_free(
    cluster: World, running: Running
) -> None:
    """Pods take 32 CPUs with a GPU: where pods without GPUs have used up the CPU, no later pod can use a free GPU."""
    for name in ("n1", "n2"):
        await cluster.node(name, 2)
    await cluster.pod(plain_pod("web", "40", nodeName="n2"))
    await running.until(
        lambda: (
            all(running.leader.cluster.ledger.node(name) for name in ("n1", "n2"))
            and state(running, "n2").cpu_milli == 24_000
        )
    )
    for number in range(8):
        running.leader.policies.seen(
            running.leader.filtering.pod_of(pod_of(with_cpu(gpu_pod(f"s{number}", whole=1), "32"))).request
        )
    assert await running.leader.policies.learn([node.gpus for node in running.leader.cluster.ledger.nodes()])
    pod = await cluster.pod(with_cpu(gpu_pod("a", whole=1), "16"))
    scores = {
        one["Host"]: one["Score"] for one in await running.call("/prioritize", {"pod": pod, "nodenames": ["n1", "n2"]})
    }
    assert scores["n2"] > scores["n1"], "the GPU of n2 would stay idle"


async def test_cpu_is_the_schedulers_decision(cluster: World, running: Running) -> None:
    """It has decided when it asks, and may know sooner than a watch that a pod has ended."""
    await one_node(cluster, running)
    await cluster.pod(plain_pod("web", "63", nodeName="n1"))
    await running.until(lambda: state(running).cpu_milli == 1_000)
    for name, pod in (("a", gpu_pod("a", (30, 20))), ("b", gpu_pod("b", (20, 20), (20, 4)))):
        made = await cluster.pod(with_cpu(pod, "8"))
        assert (await running.filter(made, ["n1"]))["NodeNames"] == ["n1"], name
        assert await running.bind(made, "n1") == ""
    running.well()
