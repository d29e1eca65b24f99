"""Empty, expired and drifted nodes against the embedded API server, in time that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuplane.api import nodeclaim
from gpuplane.api.karpenter import DeclaredPool, DisruptionBudget, PoolDisruption
from gpuplane.api.karpenter_hash import HASH_VERSION
from gpuplane.autoscaler.asks import read_asks
from gpuplane.autoscaler.disruption.controller import NodeDisruptionController
from gpuplane.autoscaler.disruption.facts import DisruptableNode
from gpuplane.autoscaler.disruption.removal import ask_always
from gpuplane.autoscaler.disruption.supply import PurchaseQuestion, RemovalWorld
from gpuplane.autoscaler.providers.provider import MachineClass, ResolvedClass
from gpuplane.autoscaler.purchase import BoughtNode
from gpuplane.autoscaler.termination.controller import TerminationController
from packages.gpuplane.tests.autoscaler.worlds import options_of, pool
from tests.support.nodes_of_claims import ClaimedNodes, claimed_nodes

TTL = PoolDisruption(empty_after=30.0)
WHEN_EMPTY = PoolDisruption(consolidate_after=60.0, policy="WhenEmpty")


class ListedSupply:
    """Pools out of a dict; no node is nominated unless it is listed."""

    def __init__(self) -> None:
        self.listed: dict[str, DeclaredPool] = {}
        self.nominated: set[str] = set()
        self.moment: RemovalWorld | None = None

    def is_synced(self) -> bool:
        return True

    def is_nominated(self, node: str) -> bool:
        return node in self.nominated

    def pools(self) -> Mapping[str, DeclaredPool]:
        return self.listed

    def machines_of(self, pool: DeclaredPool) -> MachineClass | None:
        return MachineClass("EC2NodeClass", "c", hash="class")

    async def world(self) -> RemovalWorld:
        assert self.moment is not None, "only a replacement needs the world"
        return self.moment

    def close_offering(self, machine: str, zone: str, capacity_type: str) -> None:
        raise AssertionError("only interruptions close offerings")


class PlayedWorld:
    """Nodes of which each is a g4dn.12xlarge; pods never fit on another one of them. `most` claims can be bought."""

    def __init__(self, cluster: ClaimedNodes) -> None:
        self.cluster = cluster
        self.bought: list[str] = []
        self.most = 100

    def prices(self) -> Mapping[str, float]:
        return {node["metadata"]["name"]: 3.912 for node in self.cluster.registry.list("nodes")}

    def question(self, without: Collection[str]) -> PurchaseQuestion:
        moved = [pod for pod in self.cluster.pods() if pod["spec"].get("nodeName") in without]
        asks = read_asks(moved)
        keys = frozenset(ask.key for ask in asks)
        return PurchaseQuestion(asks, keys, options_of(asks, pool()), ())

    def screen(self) -> Callable[[DisruptableNode], str]:
        return ask_always

    async def buy(self, nodes: Sequence[BoughtNode], *, capped: bool) -> Sequence[str]:
        made = [f"new-{len(self.bought) + number}" for number in range(min(len(nodes), self.most))]
        for name in made:
            await self.cluster.add(name, node=False)
        self.bought += made
        return made


class DisruptedNodes:
    """A cluster with both controllers at work."""

    def __init__(self, cluster: ClaimedNodes) -> None:
        self.cluster = cluster
        self.supply = ListedSupply()
        parts = (cluster.client, cluster.informers)
        self.ending = TerminationController(*parts, cluster.cloud, cluster.events, cluster.clock)
        self.disruption = NodeDisruptionController(*parts, self.supply, cluster.cloud, cluster.events, cluster.clock)

    def pool(self, disruption: PoolDisruption, **more: Any) -> None:
        self.supply.listed["pool"] = DeclaredPool("pool", disruption=disruption, **more)

    def claims(self) -> set[str]:
        return {one["metadata"]["name"] for one in self.cluster.registry.list(("karpenter.sh", "nodeclaims"))}


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[DisruptedNodes]:
    async with claimed_nodes(tmp_path) as cluster:
        found = DisruptedNodes(cluster)
        async with cluster.running(found.ending.run, found.disruption.run):
            yield found


def stamp(cluster: ClaimedNodes, claim: str) -> str:
    node = cluster.node(claim)
    assert node is not None
    return str(node["metadata"].get("annotations", {}).get(nodeclaim.EMPTINESS_ANNOTATION, ""))


async def test_an_empty_node_is_stamped_and_goes_after_its_ttl(nodes: DisruptedNodes) -> None:
    cluster = nodes.cluster
    nodes.pool(TTL)
    await cluster.add("a")
    await cluster.add_pod("work", "a")
    await cluster.clock.advance(60)
    assert not stamp(cluster, "a")

    await cluster.registry.delete("pods", "default", "work", grace=0)
    await cluster.until(lambda: stamp(cluster, "a"))
    empty = cluster.clock.now()
    await cluster.until(lambda: cluster.claim("a") is None, seconds=60)
    assert cluster.clock.now() - empty >= 29  # the stamp has whole seconds
    assert nodes.disruption.writer.disrupted == {("empty", "pool", "", "ttlSecondsAfterEmpty"): 1}


async def test_a_pod_takes_the_stamp_off_and_the_time_begins_again(nodes: DisruptedNodes) -> None:
    cluster = nodes.cluster
    nodes.pool(TTL)
    await cluster.add("a")
    await cluster.until(lambda: stamp(cluster, "a"))
    await cluster.clock.advance(20)
    await cluster.add_pod("work", "a")
    await cluster.until(lambda: not stamp(cluster, "a"))
    await cluster.clock.advance(120)
    assert nodes.claims() == {"a"}


async def test_daemons_and_finished_pods_keep_no_node(nodes: DisruptedNodes) -> None:
    cluster = nodes.cluster
    nodes.pool(TTL)
    await cluster.add("a")
    await cluster.add_pod("daemon", "a", owner="DaemonSet", tolerations=[{"operator": "Exists"}])
    await cluster.add_pod("job", "a")
    done = {"status": {"phase": "Succeeded"}}
    await cluster.registry.patch("pods", "default", "job", done, "merge", subresource="status")

    await cluster.until(lambda: cluster.claim("a") is None, seconds=60)


async def test_a_node_that_waits_for_a_pod_is_not_empty(nodes: DisruptedNodes) -> None:
    cluster = nodes.cluster
    nodes.pool(TTL)
    nodes.supply.nominated.add("node-a")
    await cluster.add("a")
    await cluster.add("b")
    await cluster.until(lambda: nodes.claims() == {"a"})
    await cluster.clock.advance(60)
    assert nodes.claims() == {"a"}

    nodes.supply.nominated.clear()
    await cluster.until(lambda: not nodes.claims(), seconds=60)


async def test_budgets_bound_how_many_empty_nodes_end_at_once(nodes: DisruptedNodes) -> None:
    cluster = nodes.cluster
    cluster.cloud.slow = True
    nodes.pool(msgspec.structs.replace(WHEN_EMPTY, budgets=(DisruptionBudget("2"),)))
    for name in "abcde":
        await cluster.add(name)

    def ending() -> int:
        claims = [cluster.claim(name) for name in nodes.claims()]
        return sum("deletionTimestamp" in claim["metadata"] for claim in claims if claim is not None)

    await cluster.until(lambda: ending() == 2, seconds=200)
    await cluster.clock.advance(120)
    assert ending() == 2

    def shrunk_to(left: int) -> bool:
        cluster.cloud.settle_all()
        assert ending() <= 2
        return len(nodes.claims()) <= left

    await cluster.until(lambda: shrunk_to(3), seconds=200)
    await cluster.until(lambda: shrunk_to(0), seconds=400)


async def test_a_node_that_is_not_to_be_disrupted_stays(nodes: DisruptedNodes) -> None:
    cluster = nodes.cluster
    nodes.pool(TTL)
    await cluster.add("a")
    patch = {"metadata": {"annotations": {nodeclaim.DO_NOT_DISRUPT: "true"}}}
    await cluster.registry.patch("nodes", None, "node-a", patch, "merge")
    await cluster.clock.advance(5)
    await cluster.until(lambda: stamp(cluster, "a"))
    await cluster.clock.advance(120)
    assert nodes.claims() == {"a"}


async def test_an_event_names_the_budget_that_holds_a_pod(nodes: DisruptedNodes) -> None:
    cluster = nodes.cluster
    nodes.supply.moment = PlayedWorld(cluster)
    await cluster.add("a", annotations=HASHES)
    await cluster.add_pod("work", "a", labels={"app": "w"})
    budget = {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "w"}}}, "metadata": {"name": "b"}}
    await cluster.registry.create(("policy", "poddisruptionbudgets"), "default", budget)
    nodes.pool(PoolDisruption(), hash="new")

    def messages() -> list[str]:
        events = cluster.registry.list("events")
        return [one["message"] for one in events if one["reason"] == "DisruptionBlocked"]

    await cluster.until(messages)
    assert messages() == ["PodDisruptionBudget b admits no eviction of default/work"]
    await cluster.clock.advance(120)
    assert len(messages()) == 1 and nodes.claims() == {"a"}

    await cluster.registry.delete(("policy", "poddisruptionbudgets"), "default", "b")
    nodes.pool(PoolDisruption(budgets=(DisruptionBudget("0"),)), hash="new")
    await cluster.until(lambda: len(messages()) == 2, seconds=60)
    assert "the budget nodes=0 of the pool pool admits no more nodes for Drifted: 0 of 1 are away" in messages()
    assert nodes.disruption.figures.room["Drifted"] == {"pool": 0.0}


async def test_an_expired_node_goes_whatever_runs_there(nodes: DisruptedNodes) -> None:
    cluster = nodes.cluster
    nodes.pool(PoolDisruption(budgets=(DisruptionBudget("0"),)))
    await cluster.add("a", spec={"expireAfter": "30s"})  # the time of deletions is the server's, which stands still
    await cluster.add("b", spec={"expireAfter": "Never"})
    await cluster.add_pod("work", "a")
    await cluster.until(lambda: cluster.condition("a", nodeclaim.DRAINED), seconds=40)
    await cluster.kill_pods()
    await cluster.until(lambda: nodes.claims() == {"b"}, seconds=60)
    assert nodes.disruption.marks.expired == {"pool": 1}


async def test_a_new_image_drifts_a_node(nodes: DisruptedNodes) -> None:
    cluster = nodes.cluster
    nodes.pool(PoolDisruption(), hash="h")
    hashes = {nodeclaim.HASH_ANNOTATION: "h", nodeclaim.HASH_VERSION_ANNOTATION: HASH_VERSION}
    cluster.cloud.resolved = ResolvedClass(images=(("ami-1", "", False),))
    await cluster.add("old", image="ami-1", annotations=hashes)
    await cluster.add("new", image="ami-2", annotations=hashes)
    await cluster.add_pod("work", "new")
    await cluster.until(lambda: cluster.condition("new", nodeclaim.DRIFTED).get("reason") == "AMIDrift")

    cluster.cloud.resolved = ResolvedClass(images=(("ami-2", "", False),))
    await cluster.until(lambda: nodes.claims() == {"new"}, seconds=60)
    assert not cluster.condition("new", nodeclaim.DRIFTED)


async def test_a_changed_pool_drifts_its_nodes(nodes: DisruptedNodes) -> None:
    cluster = nodes.cluster
    nodes.pool(PoolDisruption(), hash="h")
    hashes = {nodeclaim.HASH_ANNOTATION: "h", nodeclaim.HASH_VERSION_ANNOTATION: HASH_VERSION}
    await cluster.add("a", annotations=hashes)
    await cluster.clock.advance(30)
    assert nodes.claims() == {"a"}

    nodes.pool(PoolDisruption(), hash="other")
    await cluster.until(lambda: not nodes.claims(), seconds=60)


async def test_a_disruption_that_a_restart_forgot_is_taken_back(nodes: DisruptedNodes) -> None:
    cluster = nodes.cluster
    nodes.pool(PoolDisruption())
    await cluster.add("a")
    taint = {"key": nodeclaim.DISRUPTED_TAINT, "effect": "NoSchedule"}
    await cluster.registry.patch("nodes", None, "node-a", {"spec": {"taints": [taint]}}, "merge")
    await cluster.until(lambda: not (cluster.node("a") or {"spec": {"taints": [1]}})["spec"].get("taints"))


HASHES = {nodeclaim.HASH_ANNOTATION: "old", nodeclaim.HASH_VERSION_ANNOTATION: HASH_VERSION}


def taints(cluster: ClaimedNodes, claim: str) -> list[str]:
    node = cluster.node(claim)
    return [taint["key"] for taint in node["spec"].get("taints", ())] if node is not None else ["gone"]


async def test_a_drifted_node_goes_when_its_replacement_takes_pods(nodes: DisruptedNodes) -> None:
    cluster = nodes.cluster
    nodes.supply.moment = world = PlayedWorld(cluster)
    await cluster.add("a", annotations=HASHES)
    await cluster.add_pod("work", "a")
    nodes.pool(PoolDisruption(), hash="new")
    await cluster.until(lambda: taints(cluster, "a") == [nodeclaim.DISRUPTED_TAINT])
    assert cluster.condition("a", nodeclaim.DISRUPTION_REASON)["reason"] == "Drifted"
    assert world.bought == ["new-0"]
    await cluster.clock.advance(60)
    assert nodes.claims() == {"a", "new-0"}
    for reason, count in (("DisruptionLaunching", 1), ("DisruptionWaitingReadiness", 1)):
        events = [event for event in cluster.registry.list("events") if event["reason"] == reason]
        about = [event["involvedObject"]["name"] for event in events]
        assert about == ["new-0"] * count
        assert events[0]["count"] == 1, "a minute of passes writes one event"

    await cluster.initialize("new-0")
    await cluster.until(
        lambda: {pod["metadata"]["name"] for pod in cluster.pods() if "deletionTimestamp" in pod["metadata"]}
    )
    await cluster.kill_pods()
    await cluster.until(lambda: nodes.claims() == {"new-0"})


async def test_a_replacement_that_fails_gives_the_node_back(nodes: DisruptedNodes) -> None:
    cluster = nodes.cluster
    nodes.supply.moment = world = PlayedWorld(cluster)
    await cluster.add("a", annotations=HASHES)
    await cluster.add_pod("work", "a")
    nodes.pool(PoolDisruption(), hash="new")
    await cluster.until(lambda: taints(cluster, "a") == [nodeclaim.DISRUPTED_TAINT])
    nodes.pool(PoolDisruption(), hash="old")
    await cluster.registry.delete(("karpenter.sh", "nodeclaims"), None, world.bought[0])

    await cluster.until(lambda: not taints(cluster, "a"))
    await cluster.until(lambda: nodes.claims() == {"a"})
    assert not cluster.condition("a", nodeclaim.DISRUPTION_REASON)


async def test_a_replacement_that_cannot_be_bought_disrupts_nothing(nodes: DisruptedNodes) -> None:
    cluster = nodes.cluster
    nodes.supply.moment = world = PlayedWorld(cluster)
    world.most = 0
    await cluster.add("a", annotations=HASHES)
    await cluster.add_pod("work", "a")
    nodes.pool(PoolDisruption(), hash="new")
    await cluster.until(lambda: cluster.condition("a", nodeclaim.DRIFTED))
    await cluster.clock.advance(60)
    assert not taints(cluster, "a")
    assert nodes.claims() == {"a"}


async def test_consolidation_waits_for_its_confirmation_then_replaces_a_node(nodes: DisruptedNodes) -> None:
    cluster = nodes.cluster
    nodes.supply.moment = PlayedWorld(cluster)
    nodes.pool(PoolDisruption(consolidate_after=0.0, policy="WhenEmptyOrUnderutilized"))
    await cluster.add("a")
    await cluster.add_pod("work", "a")
    await cluster.until(lambda: cluster.condition("a", nodeclaim.CONSOLIDATABLE))
    began = cluster.clock.now()
    await cluster.until(lambda: "new-0" in nodes.claims())
    assert cluster.clock.now() - began >= 14

    await cluster.until(lambda: taints(cluster, "a"))
    assert cluster.condition("a", nodeclaim.DISRUPTION_REASON)["reason"] == "Underutilized"
