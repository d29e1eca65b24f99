"""A node is bought where the volumes of its pods are, or where they can be made."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.autoscaler.existing import ExistingNode
from gpuplane.autoscaler.nodeclaims import launch_options
from gpuplane.autoscaler.options import PoolLimits
from gpuplane.autoscaler.purchase import NodePurchase, decide_purchase
from gpuplane.autoscaler.snapshot import CloudFacts, ClusterSnapshot, ScalingFacts, take_snapshot
from gpuplane.autoscaler.volumes import VolumeFacts
from kubekit.scheduling.podinfo import NodeFacts
from packages.gpuplane.tests.autoscaler.volume_objects import (
    EBS_ZONE,
    ZONE,
    claim,
    storage,
    term,
    using,
    view,
    volume,
)
from packages.gpuplane.tests.autoscaler.worlds import AWS, FOUR, REPLICAS, ZONES, pod, pool
from tests.support.autoscaler_world import AutoscalerWorld
from tests.support.fake_cloud import ZONES as CLOUD_ZONES

CLAIMS = [
    claim("in-b", volumeName="pv-b"),
    claim("in-c-by-driver", volumeName="pv-c"),
    claim("in-a-or-b", volumeName="pv-ab"),
    claim("local", volumeName="pv-local"),
    claim("anywhere", volumeName="pv-anywhere"),
    claim("elsewhere", volumeName="pv-elsewhere"),
    claim("new", phase="Pending", storageClassName="zonal"),
    claim("new-anywhere", phase="Pending", storageClassName="free"),
    claim("at-once", phase="Pending", storageClassName="immediate"),
    claim("unknown-class", phase="Pending", storageClassName="missing"),
    claim("classless", phase="Pending"),
    claim("lost", phase="Lost", volumeName="pv-b"),
    claim("going", volumeName="pv-b", deleted="2026-11-23T00:00:00Z"),
    claim("no-volume", volumeName="pv-none"),
]
VOLUMES = [
    volume("pv-b", term(zone=["b"])),
    volume("pv-c", term(ebs=["c"])),
    volume("pv-ab", term(zone=["a"]), term(zone=["b"])),
    volume("pv-local", term(host=["node-1"], zone=["c"]), local={"path": "/mnt"}),
    volume("pv-anywhere"),
    volume("pv-elsewhere", term(zone=["z"])),
]
CLASSES = [
    storage("zonal", ["b", "c"], key=EBS_ZONE),
    storage("free"),
    storage("immediate", mode="Immediate"),
]
FACTS = VolumeFacts(
    {f"ml/{one.metadata.name}": one for one in CLAIMS}.get,
    {one.metadata.name: one for one in VOLUMES}.get,
    {one.metadata.name: one for one in CLASSES}.get,
)


def snapshot(*pods: dict[str, Any]) -> ClusterSnapshot:
    facts = ScalingFacts(pods=[view(one) for one in pods], pools=(pool(),), sharing=REPLICAS, volumes=FACTS)
    return take_snapshot(facts, CloudFacts(types=[AWS[name] for name in FOUR], zones={"gpu": ZONES}))


def decide(*pods: dict[str, Any], nodes: tuple[ExistingNode, ...] = ()) -> NodePurchase:
    found = snapshot(*pods)
    return decide_purchase(found.asks, found.offers, nodes)


@pytest.mark.parametrize(
    "claims, zone",
    [
        (["in-b"], "b"),
        (["in-c-by-driver"], "c"),
        (["in-a-or-b"], "a"),
        (["in-a-or-b", "new"], "b"),
        (["local"], "c"),
        (["anywhere"], "a"),
        (["new"], "b"),
        (["new-anywhere"], "a"),
    ],
)
def test_the_node_is_bought_in_a_zone_of_every_volume(claims: list[str], zone: str) -> None:
    (node,) = decide(using(*claims)).nodes
    assert node.option.zone == zone


@pytest.mark.parametrize(
    "wanted, why",
    [
        ("missing", "its volume claim missing does not exist"),
        ("going", "its volume claim going is being deleted"),
        ("lost", "its volume claim lost has lost its volume"),
        ("no-volume", "is bound to pv-none, which does not exist"),
        ("classless", "is not bound, and names no storage class"),
        ("unknown-class", "names the storage class missing, which does not exist"),
        ("at-once", "waits for a volume of the class immediate, which binds before a node is chosen"),
        ("elsewhere", f"gpu: a volume of the pod wants {ZONE} In z, and no node of the pool would have it"),
    ],
)
def test_nothing_is_bought_for_a_volume_that_no_node_can_have(wanted: str, why: str) -> None:
    answer = decide(using(wanted), using("anywhere", name="other"))
    assert [node.pods for node in answer.nodes] == [("ml/other",)]
    assert any(why in line for line in answer.waiting["ml/p"]), answer.waiting


def test_volumes_in_two_zones_leave_no_node() -> None:
    answer = decide(using("in-b", "in-c-by-driver"))
    assert not answer.nodes and answer.waiting["ml/p"]


def test_an_ephemeral_volume_follows_the_class_of_its_template_until_it_has_a_claim() -> None:
    template = {"spec": {"storageClassName": "zonal"}}
    data = {"name": "data", "ephemeral": {"volumeClaimTemplate": template}}
    (node,) = decide(pod("p", 1, volumes=[data])).nodes
    assert node.option.zone == "b"
    (node,) = decide(pod("in-c-by", 1, volumes=[{**data, "name": "driver"}])).nodes
    assert node.option.zone == "c", "the claim in-c-by-driver is there"


def test_a_zone_of_a_volume_is_no_preference() -> None:
    weighted = [{"weight": 9, "preference": term(zone=["a"])}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}
    answer = decide(using("in-b", affinity=affinity))
    assert [node.option.zone for node in answer.nodes] == ["b"]
    assert answer.given_up == {"ml/p": (f"node affinity: {ZONE} In a",)}


def test_volumes_do_not_change_how_pods_are_counted_when_they_spread() -> None:
    """As in Karpenter: the zone without a pod still counts, so a second pod of the volume's zone would be too many."""
    spread = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}},
    }
    fields = {"labels": {"app": "x"}, "topologySpreadConstraints": [spread]}
    answer = decide(*(using("in-b", name=f"p-{at}", **fields) for at in range(2)))
    assert len(answer.nodes) == 1 and len(answer.waiting) == 1


