"""The dashboard's pages of node pools and of upgrades: what the server answers about them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuplane.api.nodeclaim import NodeClaim, NodeClaimStatus
from gpuplane.cli.status_views import PoolLimitView, PoolView, UpgradeView
from gpuplane.dashboard.pools import ROWS, NodePoolFacts, pools_document
from gpuplane.dashboard.upgrades import NODES, upgrades_document
from kubekit.api.core import Event, Node
from kubekit.api.meta import Condition, ObjectMeta
from kubekit.kube import Forbidden
from packages.gpuplane.tests.cli.status_objects import gpunode, overview
from packages.gpuplane.tests.dashboard.scene import HTML, Started, dashboard, get
from packages.gpuplane.tests.dashboard.scene_pools import BROKEN, FULL, NO_CAPACITY, OWN, SPOT, pooled
from tests.support.extender_world import World


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    async with pooled(tmp_path) as made:
        yield made


@pytest.fixture
async def page(cluster: World, tmp_path: Path) -> AsyncIterator[Started]:
    async with dashboard(tmp_path) as started:
        yield started


async def test_pools_have_their_nodes_prices_and_reasons(page: Started) -> None:
    found = (await get(page, "/api/pools")).json
    pools = {one["name"]: one for one in found["pools"]}
    assert set(pools) == {SPOT, OWN, FULL, BROKEN}
    spot, own = pools[SPOT], pools[OWN]
    assert (spot["nodes"], spot["joining"], spot["dollars"], spot["unpriced"]) == (4, 2, 4 * 19.42, 0)
    # The node without a price at launch has the list price of its type.
    assert (own["nodes"], own["dollars"], own["unpriced"]) == (2, pytest.approx(3.1 + 3.912), 0)
    assert (
        pools[FULL]["trouble"] == "at its limit: cpu 96 of 96"
        and pools[FULL]["cure"] == f"kubectl edit nodepool {FULL}"
    )
    assert (
        "no subnet has the tag team=ml" in pools[BROKEN]["trouble"]
        and pools[BROKEN]["cure"] == "tag one of the subnets"
    )
    launches = {one["step"]: one for one in found["launches"]}
    assert set(launches) == {"launching", "joining", "preparing"} and len(found["launches"]) == 3
    assert launches["launching"]["why"] == NO_CAPACITY
    nodes = {one["name"]: one for one in found["nodes"]}
    assert len(nodes) == 6
    assert (nodes["gpu-01"]["gpus"], nodes["gpu-01"]["from"]) == (8, f"node pool {SPOT}, spot at launch")
    assert {one["reason"] for one in found["events"]} == {"InsufficientCapacityError", "NodeClassNotReady"}
    assert not any("\x1b" in one["message"] for one in found["events"])


async def test_upgrades_are_listed_with_the_failed_ones_first(page: Started) -> None:
    found = (await get(page, "/api/upgrades")).json
    states = [one["state"] for one in found["nodes"]]
    assert states == [
        "upgrade-failed",
        "pod-restart-required",
        "wait-for-jobs-required",
        "upgrade-required",
        "upgrade-done",
        "upgrade-done",
    ]
    assert found["nodes"][0]["why"].endswith(HTML) and found["nodes"][0]["driver"] == "570.133.20"
    assert found["states"][0] == "upgrade-required" and found["states"][-1] == "upgrade-done"
    assert (found["counts"]["upgrade-done"], found["more"], found["version"]) == (2, 0, "0.0.7")
    rollout = {one["name"]: (one["updated"], one["nodes"], one["ready"]) for one in found["operands"]}
    assert rollout == {"nvidia-device-plugin-daemonset": (6, 6, 6), "nvidia-dcgm-exporter": (4, 6, 5)}


async def test_the_pages_have_addresses_of_their_own(page: Started) -> None:
    for path in ("/pools", "/upgrades"):
        answer = await get(page, path)
        assert (answer.status, b'href="/pools"' in answer.body, b'href="/upgrades"' in answer.body) == (200, True, True)
        assert (await get(page, path, cookie=False)).status == 403
        assert (await get(page, f"/api{path}", cookie=False)).status == 403


class NothingAllowed:
    """An API server that lists nothing to this user."""

    def __init__(self) -> None:
        self.asked = 0

    async def list(self, kind: type[Any], **selection: str) -> list[Any]:
        self.asked += 1
        raise Forbidden("no")


async def test_without_rights_the_pools_of_the_overview_are_all_there_is() -> None:
    client, now = NothingAllowed(), [0.0]
    facts = NodePoolFacts(client, lambda: now[0])  # type: ignore[arg-type]
    found = await facts.pools([PoolView("gpu", "NodePool", nodes=2)])
    assert [one["nodes"] for one in found["pools"]] == [2]
    assert (found["nodes"], found["launches"], found["events"]) == ([], [], [])
    asked = client.asked
    await facts.pools([])
    assert client.asked == asked, "another viewer asks nothing again"
    now[0] = 60.0
    await facts.pools([])
    assert client.asked == 2 * asked


def test_a_viewer_without_the_right_to_events_gets_none() -> None:
    event = Event(reason="Disrupted", message="gone", last_timestamp="2026-11-20T10:00:00Z", type="Warning")
    assert pools_document([], [], [], [event])["events"][0]["reason"] == "Disrupted"
    assert pools_document([], [], [], [])["events"] == []


def test_of_very_many_claims_and_nodes_the_first_are_listed_and_all_are_counted() -> None:
    meta = [ObjectMeta(name=f"gpu-{at:05}", labels={"karpenter.sh/nodepool": "gpu"}) for at in range(1000)]
    nodes, claims = [Node(metadata=one) for one in meta], [NodeClaim(metadata=one) for one in meta]
    found = pools_document([PoolView("gpu", "NodePool")], claims, nodes, [])
    assert (len(found["nodes"]), found["moreNodes"]) == (ROWS, 1000 - ROWS)
    assert (len(found["launches"]), found["moreLaunches"]) == (ROWS, 1000 - ROWS)
    assert found["pools"][0]["unpriced"] == 1000


def test_a_claim_that_ends_says_so_and_one_that_is_ready_is_no_launch() -> None:
    done = NodeClaimStatus(
        conditions=tuple(Condition(type=kind, status="True") for kind in ("Launched", "Registered", "Initialized"))
    )
    ready = NodeClaim(metadata=ObjectMeta(name="a"), status=done)
    ending = NodeClaim(metadata=ObjectMeta(name="b", deletion_timestamp="2026-11-20T10:00:00Z"), status=done)
    [found] = pools_document([], [ready, ending], [], [])["launches"]
    assert (found["claim"], found["step"], found["since"]) == ("b", "ending", "2026-11-20T10:00:00Z")


LIMITS = [("95", "96", False), ("96", "96", True), ("1Ti", "1000Gi", True), ("?", "1", False)]


@pytest.mark.parametrize(("used", "limit", "reached"), LIMITS)
def test_a_limit_is_reached_by_its_amount(used: str, limit: str, reached: bool) -> None:
    pool = PoolView("gpu", "NodePool", limits=(PoolLimitView("memory", used, limit),))
    assert bool(pools_document([pool], [], [], [])["pools"][0]["trouble"]) is reached


def test_of_very_many_upgrades_the_first_are_listed_and_all_are_counted() -> None:
    seen = overview([gpunode(f"n{at:04}") for at in range(NODES + 50)], [], {})
    nodes = tuple(msgspec.structs.replace(node, upgrade=UpgradeView("upgrade-done")) for node in seen.nodes)
    found = upgrades_document(msgspec.structs.replace(seen, nodes=nodes), None)
    assert (len(found["nodes"]), found["more"], found["operandsHidden"]) == (NODES, 50, True)
    assert found["counts"] == {"upgrade-done": NODES + 50}
    assert upgrades_document(seen, [])["nodes"] == []
