"""Nothing is left over: claims without an instance, instances and nodes without a claim."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gpuplane.api.nodeclaim import NodeClaim, NodeClaimStatus
from gpuplane.autoscaler.garbage import orphans
from gpuplane.autoscaler.providers.provider import CloudInstance
from kubekit.api.meta import ObjectMeta
from tests.support.autoscaler_world import CLAIMS, NOW, AutoscalerWorld

LAUNCHED = "2026-11-18T11:06:40Z"  # NOW


@pytest.fixture
async def world() -> AsyncIterator[AutoscalerWorld]:
    found = AutoscalerWorld()
    await found.furnish()
    await found.add_provisioner("gpu")
    yield found


async def forget_claim(world: AutoscalerWorld) -> None:
    """Take the only claim away as a user does who removes its finalizer."""
    [claim] = world.claims()
    name = claim["metadata"]["name"]
    await world.registry.patch(CLAIMS, None, name, {"metadata": {"finalizers": None}}, "merge")
    await world.registry.delete(CLAIMS, None, name)
    assert not world.claims()


async def test_a_node_whose_claim_a_user_took_away_is_drained_before_its_instance_ends(world: AutoscalerWorld) -> None:
    async with world.autoscaling() as process:
        [pod] = await world.add_pods(1)
        await world.until(world.bound)
        [first] = world.cloud.running()
        await forget_claim(world)
        await world.until(lambda: pod not in world.bound(), seconds=200)
        assert [one.provider_id for one in world.cloud.running()][:1] == [first.provider_id]

        await world.until(lambda: first.provider_id in world.cloud.ended, seconds=200)
        await world.until(lambda: world.bound() and len(world.nodes()) == 1, seconds=200)
        assert process.garbage.collected == 0, "its node was drained instead"
        assert world.cloud.ended == [first.provider_id]


async def test_a_claim_that_is_taken_away_while_its_node_ends_leaves_nothing(world: AutoscalerWorld) -> None:
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(world.bound)
        [node] = world.nodes()
        await world.registry.delete("nodes", None, node["metadata"]["name"])
        await forget_claim(world)
        await world.until(lambda: len(world.cloud.ended) == 1, seconds=200)
        await world.until(lambda: node["metadata"]["name"] not in str(world.nodes()), seconds=200)


async def test_a_node_whose_claim_went_while_no_autoscaler_worked_is_finished_by_the_next(
    world: AutoscalerWorld,
) -> None:
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(world.bound)
    [node] = world.nodes()
    await forget_claim(world)
    async with world.autoscaling():
        await world.until(lambda: node["metadata"]["name"] not in str(world.nodes()), seconds=400)
        assert len(world.cloud.ended) == 1


@pytest.mark.parametrize(("age", "ends"), [(10.0, False), (60.0, True), (-20.0, False), (-7200.0, True)])
def test_an_instance_without_a_claim_ends_unless_it_is_young(age: float, ends: bool) -> None:
    stray = CloudInstance("i", "lost", "gpu", "g4dn.xlarge", "zone-1", "on-demand", "", "running", LAUNCHED)
    assert bool(orphans([stray], [], NOW + age)) is ends


def test_a_claim_keeps_its_own_instance_only() -> None:
    def instance(provider_id: str, claim: str, state: str = "running") -> CloudInstance:
        return CloudInstance(provider_id, claim, "gpu", "g4dn.xlarge", "z", "on-demand", "", state, LAUNCHED)

    launched = NodeClaim(metadata=ObjectMeta(name="a"), status=NodeClaimStatus(provider_id="i-1"))
    begun = NodeClaim(metadata=ObjectMeta(name="b"))
    there = [instance("i-1", "a"), instance("i-2", "a"), instance("i-3", "b"), instance("i-4", "c", "stopping")]
    assert [one.provider_id for one in orphans(there, [launched, begun], NOW + 60)] == ["i-2"]
