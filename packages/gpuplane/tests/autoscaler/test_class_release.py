"""The end of a class: it stays while a NodeClaim uses it, and goes when what was made of it is deleted."""

from __future__ import annotations

from typing import Any

import pytest

from packages.gpuplane.tests.autoscaler.disruption.replicated import add_node_pool
from tests.support.autoscaler_world import CLAIMS, POOLS, AutoscalerWorld
from tests.support.fake_cloud import CloudFault

CLASSES = ("karpenter.k8s.aws", "ec2nodeclasses")
FINALIZER = "karpenter.k8s.aws/termination"


@pytest.fixture
async def world() -> AutoscalerWorld:
    made = AutoscalerWorld()
    await made.furnish()
    await add_node_pool(made, "g4dn.xlarge")
    return made


def node_class(world: AutoscalerWorld) -> dict[str, Any]:
    return world.registry.get(CLASSES, None, "c") or {}


def is_held(world: AutoscalerWorld) -> bool:
    return node_class(world)["metadata"].get("finalizers") == [FINALIZER]


async def test_a_class_stays_until_no_claim_uses_it(world: AutoscalerWorld) -> None:
    async with world.autoscaling():
        await world.until(lambda: is_held(world))
        await world.add_pods(1)
        await world.until(world.bound)
        [claim] = [one["metadata"]["name"] for one in world.claims()]
        await world.registry.delete(CLASSES, None, "c")
        await world.until(lambda: world.events("WaitingOnNodeClaimTermination"))
        assert world.events("WaitingOnNodeClaimTermination") == [f"waits for the NodeClaims that use it: {claim}"]

        # Nothing more is bought of it meanwhile, so that it comes to an end.
        await world.add_pods(1)
        [why] = await world.until(lambda: world.events("FailedScheduling"))
        assert "EC2NodeClass c is being deleted; name another class" in why
        await world.pass_time(30)
        assert node_class(world) and world.cloud.released == [] and len(world.cloud.launched) == 1

        await world.registry.delete(CLAIMS, None, claim)
        await world.until(lambda: not node_class(world), seconds=200)
        assert world.cloud.released == ["c"] and not world.cloud.running()


async def test_a_pool_whose_class_is_being_deleted_is_not_ready(world: AutoscalerWorld) -> None:
    def ready() -> str:
        [pool] = world.registry.list(POOLS)
        conditions = pool.get("status", {}).get("conditions", ())
        return next((one["status"] for one in conditions if one["type"] == "NodeClassReady"), "")

    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(lambda: world.bound() and ready() == "True")
        await world.registry.delete(CLASSES, None, "c")
        await world.until(lambda: ready() == "False")


async def test_a_class_that_nothing_uses_goes_at_once(world: AutoscalerWorld) -> None:
    async with world.autoscaling():
        await world.until(lambda: is_held(world))
        await world.registry.delete(CLASSES, None, "c")
        await world.until(lambda: not node_class(world), seconds=5)
    assert world.cloud.released == ["c"]


async def test_a_class_stays_while_the_cloud_does_not_answer_and_whoever_else_holds_it_is_respected(
    world: AutoscalerWorld,
) -> None:
    async with world.autoscaling():
        await world.until(lambda: is_held(world))
        others = {"metadata": {"finalizers": [FINALIZER, "example.com/mine"]}}
        await world.registry.patch(CLASSES, None, "c", others, "merge")
        world.cloud._fault = lambda: CloudFault.BEFORE
        await world.registry.delete(CLASSES, None, "c")
        await world.pass_time(60)
        assert FINALIZER in node_class(world)["metadata"]["finalizers"] and not world.cloud.released
        world.cloud._fault = lambda: CloudFault.NONE
        await world.until(lambda: world.cloud.released, seconds=300)
        await world.until(lambda: node_class(world)["metadata"]["finalizers"] == ["example.com/mine"])
