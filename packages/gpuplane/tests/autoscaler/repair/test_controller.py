"""Broken nodes against the embedded API server: restarted, then replaced, in time that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.api import nodeclaim
from gpuplane.api.crds import crds
from gpuplane.autoscaler.repair.controller import RepairController
from gpuplane.autoscaler.repair.observe import REBOOTING, REBOOTING_TAINT
from gpuplane.autoscaler.settings import read_settings
from gpuplane.autoscaler.termination.controller import TerminationController
from kubekit.errors import InvalidInput, Retryable
from tests.support.nodes_of_claims import ClaimedNodes, claimed_nodes

GPUNODES = ("gpuplane.dev", "gpunodes")


class BrokenNodes:
    """A cluster whose nodes report their GPUs, with both controllers."""

    def __init__(self, cluster: ClaimedNodes) -> None:
        self.cluster = cluster
        parts = (cluster.client, cluster.informers, cluster.cloud, cluster.events, cluster.clock)
        self.repair, self.ending = RepairController(*parts), TerminationController(*parts)

    async def add(self, name: str) -> None:
        await self.cluster.add(name)
        await self.boot(name, "boot-1")
        body = {"apiVersion": "gpuplane.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": f"node-{name}"}}
        await self.cluster.registry.create(GPUNODES, None, body)
        await self.report(name, healthy=True)

    async def boot(self, name: str, boot: str) -> None:
        status = {"status": {"nodeInfo": {"bootID": boot}}}
        await self.cluster.registry.patch("nodes", None, f"node-{name}", status, "merge", subresource="status")

    async def report(self, name: str, *, healthy: bool) -> None:
        """Report the GPUs of a node."""
        one = {
            "type": "GPUsHealthy",
            "status": "True" if healthy else "False",
            "reason": "AllHealthy" if healthy else "Unhealthy",
            "message": "" if healthy else "GPU-1: Xid 79",
            "lastTransitionTime": self.cluster.clock.wall(),
        }
        status = {"status": {"conditions": [one]}}
        await self.cluster.registry.patch(GPUNODES, None, f"node-{name}", status, "merge")

    def taints(self, name: str) -> list[str]:
        node = self.cluster.node(name)
        return [taint["key"] for taint in node["spec"].get("taints", ())] if node is not None else ["gone"]


@pytest.fixture
async def broken(tmp_path: Path) -> AsyncIterator[BrokenNodes]:
    async with claimed_nodes(tmp_path) as cluster:
        for crd in crds():
            if crd["spec"]["group"] == "gpuplane.dev":
                await cluster.client.apply(crd, "test")
        found = BrokenNodes(cluster)
        async with cluster.running(found.repair.run, found.ending.run):
            yield found


async def test_a_restart_cures_the_gpus_and_the_node_gets_pods_again(broken: BrokenNodes) -> None:
    cluster = broken.cluster
    await broken.add("a")
    await cluster.add_pod("work", "a")
    await broken.report("a", healthy=False)
    await cluster.clock.advance(500)
    assert not broken.taints("a")

    await cluster.until(lambda: broken.taints("a") == [REBOOTING_TAINT], seconds=200)
    await cluster.until(lambda: any("deletionTimestamp" in pod["metadata"] for pod in cluster.pods()))
    calm = cluster.clock.now() + 10
    await cluster.until(lambda: cluster.clock.now() >= calm)  # nothing is left to do but to wait for the pod
    assert not cluster.cloud.rebooted
    await cluster.kill_pods()
    await cluster.until(lambda: cluster.cloud.rebooted == ["aws:///zone-1/i-a"], seconds=2)  # not at the next look

    await broken.boot("a", "boot-2")
    await broken.report("a", healthy=True)
    await cluster.until(lambda: not broken.taints("a"))
    await cluster.until(lambda: not cluster.condition("a", REBOOTING))
    await cluster.clock.advance(2000)
    assert cluster.cloud.rebooted == ["aws:///zone-1/i-a"]
    assert cluster.claim("a") is not None


async def test_gpus_that_stay_broken_after_the_restart_get_another_node(broken: BrokenNodes) -> None:
    cluster = broken.cluster
    await broken.add("a")
    await broken.report("a", healthy=False)
    await cluster.until(lambda: cluster.cloud.rebooted)
    await broken.boot("a", "boot-2")
    await cluster.until(lambda: cluster.claim("a") is None, seconds=1200)
    assert cluster.cloud.rebooted == ["aws:///zone-1/i-a"]
    assert broken.repair.replaced == {"pool": 1}


async def test_a_silent_node_is_replaced_without_waiting_for_its_pods(broken: BrokenNodes) -> None:
    cluster = broken.cluster
    await broken.add("a")
    await cluster.add_pod("work", "a", annotations={nodeclaim.DO_NOT_DISRUPT: "true"})
    silent = {"type": "Ready", "status": "Unknown", "lastTransitionTime": cluster.clock.wall()}
    status = {"status": {"conditions": [silent]}}
    await cluster.registry.patch("nodes", None, "node-a", status, "merge", subresource="status")
    await cluster.clock.advance(1700)
    assert cluster.claim("a") is not None
    await cluster.until(lambda: cluster.claim("a") is None, seconds=300)
    assert not cluster.cloud.rebooted


async def test_a_pool_that_is_broken_as_a_whole_is_left_alone(broken: BrokenNodes) -> None:
    cluster = broken.cluster
    for name in ("a", "b", "c"):
        await broken.add(name)
        await broken.report(name, healthy=False)
    await cluster.clock.advance(2000)
    await cluster.until(lambda: "NodeRepairBlocked" in {event["reason"] for event in cluster.registry.list("events")})
    assert not cluster.cloud.rebooted
    assert all(cluster.claim(name) is not None for name in ("a", "b", "c"))


async def test_a_restart_that_the_cloud_refused_is_asked_for_again(broken: BrokenNodes) -> None:
    cluster, refusals = broken.cluster, [1, 2]
    reboot = cluster.cloud.reboot

    async def refusing(provider_id: str) -> None:
        if refusals:
            refusals.pop()
            raise Retryable("throttled")
        await reboot(provider_id)

    cluster.cloud.reboot = refusing  # type: ignore[method-assign]
    await broken.add("a")
    await broken.report("a", healthy=False)
    await cluster.until(lambda: cluster.cloud.rebooted == ["aws:///zone-1/i-a"])


def test_the_gate_is_closed_unless_it_is_named() -> None:
    cluster = {"CLUSTER_NAME": "c"}

    assert not read_settings(cluster).node_repair
    assert read_settings({**cluster, "FEATURE_GATES": "NodeRepair=true,StaticCapacity=false"}).node_repair
    for wrong in ("StaticCapacity=true", "NodeRepair", "NodeRepair=maybe"):
        with pytest.raises(InvalidInput):
            read_settings({**cluster, "FEATURE_GATES": wrong})
