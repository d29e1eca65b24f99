"""Events about what is not as expected: a node's taint when it registers, its shape, and pools without types."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane.api.nodeclaim import ClaimResources, NodeClaim, NodeClaimSpec, NodeClaimStatus
from gpuplane.autoscaler.lifecycle.consistency import shape_issues
from gpuplane.autoscaler.lifecycle.shape_checks import CHECK_SECONDS
from kubekit.api.core import Node, NodeStatus
from kubekit.api.meta import ObjectMeta
from kubekit.api.quantity import Quantity
from packages.gpuplane.tests.autoscaler.disruption.replicated import add_node_pool
from tests.support.autoscaler_world import POOLS, AutoscalerWorld


@pytest.fixture
async def world() -> AutoscalerWorld:
    made = AutoscalerWorld()
    await made.furnish()
    return made


def consistent(world: AutoscalerWorld) -> str:
    [claim] = world.claims()
    conditions = claim.get("status", {}).get("conditions", ())
    return next((one["status"] for one in conditions if one["type"] == "ConsistentStateFound"), "")


@pytest.mark.parametrize(
    ("wanted", "expected", "there", "issues"),
    [
        ({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "4"}, {"nvidia.com/gpu": "4"}, 0),
        ({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "4"}, {"nvidia.com/gpu": "3"}, 1),
        ({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "4"}, {}, 1),
        ({"memory": "1Gi"}, {"memory": "10Gi"}, {"memory": "9Gi"}, 0),
        ({"memory": "1Gi"}, {"memory": "10Gi"}, {"memory": "8Gi"}, 1),
        ({"cpu": "1"}, {"memory": "10Gi", "cpu": "4"}, {"cpu": "4"}, 0),
        ({"memory": "0"}, {"memory": "10Gi"}, {"memory": "1Gi"}, 0),
        ({"memory": "1Gi"}, {}, {"memory": "1Gi"}, 0),
    ],
    ids=repr,
)
def test_a_node_has_nine_tenths_of_what_its_claim_asks_for(
    wanted: dict[str, Quantity], expected: dict[str, Quantity], there: dict[str, Quantity], issues: int
) -> None:
    spec = NodeClaimSpec(resources=ClaimResources(requests=wanted))
    claim = NodeClaim(metadata=ObjectMeta(name="a"), spec=spec, status=NodeClaimStatus(capacity=expected))
    node = Node(metadata=ObjectMeta(name="n"), status=NodeStatus(capacity=there))
    assert len(shape_issues(claim, node)) == issues


async def test_a_node_that_lost_a_gpu_fails_its_check_until_it_has_it_again(world: AutoscalerWorld) -> None:
    await add_node_pool(world, "g4dn.12xlarge")
    async with world.autoscaling():
        await world.add_pods(1, gpus=2)
        await world.until(lambda: world.bound() and consistent(world) == "True")
        [node] = world.nodes()

        async def report(gpus: int) -> None:
            status = {"capacity": {"nvidia.com/gpu": str(gpus)}}
            await world.registry.patch(
                "nodes", None, node["metadata"]["name"], {"status": status}, "merge", subresource="status"
            )

        await report(3)
        await world.until(lambda: consistent(world) == "False", seconds=CHECK_SECONDS + 10, step=5)
        assert world.events("FailedConsistencyCheck") == ["the node has 3 of nvidia.com/gpu instead of 4, 75.0%"]
        await report(4)
        await world.until(lambda: consistent(world) == "True", seconds=CHECK_SECONDS + 10, step=5)


@pytest.mark.parametrize("taken", [True, False])
async def test_a_node_that_comes_without_the_taint_of_the_unregistered_is_reported(
    world: AutoscalerWorld, taken: bool
) -> None:
    await add_node_pool(world, "g4dn.xlarge")
    join = world.join

    async def join_without(instance: Any, request: Any) -> None:
        taints = tuple(one for one in request.taints if not (taken and one[0] == "karpenter.sh/unregistered"))
        await join(instance, msgspec.structs.replace(request, taints=taints))

    world.join = join_without  # type: ignore[method-assign]
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(world.bound)
    assert len(world.events("UnregisteredTaintMissing")) == taken


async def test_nodes_of_a_launch_template_that_the_user_made_may_come_without_the_taint(world: AutoscalerWorld) -> None:
    await world.add_provisioner("gpu")
    join = world.join

    async def join_without(instance: Any, request: Any) -> None:
        await join(instance, msgspec.structs.replace(request, taints=()))

    world.join = join_without  # type: ignore[method-assign]
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(world.bound)
    assert world.events("UnregisteredTaintMissing") == []


async def test_a_pool_that_no_type_is_left_for_says_so_once(world: AutoscalerWorld) -> None:
    await add_node_pool(world, "no.such")
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(lambda: world.events("NoCompatibleInstanceTypes"))
        await world.pass_time(120)
    assert world.events("NoCompatibleInstanceTypes") == [
        "no instance type with a known price satisfies its requirements"
    ]


async def test_a_pool_whose_types_leave_too_few_values_says_so(world: AutoscalerWorld) -> None:
    await add_node_pool(world, "g4dn.xlarge", "g4dn.2xlarge")
    [pool] = world.registry.list(POOLS)
    requirements = pool["spec"]["template"]["spec"]["requirements"]
    size = {"key": "karpenter.k8s.aws/instance-size", "operator": "Exists", "minValues": 3}
    patch = {"spec": {"template": {"spec": {"requirements": [*requirements, size]}}}}
    await world.registry.patch(POOLS, None, pool["metadata"]["name"], patch, "merge")
    async with world.autoscaling():
        await world.add_pods(1)
        [message] = await world.until(lambda: world.events("NoCompatibleInstanceTypes"))
        assert message == "minValues of karpenter.k8s.aws/instance-size is 3, and 2 would be left"
        world.settings = msgspec.structs.replace(world.settings, relax_min_values=True)
    async with world.autoscaling():
        await world.until(world.bound)
    [claim] = world.claims()
    assert claim["metadata"]["annotations"]["karpenter.sh/nodeclaim-min-values-relaxed"] == "true"
