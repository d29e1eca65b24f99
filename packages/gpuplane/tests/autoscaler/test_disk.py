"""Pods that request `ephemeral-storage`: the disk of a node to come, as its class or launch template declares it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.api.karpenter import EC2NodeClass, declared_class
from gpuplane.api.karpenter_disk import disk_of_class
from gpuplane.autoscaler.options import SharingSettings, make_options
from gpuplane.autoscaler.overhead import disk_for_pods
from gpuplane.autoscaler.providers.aws.lookup import disk_of_template
from kubekit.api.meta import ObjectMeta
from packages.gpuplane.tests.autoscaler.disruption.replicated import add_node_pool
from packages.gpuplane.tests.autoscaler.worlds import AWS, pool, types_named
from tests.support.autoscaler_world import CLAIMS, AutoscalerWorld

GIB = 1 << 30
CLASSES = ("karpenter.k8s.aws", "ec2nodeclasses")
BIG = [{"deviceName": "/dev/xvda", "ebs": {"volumeSize": "100Gi"}}]
TWO = [
    {"deviceName": "/dev/xvda", "ebs": {"volumeSize": "4Gi"}},
    {"deviceName": "/dev/xvdb", "ebs": {"volumeSize": "50Gi"}},
]
AL2023, BOTTLEROCKET = [{"alias": "al2023@latest"}], [{"alias": "bottlerocket@latest"}]


@pytest.mark.parametrize(
    ("spec", "gib"),
    [
        ({"amiSelectorTerms": AL2023}, 20),
        ({"amiSelectorTerms": AL2023, "blockDeviceMappings": BIG}, 100),
        ({"amiSelectorTerms": BOTTLEROCKET}, 20),
        ({"amiSelectorTerms": BOTTLEROCKET, "blockDeviceMappings": TWO}, 50),
        ({"amiSelectorTerms": AL2023, "blockDeviceMappings": [TWO[0], {**TWO[1], "rootVolume": True}]}, 50),
        ({"amiFamily": "Custom", "amiSelectorTerms": [{"id": "ami-1"}]}, 0),
        ({"amiFamily": "Custom", "amiSelectorTerms": [{"id": "ami-1"}], "blockDeviceMappings": TWO}, 50),
        ({"amiSelectorTerms": [{"id": "ami-1"}]}, 0),
        ({"subnetSelector": {"a": "b"}}, 20),
        ({"subnetSelector": {"a": "b"}, "amiFamily": "Bottlerocket", "blockDeviceMappings": TWO}, 50),
        ({"launchTemplate": "x", "subnetSelector": {"a": "b"}}, 0),
        ({"amiSelectorTerms": AL2023, "blockDeviceMappings": [{**BIG[0], "ebs": {"snapshotID": "snap-1"}}]}, 0),
        ({"amiSelectorTerms": AL2023, "blockDeviceMappings": [{**BIG[0], "ebs": {"volumeSize": "much"}}]}, 0),
        ({"amiSelectorTerms": AL2023, "blockDeviceMappings": "none"}, 0),
    ],
    ids=repr,
)
def test_the_class_declares_the_disk(spec: dict[str, Any], gib: int) -> None:
    assert disk_of_class(spec) == gib * GIB


def test_local_disks_are_the_disk_for_pods_where_the_class_joins_them() -> None:
    own = EC2NodeClass(ObjectMeta(name="gpu"), {"amiSelectorTerms": AL2023, "instanceStorePolicy": "RAID0"})
    asked = pool("gpu", types_named("g4dn.xlarge", "g3.4xlarge"), class_kind="EC2NodeClass", class_name="gpu")
    found = make_options(asked, [declared_class(own)], list(AWS.values()), SharingSettings())
    # 125 GB by the data sheet; a g3 has no local disk, so the class' 20 GiB count.
    assert {one.machine.name: one.capacity["ephemeral-storage"] for one in found.options} == {
        "g4dn.xlarge": 125 * 10**9,
        "g3.4xlarge": 20 * GIB,
    }
    assert found.options[0].free["ephemeral-storage"] == disk_for_pods(125 * 10**9)


@pytest.mark.parametrize(
    ("data", "gib"),
    [
        ({"BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 120}}]}, 120),
        ({"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 30}}]}, 30),
        (
            {
                "BlockDeviceMappings": [
                    {"DeviceName": "/dev/xvdb", "Ebs": {"VolumeSize": 500}},
                    {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 40}},
                ]
            },
            40,
        ),
        ({"BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"SnapshotId": "snap-1"}}]}, 0),
        ({}, 0),
    ],
)
def test_the_launch_template_declares_the_disk(data: dict[str, Any], gib: int) -> None:
    assert disk_of_template(data) == gib * GIB


def test_pods_have_what_system_and_evictions_leave_of_the_disk() -> None:
    assert disk_for_pods(20 * GIB) == 17 * GIB  # 1 GiB is reserved, and 10% stay free


@pytest.fixture
async def world() -> AutoscalerWorld:
    made = AutoscalerWorld()
    await made.furnish()
    await add_node_pool(made, "g4dn.xlarge", "g4dn.2xlarge")
    return made


async def declare_disk(world: AutoscalerWorld, disks: list[dict[str, Any]]) -> None:
    await world.registry.patch(CLASSES, None, "c", {"spec": {"blockDeviceMappings": disks}}, "merge")


def offer_disk(world: AutoscalerWorld, gib: int) -> None:
    world.offered = lambda instance: {"nvidia.com/gpu": "1", "ephemeral-storage": str(gib * GIB)}


async def test_a_pod_that_writes_to_the_disk_gets_a_node_and_runs(world: AutoscalerWorld) -> None:
    await declare_disk(world, BIG)
    offer_disk(world, 89)
    async with world.autoscaling():
        await world.add_pods(1, disk="50Gi")
        await world.until(world.bound)
    assert [one.machine for one in world.cloud.launched] == ["g4dn.xlarge"]


async def test_nothing_is_bought_for_a_pod_that_writes_more_than_the_disk_has(world: AutoscalerWorld) -> None:
    async with world.autoscaling():
        await world.add_pods(1, disk="18Gi")
        text = await world.until(lambda: world.events("FailedScheduling"))
        await world.pass_time(60)
    assert "Insufficient ephemeral-storage" in text[0]
    assert world.cloud.launched == [] and world.claims() == []


async def test_a_node_with_too_small_a_disk_is_promised_to_no_pod(world: AutoscalerWorld) -> None:
    offer_disk(world, 17)
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(world.bound)
        for pod in world.registry.list("pods", "default"):
            await world.registry.delete("pods", "default", pod["metadata"]["name"], grace=0)
        await declare_disk(world, BIG)
        offer_disk(world, 89)
        await world.add_pods(1, disk="50Gi")
        await world.until(world.bound)
    assert len(world.cloud.launched) == 2


async def test_disks_of_unknown_size_are_learned_and_not_bought_again_and_again(world: AutoscalerWorld) -> None:
    images = {"amiFamily": "Custom", "amiSelectorTerms": [{"id": "ami-0123456789abcdef0"}]}
    await world.registry.patch(CLASSES, None, "c", {"spec": images}, "merge")
    offer_disk(world, 17)
    async with world.autoscaling():
        await world.add_pods(1, disk="50Gi")
        text = await world.until(lambda: world.events("FailedScheduling"), 600)
        bought = len(world.cloud.launched)
        await world.pass_time(900)
    assert bought == len(world.cloud.launched) == 2, "one of each type"
    assert "Insufficient ephemeral-storage" in text[0]


async def test_a_disk_that_turns_out_smaller_than_declared_is_learned(world: AutoscalerWorld) -> None:
    await declare_disk(world, BIG)
    offer_disk(world, 17)  # the image has not grown its file system
    async with world.autoscaling():
        await world.add_pods(1, disk="50Gi")
        await world.until(lambda: world.events("FailedScheduling"), 600)
        await world.pass_time(900)
    assert len(world.cloud.launched) == 2, "one of each type"
    assert "ephemeral-storage" in world.events("AllocatableDiffers")[0]


async def test_a_claim_that_no_offer_holds_is_not_made_again_and_again(world: AutoscalerWorld) -> None:
    """It waits for offers until its launch has taken too long."""
    [pool] = world.registry.list(("karpenter.sh", "nodepools"))
    name = pool["metadata"]["name"]
    meta = {"name": "odd", "labels": {"karpenter.sh/nodepool": name}, "finalizers": ["karpenter.sh/termination"]}
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "c"}
    spec = {"nodeClassRef": reference, "requirements": [], "resources": {"requests": {"nvidia.com/gpu": "99"}}}
    await world.registry.create(CLAIMS, None, {"metadata": meta, "spec": spec})
    async with world.autoscaling():
        await world.until(lambda: world.events("NoCompatibleInstanceTypes"))
        await world.pass_time(200)
        [claim] = world.claims()
        [launched] = [one for one in claim["status"]["conditions"] if one["type"] == "Launched"]
        assert (launched["status"], launched["reason"]) == ("Unknown", "NoCompatibleInstanceTypes")
        await world.until(lambda: not world.claims(), 200)
    assert world.cloud.launched == []
