"""Queues on a cluster: limits, turns by fair share, and borrowed GPUs that are taken back."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from gpuplane.api.gpuqueue import GPUQueue
from gpuplane.scheduler.pods.model import PodModel
from gpuplane.scheduler.queues.tree import QueueTree
from gpuplane.scheduler.queues.watch import NOT_AS_WRITTEN, REST_FACTOR
from kubekit.api.core import Event, Pod
from tests.support.extender_world import Running, World, gpu_pod
from tests.support.scheduled_pods import bound, ours, plain, refused
from tests.support.until import until_objects

ENDS_AT_ONCE = {"terminationGracePeriodSeconds": 0}


async def queues(cluster: World, running: Running, **specs: dict[str, Any]) -> None:
    """Create queues, and a namespace of the same name for each that names none and has no queue below it."""
    parents = {spec.get("parent") for spec in specs.values()}
    for name, spec in specs.items():
        if name not in parents:
            spec.setdefault("namespaces", [name])
            for namespace in spec["namespaces"]:
                body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
                await cluster.client.request("POST", "/api/v1/namespaces", None, body)
        await cluster.client.create({"metadata": {"name": name}, "spec": spec}, resource=GPUQueue.RESOURCE)
    await known(running, *specs)


async def known(running: Running, *names: str) -> None:
    pods = running.leader.pods
    assert pods is not None
    await running.until(lambda: set(names) <= {queue.name for queue in pods.model.fair.tree})


def pod_in(namespace: str, name: str, core: int = 100, **spec: Any) -> dict[str, Any]:
    return ours(gpu_pod(name, (core, 4 if core < 100 else 0), namespace=namespace), **ENDS_AT_ONCE, **spec)


async def fill(cluster: World, namespace: str, count: int, **spec: Any) -> None:
    """Bound pods of one GPU each."""
    for at in range(count):
        await cluster.pod(pod_in(namespace, f"{namespace}-{at}", **spec))
        await bound(cluster, f"{namespace}-{at}")


async def on_nodes(cluster: World, namespace: str) -> list[str]:
    pods = await cluster.client.list(Pod, namespace)
    return sorted(pod.metadata.name for pod in pods if pod.spec.node_name and not pod.metadata.deletion_timestamp)


async def test_a_pod_over_its_queues_limit_waits_and_is_woken(cluster: World, running: Running) -> None:
    await cluster.node("n1", 4)
    await queues(cluster, running, ml={"limit": {"gpus": 2}, "guaranteed": {"gpus": 1}})
    await fill(cluster, "ml", 2)
    await cluster.pod(pod_in("ml", "late", 50))
    text = await refused(cluster, "late")
    assert "queue ml holds 2 GPUs (1 GPUs guaranteed, 1 GPUs borrowed), and this pod needs 0.5 GPUs of at most" in text
    assert text.count("2 GPUs") == 2
    await cluster.delete("ml-0", "ml")
    await bound(cluster, "late")


async def test_a_raised_limit_wakes_too(cluster: World, running: Running) -> None:
    await cluster.node("n1", 4)
    await queues(cluster, running, ml={"limit": {"gpus": 1}})
    await fill(cluster, "ml", 1)
    await cluster.pod(pod_in("ml", "late"))
    await refused(cluster, "late")
    await cluster.client.patch(GPUQueue, "ml", {"spec": {"limit": {"gpus": 2}}})
    await bound(cluster, "late")


async def test_the_limit_of_a_queue_above_holds_for_all_below_it(cluster: World, running: Running) -> None:
    await cluster.node("n1", 4)
    await queues(cluster, running, org={"limit": {"cpu": 2}}, a={"parent": "org"}, b={"parent": "org"})
    await cluster.pod(plain("one", "2", metadata={"namespace": "a"}))
    await bound(cluster, "one")
    await cluster.pod(plain("two", "500m", metadata={"namespace": "b"}))
    assert "queue b of org: org holds 2 CPUs (0 CPUs guaranteed, 2 CPUs borrowed)" in await refused(cluster, "two")


async def test_inside_a_full_queue_a_pod_of_higher_priority_evicts(cluster: World, running: Running) -> None:
    await cluster.node("n1", 4)
    body: dict[str, Any] = {"metadata": {"name": "high"}, "value": 1000}
    await cluster.client.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", None, body)
    await queues(cluster, running, ml={"limit": {"gpus": 2}})
    await fill(cluster, "ml", 2)
    await cluster.pod(pod_in("ml", "urgent", priorityClassName="high"))
    await bound(cluster, "urgent")
    assert len(await on_nodes(cluster, "ml")) == 2


async def test_queues_take_turns_by_their_share(cluster: World, running: Running) -> None:
    """Six GPUs for two queues with more pods than that, and weights of 2 to 1."""
    await queues(cluster, running, a={"weight": 2}, b={})
    for at in range(8):  # they wait: there is no node
        await cluster.pod(pod_in("a", f"a-{at}"))
    for at in range(8):
        await cluster.pod(pod_in("b", f"b-{at}"))
    await refused(cluster, "b-7")
    await cluster.node("n1", 6, gpunode=False)
    await until_objects(cluster.client, Pod, lambda pods: sum(bool(pod.spec.node_name) for pod in pods) == 6)
    assert (len(await on_nodes(cluster, "a")), len(await on_nodes(cluster, "b"))) == (4, 2)


async def test_a_borrowed_queue_is_reclaimed_and_no_more_than_that(cluster: World, running: Running) -> None:
    """`b` holds all eight GPUs, four of them borrowed; `a` gets the four that are guaranteed to it, whatever the
    priority of the pods, and not one more.
    """
    await cluster.node("n1", 8)
    body: dict[str, Any] = {"metadata": {"name": "high"}, "value": 1000}
    await cluster.client.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", None, body)
    await queues(cluster, running, a={"guaranteed": {"gpus": 4}}, b={"guaranteed": {"gpus": 4}})
    await fill(cluster, "b", 8, priorityClassName="high")
    for at in range(5):
        await cluster.pod(pod_in("a", f"a-{at}"))
    await until_objects(
        cluster.client,
        Pod,
        lambda pods: sum(pod.metadata.namespace == "a" and bool(pod.spec.node_name) for pod in pods) == 4,
    )
    await until_objects(
        cluster.client, Pod, lambda pods: any("No preemption victims" in text for pod in pods for text in said(pod))
    )
    assert (len(await on_nodes(cluster, "a")), len(await on_nodes(cluster, "b"))) == (4, 4)
    for at in range(2):  # what was evicted comes again, and waits
        await cluster.pod(pod_in("b", f"again-{at}", priorityClassName="high"))
    await refused(cluster, "again-1")
    assert (len(await on_nodes(cluster, "a")), len(await on_nodes(cluster, "b"))) == (4, 4)
    texts = await until_objects(
        cluster.client, Event, lambda events: [one.message for one in events if one.reason == "Preempted"]
    )
    assert texts[0].endswith(": queue a takes back what is guaranteed to it and queue b has borrowed")
    running.well()


def said(pod: Pod) -> list[str]:
    return [one.message for one in pod.status.conditions if (one.type, one.status) == ("PodScheduled", "False")]


async def test_priority_does_not_reach_into_another_queue(cluster: World, running: Running) -> None:
    await cluster.node("n1", 2)
    body: dict[str, Any] = {"metadata": {"name": "high"}, "value": 1000}
    await cluster.client.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", None, body)
    await queues(cluster, running, a={}, b={})
    await fill(cluster, "b", 2)
    await cluster.pod(pod_in("a", "urgent", priorityClassName="high"))
    assert "No preemption victims found" in await refused(cluster, "urgent")
    assert len(await on_nodes(cluster, "b")) == 2


async def test_the_room_of_a_reclaimed_pod_is_not_for_others(cluster: World, running: Running) -> None:
    """The victim takes its time to end; a pod of the queue that lent, of any priority, does not slip in."""
    await cluster.node("n1", 2)
    body: dict[str, Any] = {"metadata": {"name": "polite"}, "value": 1000, "preemptionPolicy": "Never"}
    await cluster.client.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", None, body)
    await queues(cluster, running, a={"guaranteed": {"gpus": 1}}, b={})
    for at in range(2):
        pod = pod_in("b", f"b-{at}")
        pod["metadata"]["finalizers"] = ["example.com/slow"]
        await cluster.pod(pod)
        await bound(cluster, f"b-{at}")
    await cluster.pod(pod_in("a", "mine"))
    (victim,) = await until_objects(
        cluster.client, Pod, lambda pods: [pod for pod in pods if pod.metadata.deletion_timestamp is not None]
    )
    await cluster.pod(pod_in("b", "late", priorityClassName="polite"))
    await refused(cluster, "late")
    await cluster.client.patch(Pod, victim.metadata.name, {"metadata": {"finalizers": None}}, "b")
    await bound(cluster, "mine")
    assert len(await on_nodes(cluster, "b")) == 1


async def test_the_status_has_what_a_queue_holds_and_what_is_wrong(cluster: World, running: Running) -> None:
    await cluster.node("n1", 4)
    await queues(cluster, running, a={"guaranteed": {"gpus": 1}, "parent": "nowhere"})
    await fill(cluster, "a", 2)
    (text,) = await until_objects(
        cluster.client, Event, lambda events: [one.message for one in events if one.reason == NOT_AS_WRITTEN]
    )
    assert text == "its parent nowhere does not exist, so it counts as a queue without parent"

    def written(found: list[GPUQueue]) -> Any:
        return next((one.status for one in found if one.status.held.gpus == "2"), None)

    status = await until_objects(cluster.client, GPUQueue, written)
    assert (status.borrowed.gpus, status.share, status.message) == ("1", "50%", text)


async def test_queues_that_change_all_the_time_do_not_hold_the_scheduler_up(
    cluster: World, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 60,000 pods new queues take a part of a second, and a tenant may change a LocalQueue of Kueue at any time."""
    await queues(cluster, running, ml={"limit": {"gpus": 1}})
    times: list[tuple[float, float]] = []

    def slow(model: PodModel, tree: QueueTree) -> None:
        began = time.monotonic()
        while time.monotonic() < began + 0.02:
            pass
        times.append((began, time.monotonic()))

    monkeypatch.setattr(PodModel, "set_queues", slow)
    at = 1
    while len(times) < 3:
        at += 1
        await cluster.client.patch(GPUQueue, "ml", {"spec": {"limit": {"gpus": at}}})
    for (began, end), (after, _) in itertools.pairwise(times):
        assert after - end >= (REST_FACTOR - 1) * (end - began)
