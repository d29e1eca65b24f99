"""Disruption by the whole autoscaler: nodes that drift, cost too much, expire or are taken back, while pods go on."""

from __future__ import annotations

import msgspec
import pytest

from gpuplane.autoscaler.disruption.replacement import GATE_CLOSED
from gpuplane.autoscaler.providers.provider import ResolvedClass
from packages.gpuplane.tests.autoscaler.disruption.replicated import (
    TYPE,
    Replicated,
    add_node_pool,
    cpu_of,
    disruption_reasons,
    machines,
)
from tests.support.autoscaler_world import CLAIMS, TYPES
from tests.support.fake_cloud import ZONES


@pytest.fixture
async def world() -> Replicated:
    made = Replicated()
    await made.furnish()
    return made


@pytest.mark.parametrize("generation", ["old", "new"])
async def test_a_new_image_replaces_the_nodes_one_by_one_and_pods_move(world: Replicated, generation: str) -> None:
    if generation == "old":
        await world.add_provisioner("gpu")
    else:
        await add_node_pool(world, "g4dn.xlarge", disruption={"budgets": [{"nodes": "1"}], "consolidateAfter": "Never"})
    world.wanted = [(3, 1, "3")]
    async with world.autoscaling():
        await world.until(lambda: world.is_settled() and len(world.bound()) == 3)
        old = {one.provider_id for one in world.cloud.running()}
        assert len(old) == 3
        world.cloud.image = "image-2"
        world.cloud.resolved = ResolvedClass(zones=ZONES, images=(("image-2", "amd64", True),))
        await world.until(
            lambda: world.is_settled() and not old & {one.provider_id for one in world.cloud.running()}, seconds=900
        )
        await world.pass_time(60)
    assert len(world.cloud.running()) == 3
    assert len(world.cloud.launched) == 6
    assert world.most_running == 4, "each new node comes before the old one goes, and one at a time"


async def test_a_node_that_is_too_dear_is_replaced_by_a_cheaper_one(world: Replicated) -> None:
    two = [{"key": TYPE, "operator": "In", "values": ["g4dn.xlarge", "g4dn.12xlarge"]}]
    await world.add_provisioner("gpu", requirements=two, consolidation={"enabled": True})
    world.wanted = [(1, 0, "20"), (1, 0, "2")]
    async with world.autoscaling() as process:
        await world.until(world.is_settled)
        assert machines(world) == ["g4dn.12xlarge"]
        world.wanted = [(1, 0, "2")]
        big = next(pod for pod in world.registry.list("pods", "default") if cpu_of(pod) == "20")
        await world.registry.delete("pods", "default", big["metadata"]["name"], grace=0)
        await world.until(
            lambda: world.is_settled() and [one.machine for one in world.cloud.running()] == ["g4dn.xlarge"],
            seconds=300,
        )
        await world.pass_time(60)
        assert [key[0] for key in process.disruption.writer.disrupted] == ["underutilized"]
    assert len(world.cloud.launched) == 2


@pytest.mark.parametrize("gate", [False, True])
async def test_a_spot_node_that_is_too_dear_is_replaced_by_spot_with_the_gate_only(gate: bool) -> None:
    spot = [msgspec.structs.replace(one, prices=(("spot", one.prices[0][1] * 0.4),)) for one in TYPES.values()]
    world = Replicated(spot)
    await world.furnish()
    world.settings = msgspec.structs.replace(world.settings, spot_to_spot=gate)
    dear = sorted(spot, key=lambda one: one.prices[0][1])[20:]
    held = {one.name for one in dear}
    await add_node_pool(world, *TYPES)
    world.cloud.closed = {("spot", one.name, zone) for one in spot if one.name not in held for zone in ZONES}
    world.wanted = [(1, 1, "2")]
    async with world.autoscaling():
        await world.until(world.is_settled, seconds=600)
        [first] = world.cloud.running()
        world.cloud.closed = set()
        if not gate:
            await world.until(lambda: world.events("Unconsolidatable"), seconds=600)
            await world.pass_time(60)
            assert GATE_CLOSED in world.events("Unconsolidatable")
            assert world.cloud.running() == [first]
            return
        await world.until(
            lambda: world.is_settled() and machines(world) != [first.machine] and len(world.cloud.running()) == 1,
            seconds=600,
        )
        launched = len(world.cloud.launched)
        types = {one.machine for one in world.cloud.requests[-1].offerings}
        assert len(types) == 15 and {one.capacity_type for one in world.cloud.requests[-1].offerings} == {"spot"}
        await world.pass_time(600)
        assert len(world.cloud.launched) == launched, "no node is replaced again for a little less"


async def test_pods_of_two_nodes_move_together(world: Replicated) -> None:
    two = [{"key": TYPE, "operator": "In", "values": ["g4dn.xlarge"]}]
    await world.add_provisioner("gpu", requirements=two, consolidation={"enabled": True})
    world.wanted = [(1, 0, "2500m"), (1, 0, "2600m"), (2, 0, "700m")]
    async with world.autoscaling():
        await world.until(world.is_settled)
        assert len(world.cloud.running()) == 2
        gone = next(pod for pod in world.registry.list("pods", "default") if cpu_of(pod) == "2600m")
        world.wanted = [(1, 0, "2500m"), (2, 0, "700m")]
        await world.registry.delete("pods", "default", gone["metadata"]["name"], grace=0)
        await world.pass_time(200)
        # 2500m and one of 700m fill one node: both nodes are needed, and nothing moves to and fro.
        assert len(world.cloud.launched) == 2
        left = next(pod for pod in world.registry.list("pods", "default") if cpu_of(pod) == "700m")
        world.wanted = [(1, 0, "2500m"), (1, 0, "700m")]
        await world.registry.delete("pods", "default", left["metadata"]["name"], grace=0)
        await world.until(lambda: world.is_settled() and len(world.cloud.running()) == 1, seconds=300)
    assert len(world.cloud.launched) == 2


async def test_an_old_node_expires_and_its_pod_gets_another_one(world: Replicated) -> None:
    await world.add_provisioner("gpu", ttlSecondsUntilExpired=600)
    world.wanted = [(1, 1, "1")]
    async with world.autoscaling():
        await world.until(world.is_settled)
        [first] = world.cloud.running()
        await world.until(
            lambda: world.is_settled() and first.provider_id not in {one.provider_id for one in world.cloud.running()},
            seconds=900,
        )
    assert len(world.cloud.running()) == 1


@pytest.mark.parametrize("seconds", [2, 12, 25, 41, 50])
async def test_a_drift_that_a_crash_cuts_off_ends_well(world: Replicated, seconds: float) -> None:
    await world.add_provisioner("gpu", ttlSecondsAfterEmpty=30)
    world.wanted = [(1, 1, "3")]
    async with world.autoscaling():
        await world.until(world.is_settled)
        [old] = world.cloud.running()
        world.cloud.image = "image-2"
        world.cloud.resolved = msgspec.structs.replace(world.cloud.resolved, images=(("image-2", "amd64", True),))
        await world.pass_time(seconds)
    async with world.autoscaling():
        await world.until(
            lambda: world.is_settled() and old.provider_id not in {one.provider_id for one in world.cloud.running()},
            seconds=900,
        )
        await world.until(lambda: len(world.cloud.running()) == 1, seconds=200)
        assert not disruption_reasons(world)
    assert len(world.claims()) == 1
    assert len(world.cloud.launched) == 2
    assert world.registry.list(CLAIMS)[0]["status"]["imageID"] == "image-2"
