"""Notices of the cloud: which of them drain a node, and that each is acknowledged after that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.api.karpenter import DeclaredPool
from gpuplane.api.nodeclaim import TERMINATION_ANNOTATION
from gpuplane.autoscaler.disruption.interruption import ANSWERS, InterruptionHandler
from gpuplane.autoscaler.disruption.supply import RemovalWorld
from gpuplane.autoscaler.providers.provider import Interruption, MachineClass
from kubekit.kube import Unreachable
from tests.support.nodes_of_claims import ClaimedNodes, claimed_nodes


class ClosingSupply:
    """Remembers the offerings that were closed."""

    def __init__(self) -> None:
        self.closed: list[tuple[str, str, str]] = []

    def is_synced(self) -> bool:
        return True

    def is_nominated(self, node: str) -> bool:
        return False

    def pools(self) -> dict[str, DeclaredPool]:
        return {}

    def machines_of(self, pool: DeclaredPool) -> MachineClass | None:
        return None

    async def world(self) -> RemovalWorld:
        raise AssertionError("an interruption needs no replacement before")

    def close_offering(self, machine: str, zone: str, capacity_type: str) -> None:
        self.closed.append((machine, zone, capacity_type))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClaimedNodes]:
    async with claimed_nodes(tmp_path) as found:
        yield found


def handler(cluster: ClaimedNodes, supply: ClosingSupply) -> InterruptionHandler:
    return InterruptionHandler(cluster.client, cluster.informers, supply, cluster.cloud, cluster.events, cluster.clock)


def is_ending(claim: dict[str, Any] | None) -> bool:
    return claim is not None and "deletionTimestamp" in claim["metadata"]


@pytest.mark.parametrize("kind", [*ANSWERS, "unheard-of"])
async def test_a_notice_is_acted_upon_and_acknowledged(cluster: ClaimedNodes, kind: str) -> None:
    supply = ClosingSupply()
    await cluster.add("a")
    await cluster.add("b")
    async with cluster.running(handler(cluster, supply).run):
        cluster.cloud.notices.put_nowait(Interruption(kind, "aws:///zone-1/i-a", "receipt"))
        await cluster.until(lambda: cluster.cloud.acknowledged == ["receipt"])

    drained = ("spot-interruption", "health", "impaired", "state-change")
    claim = cluster.claim("a")
    assert is_ending(claim) == (kind in drained)
    assert claim is not None
    has_deadline = TERMINATION_ANNOTATION in claim["metadata"].get("annotations", {})
    assert has_deadline == (kind == "impaired"), "a machine that does not work is not waited for"
    assert not is_ending(cluster.claim("b"))
    assert bool(supply.closed) == (kind == "spot-interruption")


async def test_a_notice_about_a_foreign_instance_is_acknowledged(cluster: ClaimedNodes) -> None:
    async with cluster.running(handler(cluster, ClosingSupply()).run):
        cluster.cloud.notices.put_nowait(Interruption("state-change", "aws:///zone-1/i-x", "receipt"))
        await cluster.until(lambda: cluster.cloud.acknowledged == ["receipt"])


async def test_a_notice_that_comes_twice_does_no_harm(cluster: ClaimedNodes) -> None:
    await cluster.add("a")
    async with cluster.running(handler(cluster, ClosingSupply()).run):
        for receipt in ("1", "2"):
            cluster.cloud.notices.put_nowait(Interruption("spot-interruption", "aws:///zone-1/i-a", receipt))
        await cluster.until(lambda: cluster.cloud.acknowledged == ["1", "2"])
    assert is_ending(cluster.claim("a"))


async def test_a_notice_is_not_acknowledged_before_the_api_server_has_the_deletion(cluster: ClaimedNodes) -> None:
    await cluster.add("a")
    working = handler(cluster, ClosingSupply())
    real, failures = cluster.client.request, [True]

    async def refusing(method: str, *more: Any, **named: Any) -> bytes:
        if method == "DELETE" and failures:
            failures.pop()
            raise Unreachable("no answer")
        return await real(method, *more, **named)

    cluster.client.request = refusing  # type: ignore[method-assign]
    async with cluster.running(working.run):
        cluster.cloud.notices.put_nowait(Interruption("health", "aws:///zone-1/i-a", "first"))
        await cluster.until(lambda: not failures)
        assert not cluster.cloud.acknowledged
        cluster.cloud.notices.put_nowait(Interruption("health", "aws:///zone-1/i-a", "again"))
        await cluster.until(lambda: cluster.cloud.acknowledged == ["again"])
    assert is_ending(cluster.claim("a"))
