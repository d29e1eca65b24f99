"""The controller of nodes that end, against the embedded API server, in time that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.api import nodeclaim
from gpuplane.autoscaler.termination.controller import TerminationController
from kubekit.kube.errors import from_response
from tests.support.nodes_of_claims import CLAIMS, ClaimedNodes, claimed_nodes
from tests.support.virtual_time import VirtualClock


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClaimedNodes]:
    async with claimed_nodes(tmp_path) as found:
        yield found


def controller(cluster: ClaimedNodes) -> TerminationController:
    return TerminationController(cluster.client, cluster.informers, cluster.cloud, cluster.events, cluster.clock)


async def delete(cluster: ClaimedNodes, name: str) -> None:
    await cluster.registry.delete(CLAIMS, None, name)


async def forget_claim(cluster: ClaimedNodes, name: str) -> None:
    """Take the claim away as a user does who removes its finalizer."""
    await cluster.registry.patch(CLAIMS, None, name, {"metadata": {"finalizers": None}}, "merge")
    if cluster.claim(name) is not None:
        await delete(cluster, name)
    assert cluster.claim(name) is None


def deleted(cluster: ClaimedNodes) -> set[str]:
    return {pod["metadata"]["name"] for pod in cluster.pods() if "deletionTimestamp" in pod["metadata"]}


def events(cluster: ClaimedNodes, reason: str) -> list[dict[str, Any]]:
    return [event for event in cluster.registry.list("events") if event["reason"] == reason]


async def test_a_deleted_claim_drains_its_node_then_ends_instance_node_and_claim(cluster: ClaimedNodes) -> None:
    await cluster.add("a")
    await cluster.add_pod("work", "a")
    await cluster.add_pod("stays", "a", owner="DaemonSet", tolerations=[{"operator": "Exists"}])
    async with cluster.running(controller(cluster).run):
        await delete(cluster, "a")
        await cluster.until(lambda: deleted(cluster) == {"work"})

        node = cluster.node("a")
        assert node is not None
        assert {"key": nodeclaim.DISRUPTED_TAINT, "effect": "NoSchedule"} in node["spec"]["taints"]
        assert node["metadata"]["labels"]["node.kubernetes.io/exclude-from-external-load-balancers"] == "karpenter"
        assert not cluster.cloud.terminated

        # The recorder writes the event after the answer to the eviction.
        [evicted] = await cluster.until(lambda: events(cluster, "Evicted"))
        assert evicted["involvedObject"]["name"] == "work"
        await cluster.kill_pods()
        await cluster.until(lambda: cluster.claim("a") is None)
        assert cluster.node("a") is None
        assert set(cluster.cloud.terminated) == {"aws:///zone-1/i-a"}


async def test_a_deleted_node_ends_its_claim(cluster: ClaimedNodes) -> None:
    await cluster.add("a")
    await cluster.add("b")
    async with cluster.running(controller(cluster).run):
        await cluster.registry.delete("nodes", None, "node-a")
        await cluster.until(lambda: cluster.claim("a") is None)

        assert set(cluster.cloud.terminated) == {"aws:///zone-1/i-a"}
        assert cluster.node("b") is not None


async def test_a_node_whose_claim_is_gone_is_drained_and_ends(cluster: ClaimedNodes) -> None:
    await cluster.add("a")
    await cluster.add_pod("work", "a")
    await cluster.registry.delete("nodes", None, "node-a")
    await forget_claim(cluster, "a")
    async with cluster.running(controller(cluster).run):
        await cluster.until(lambda: deleted(cluster) == {"work"})
        node = cluster.node("a")
        assert node is not None
        assert {"key": nodeclaim.DISRUPTED_TAINT, "effect": "NoSchedule"} in node["spec"]["taints"]
        assert not cluster.cloud.terminated

        await cluster.kill_pods()
        await cluster.until(lambda: cluster.node("a") is None)
        assert set(cluster.cloud.terminated) == {"aws:///zone-1/i-a"}


async def test_a_node_without_a_claim_ends_no_instance_that_is_not_the_clusters(cluster: ClaimedNodes) -> None:
    await cluster.add("a")
    await forget_claim(cluster, "a")
    cluster.cloud.found.clear()  # what the cloud lists has the cluster's tag
    await cluster.registry.delete("nodes", None, "node-a")
    async with cluster.running(controller(cluster).run):
        await cluster.until(lambda: cluster.node("a") is None)
        assert not cluster.cloud.terminated


async def test_a_node_without_a_claim_stays_until_it_is_deleted(cluster: ClaimedNodes) -> None:
    await cluster.add("a")
    await forget_claim(cluster, "a")
    async with cluster.running(controller(cluster).run):
        await cluster.clock.advance(120)
        node = cluster.node("a")
        assert node is not None and not node["spec"].get("taints")


@pytest.mark.parametrize("crashes", [1, 2, 4])
async def test_the_end_of_a_node_without_a_claim_goes_on_after_a_crash(cluster: ClaimedNodes, crashes: int) -> None:
    await cluster.add("a")
    await cluster.add_pod("work", "a")
    await cluster.registry.delete("nodes", None, "node-a")
    await forget_claim(cluster, "a")
    for number in range(crashes + 1):
        fresh = ClaimedNodes(cluster.server, cluster.client)
        fresh.cloud, fresh.clock = cluster.cloud, cluster.clock
        async with fresh.running(controller(fresh).run):
            if number == crashes:
                await cluster.until(lambda: cluster.node("a") is None)
            else:
                await cluster.clock.advance(number + 1)
        await cluster.kill_pods()
    assert set(cluster.cloud.terminated) == {"aws:///zone-1/i-a"}


async def test_a_budget_holds_the_node_and_the_reason_is_an_event(cluster: ClaimedNodes) -> None:
    await cluster.add("a")
    await cluster.add_pod("work", "a", labels={"app": "w"})
    budget = {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "w"}}}, "metadata": {"name": "b"}}
    await cluster.registry.create(("policy", "poddisruptionbudgets"), "default", budget)
    async with cluster.running(controller(cluster).run):
        await delete(cluster, "a")
        await cluster.until(lambda: cluster.condition("a", nodeclaim.DRAINED))
        await cluster.clock.advance(60)
        both = {"Node", "NodeClaim"}
        await cluster.until(
            lambda: {one["involvedObject"]["kind"] for one in events(cluster, "FailedDraining")} == both
        )
        assert not deleted(cluster)
        assert not cluster.cloud.terminated
        await cluster.clock.advance(120)
        assert sum(one["count"] for one in events(cluster, "FailedDraining")) <= 4

        await cluster.registry.delete(("policy", "poddisruptionbudgets"), "default", "b")
        await cluster.until(lambda: deleted(cluster) == {"work"})


async def test_the_grace_of_a_claim_ends_a_drain_that_a_budget_holds(cluster: ClaimedNodes) -> None:
    await cluster.add("a", spec={"terminationGracePeriod": "120s"})
    await cluster.add_pod("work", "a", annotations={nodeclaim.DO_NOT_DISRUPT: "true"})
    async with cluster.running(controller(cluster).run):
        await delete(cluster, "a")
        await cluster.until(lambda: cluster.condition("a", nodeclaim.DRAINED))
        await cluster.clock.advance(60)
        assert not deleted(cluster)

        await cluster.until(lambda: deleted(cluster) == {"work"}, seconds=60)
        await cluster.until(lambda: cluster.claim("a") is None, seconds=90)  # though the pod is still there
        await cluster.until(lambda: "default/work" in str(events(cluster, "TerminationGracePeriodExpiring")))


async def test_attached_volumes_hold_the_instance(cluster: ClaimedNodes) -> None:
    await cluster.add("a")
    attachment = {
        "metadata": {"name": "at"},
        "spec": {"attacher": "ebs", "nodeName": "node-a", "source": {"persistentVolumeName": "pv-1"}},
    }
    await cluster.registry.create(("storage.k8s.io", "volumeattachments"), None, attachment)
    async with cluster.running(controller(cluster).run):
        await delete(cluster, "a")
        await cluster.until(lambda: cluster.condition("a", nodeclaim.VOLUMES_DETACHED).get("status") == "False")
        await cluster.clock.advance(30)
        assert not cluster.cloud.terminated

        await cluster.registry.delete(("storage.k8s.io", "volumeattachments"), None, "at")
        await cluster.until(lambda: cluster.claim("a") is None)


async def test_volumes_of_pods_that_stay_hold_nothing(cluster: ClaimedNodes) -> None:
    await cluster.add("a")
    volumes = [
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
        {"name": "gone", "persistentVolumeClaim": {"claimName": "gone"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    await cluster.add_pod("stays", "a", tolerations=[{"operator": "Exists"}], volumes=volumes)
    for claim, volume in (("stays-scratch", "pv-1"), ("data", "pv-2")):
        resources = {"requests": {"storage": "1Gi"}}
        spec = {"volumeName": volume, "accessModes": ["ReadWriteOnce"], "resources": resources}
        await cluster.registry.create("persistentvolumeclaims", "default", {"metadata": {"name": claim}, "spec": spec})
        source = {"persistentVolumeName": volume}
        attachment = {"attacher": "ebs", "nodeName": "node-a", "source": source}
        await cluster.registry.create(
            ("storage.k8s.io", "volumeattachments"), None, {"metadata": {"name": volume}, "spec": attachment}
        )
    async with cluster.running(controller(cluster).run):
        await delete(cluster, "a")
        await cluster.until(lambda: cluster.claim("a") is None, seconds=60)


async def test_a_pod_whose_eviction_is_refused_holds_no_other_pod(cluster: ClaimedNodes) -> None:
    await cluster.add("a")
    for name in ("work", "refused"):
        await cluster.add_pod(name, "a")
    request = cluster.client.request

    async def guarded(method: str, path: str, *more: Any, **named: Any) -> bytes:
        if path.endswith("/refused/eviction"):
            raise from_response(403, b'{"reason": "Forbidden", "message": "a webhook says no"}')
        return await request(method, path, *more, **named)

    cluster.client.request = guarded  # type: ignore[method-assign]
    async with cluster.running(controller(cluster).run):
        await delete(cluster, "a")
        await cluster.until(lambda: deleted(cluster) == {"work"})
        await cluster.until(lambda: "a webhook says no" in str(cluster.registry.list("events")))


async def test_the_claim_stays_while_the_cloud_still_ends_the_instance(cluster: ClaimedNodes) -> None:
    await cluster.add("a")
    cluster.cloud.slow = True
    async with cluster.running(controller(cluster).run):
        await delete(cluster, "a")
        await cluster.until(lambda: cluster.cloud.terminated)
        await cluster.clock.advance(30)
        assert cluster.claim("a") is not None

        cluster.cloud.settle_all()
        await cluster.until(lambda: cluster.claim("a") is None)


async def test_an_instance_whose_launch_was_not_answered_ends_with_its_claim(cluster: ClaimedNodes) -> None:
    await cluster.add("a", node=False)
    await cluster.registry.patch(CLAIMS, None, "a", {"status": {"providerID": ""}}, "merge", subresource="status")
    async with cluster.running(controller(cluster).run):
        await delete(cluster, "a")
        await cluster.until(lambda: cluster.claim("a") is None)

        assert set(cluster.cloud.terminated) == {"aws:///zone-1/i-a"}


@pytest.mark.parametrize("crashes", [1, 3, 5, 8])
async def test_an_end_that_is_cut_off_anywhere_goes_on(cluster: ClaimedNodes, crashes: int) -> None:
    await cluster.add("a")
    await cluster.add_pod("work", "a")
    await delete(cluster, "a")
    clock = cluster.clock
    assert isinstance(clock, VirtualClock)
    for _ in range(crashes):
        fresh = ClaimedNodes(cluster.server, cluster.client)
        fresh.cloud, fresh.clock = cluster.cloud, clock
        async with fresh.running(controller(fresh).run):
            for _ in range(3):
                await clock.advance(1)
        await cluster.kill_pods()
    last = ClaimedNodes(cluster.server, cluster.client)
    last.cloud, last.clock = cluster.cloud, clock
    async with last.running(controller(last).run):
        while cluster.pods():
            await last.until(lambda: deleted(cluster))
            await cluster.kill_pods()
        await last.until(lambda: cluster.claim("a") is None)
    assert cluster.node("a") is None