def test_a_node_that_exists_takes_the_pod_only_in_the_volumes_zone() -> None:
    room = {"cpu": 4000, "memory": 1 << 34, "pods": 29, "nvidia.com/gpu": 1}
    nodes = [ExistingNode(f"n-{zone}", "gpu", NodeFacts(f"n-{zone}", {ZONE: zone}, room), room) for zone in "ab"]
    assert decide(using("in-b"), nodes=tuple(nodes)).placed == {"ml/p": "n-b"}
    assert [node.option.zone for node in decide(using("in-b"), nodes=(nodes[0],)).nodes] == ["b"]


def test_the_launch_keeps_the_zone() -> None:
    found = snapshot(using("in-b"))
    (node,) = decide_purchase(found.asks, found.offers).nodes
    offers = found.offers[0]
    options = launch_options(node, offers, {ask.key: ask for ask in found.asks}, PoolLimits([offers.pool]))
    assert {option.zone for option in options} == {"b"} and len(options) > 1


def test_pods_with_volumes_in_one_zone_are_of_one_kind() -> None:
    asks = snapshot(using("in-b"), using("in-b", name="q"), using("in-c-by-driver", name="r")).asks
    assert len({ask.number for ask in asks}) == 2 and all(ask.free for ask in asks)


# -- the controller ----------------------------------------------------------------------------------------------------


async def test_a_pod_waits_for_its_volume_and_then_gets_a_node_in_its_zone() -> None:
    world = AutoscalerWorld()
    await world.furnish()
    await world.add_provisioner("gpu")
    size = {"resources": {"requests": {"storage": "1Gi"}}}
    wanted = {"accessModes": ["ReadWriteOnce"], **size}
    await world.registry.create(
        "persistentvolumeclaims", "default", {"metadata": {"name": "data"}, "spec": {**wanted, "storageClassName": "s"}}
    )
    async with world.autoscaling():
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        await world.add_pods(1, volumes=volumes)
        await world.until(lambda: world.events("FailedScheduling"))
        assert "names the storage class s, which does not exist" in world.events("FailedScheduling")[0]
        assert not world.claims()
        zone = CLOUD_ZONES[-1]
        expressions = [{"key": EBS_ZONE, "values": [zone]}]
        storage_class = {
            "metadata": {"name": "s"},
            "provisioner": "ebs.csi.aws.com",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": [{"matchLabelExpressions": expressions}],
        }
        await world.registry.create(("storage.k8s.io", "storageclasses"), None, storage_class)
        await world.until(world.bound)
    assert [instance.zone for instance in world.cloud.launched] == [zone]
