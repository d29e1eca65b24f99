"""The status of classes: what they mean in the cloud, part by part."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.autoscaler.providers.provider import ResolvedClass
from packages.gpuplane.tests.autoscaler.disruption.replicated import add_node_pool
from tests.support.autoscaler_world import AutoscalerWorld
from tests.support.fake_cloud import CloudFault

CLASSES, TEMPLATES = ("karpenter.k8s.aws", "ec2nodeclasses"), ("karpenter.k8s.aws", "awsnodetemplates")
PARTS = ("SubnetsReady", "SecurityGroupsReady", "AMIsReady", "InstanceProfileReady", "ValidationSucceeded")
MEANING = ResolvedClass(
    subnets=(("subnet-2", "zone-2"), ("subnet-1", "zone-1")),
    security_groups=("sg-1",),
    images=(("ami-1", "amd64", True), ("ami-2", "arm64", False)),
    profile="nodes",
)


@pytest.fixture
async def world() -> AutoscalerWorld:
    made = AutoscalerWorld()
    await made.furnish()
    made.cloud.resolved = MEANING
    await add_node_pool(made, "g4dn.xlarge")
    return made


def status(world: AutoscalerWorld) -> dict[str, Any]:
    found: dict[str, Any] = (world.registry.get(CLASSES, None, "c") or {}).get("status", {})
    return found


def conditions(world: AutoscalerWorld) -> dict[str, str]:
    return {one["type"]: one["status"] for one in status(world).get("conditions", ())}


async def test_a_class_reports_what_it_means(world: AutoscalerWorld) -> None:
    async with world.autoscaling():
        await world.until(lambda: conditions(world))
        assert conditions(world) == dict.fromkeys((*PARTS, "Ready"), "True")
        found = status(world)
        assert found["subnets"] == [{"id": "subnet-1", "zone": "zone-1"}, {"id": "subnet-2", "zone": "zone-2"}]
        assert (found["securityGroups"], found["instanceProfile"]) == ([{"id": "sg-1"}], "nodes")
        arch, gpus = "kubernetes.io/arch", "karpenter.k8s.aws/instance-gpu-count"
        assert found["amis"] == [
            {
                "id": "ami-1",
                "requirements": [
                    {"key": arch, "operator": "In", "values": ["amd64"]},
                    {"key": gpus, "operator": "Exists"},
                ],
            },
            {
                "id": "ami-2",
                "requirements": [
                    {"key": arch, "operator": "In", "values": ["arm64"]},
                    {"key": gpus, "operator": "DoesNotExist"},
                ],
            },
        ]
        version = world.registry.get(CLASSES, None, "c")["metadata"]["resourceVersion"]  # type: ignore[index]
        await world.pass_time(150)
        assert world.registry.get(CLASSES, None, "c")["metadata"]["resourceVersion"] == version, "written once"  # type: ignore[index]


async def test_the_first_part_that_is_missing_is_false_and_those_behind_it_are_unknown(world: AutoscalerWorld) -> None:
    async with world.autoscaling():
        await world.until(lambda: conditions(world).get("Ready") == "True")
        world.cloud.resolved = ResolvedClass(subnets=MEANING.subnets, trouble="no group; tag", lacking=PARTS[1])
        await world.until(lambda: conditions(world)["Ready"] == "False")
        assert [conditions(world)[part] for part in PARTS] == ["True", "False", "Unknown", "Unknown", "Unknown"]
        assert "amis" not in status(world) or status(world)["amis"] == []
        [ready] = [one for one in status(world)["conditions"] if one["type"] == "Ready"]
        assert (ready["reason"], ready["message"]) == ("SecurityGroupsReady", "no group; tag")
        world.cloud.resolved = MEANING
        await world.until(lambda: conditions(world)["Ready"] == "True")


async def test_a_class_that_cannot_be_read_says_so(world: AutoscalerWorld) -> None:
    world.cloud.resolved = ResolvedClass(trouble="'much' is not a quantity", lacking=PARTS[4])
    async with world.autoscaling():
        await world.until(lambda: conditions(world))
    assert [conditions(world)[part] for part in PARTS] == ["Unknown"] * 4 + ["False"]


async def test_a_cloud_that_does_not_answer_changes_no_status(world: AutoscalerWorld) -> None:
    async with world.autoscaling():
        await world.until(lambda: conditions(world).get("Ready") == "True")
        before = status(world)
        world.cloud._fault = lambda: CloudFault.BEFORE
        await world.pass_time(150)
        assert status(world) == before


async def test_a_template_of_the_old_api_has_subnets_and_groups(world: AutoscalerWorld) -> None:
    spec = {"subnetSelector": {"a": "b"}, "securityGroupSelector": {"a": "b"}}
    await world.registry.create(TEMPLATES, None, {"metadata": {"name": "t"}, "spec": spec})
    async with world.autoscaling():
        found = await world.until(lambda: (world.registry.get(TEMPLATES, None, "t") or {}).get("status"))
    assert found["securityGroups"] == [{"id": "sg-1"}]
    assert len(found["subnets"]) == 2 and not found.get("conditions")
