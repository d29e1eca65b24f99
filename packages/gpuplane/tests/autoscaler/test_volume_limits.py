"""A node gets no more volumes than its CSI drivers attach to it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.api.karpenter import ZONE_LABEL
from gpuplane.autoscaler.disruption.cluster_world import ClusterWorld
from gpuplane.autoscaler.disruption.removal import removal_outcome
from gpuplane.autoscaler.existing import NodeFilling
from gpuplane.autoscaler.observed import PodView, view_pod
from gpuplane.autoscaler.purchase import NodePurchase, decide_purchase
from gpuplane.autoscaler.snapshot import CloudFacts, ScalingFacts, take_snapshot
from gpuplane.autoscaler.volume_limits import NodeDrivers, VolumeLimits, VolumeRoom, view_drivers
from gpuplane.autoscaler.volumes import VolumeFacts
from kubekit.api.core import Node
from kubekit.api.raw import RawPod
from packages.gpuplane.tests.autoscaler.volume_objects import claim, storage, using, view, volume
from packages.gpuplane.tests.autoscaler.worlds import AWS, REPLICAS, ZONES, pod, pool, types_named
from tests.support.autoscaler_world import CLAIMS as NODE_CLAIMS
from tests.support.autoscaler_world import AutoscalerWorld
from tests.support.fake_cloud import CloudInstance, LaunchRequest

EBS, OTHER = "ebs.csi.aws.com", "nfs.example.com"
CLASSES = [storage("ebs", provisioner=EBS), storage("old", provisioner="kubernetes.io/aws-ebs"), storage("other")]
VOLUMES = [
    volume("pv-csi", csi={"driver": EBS, "volumeHandle": "vol-1"}),
    volume("pv-old", awsElasticBlockStore={"volumeID": "vol-2"}),
    volume("pv-nfs", nfs={"server": "s", "path": "/"}),
]
OWN = [claim(f"own-{number}", phase="Pending", storageClassName="ebs") for number in range(100)]
CLAIMS = [
    *OWN,
    claim("bound", volumeName="pv-csi", storageClassName="other"),
    claim("bound-old", volumeName="pv-old"),
    claim("bound-nfs", volumeName="pv-nfs", storageClassName="ebs"),
    claim("new-old", phase="Pending", storageClassName="old"),
    claim("new-other", phase="Pending", storageClassName="other"),
]
FACTS = VolumeFacts(
    {f"ml/{one.metadata.name}": one for one in CLAIMS}.get,
    {one.metadata.name: one for one in VOLUMES}.get,
    {one.metadata.name: one for one in CLASSES}.get,
)
OFFERS = {"cpu": "32", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "30"}


def node(name: str) -> Node:
    raw = {"metadata": {"name": name, "labels": {ZONE_LABEL: "a"}}, "status": {"allocatable": OFFERS}}
    return msgspec.convert(raw, Node)


def running(name: str, node: str, *claims: str) -> PodView:
    raw = using(*claims, name=name)
    spec = {**raw["spec"], "nodeName": node}
    return view_pod(msgspec.convert({**raw, "spec": spec, "status": {"phase": "Running"}}, RawPod))


def facts(*pods: PodView, limits: dict[str, VolumeLimits], most: VolumeLimits | None = None) -> ScalingFacts:
    known = most if most is not None else {}
    return ScalingFacts(
        pods=pods,
        nodes=[node(name) for name in limits],
        pools=(pool("gpu", types_named("g4dn.12xlarge")),),
        sharing=REPLICAS,
        volumes=FACTS,
        volume_limits=limits,
        most_volumes=known,
    )


CLOUD = CloudFacts(types=[AWS["g4dn.12xlarge"]], zones={"gpu": ZONES})


def decide(*pods: PodView, limits: dict[str, VolumeLimits], most: VolumeLimits | None = None) -> NodePurchase:
    found = take_snapshot(facts(*pods, limits=limits, most=most), CLOUD)
    return decide_purchase(found.asks, found.offers, found.nodes)


def waiting(name: str, *claims: str, gpus: int = 1) -> PodView:
    return view(using(*claims, name=name, gpus=gpus))


def sizes(answer: NodePurchase) -> list[int]:
    """Return the number of pods of each node to buy."""
    return sorted(len(bought.pods) for bought in answer.nodes)


# -- nodes that exist --------------------------------------------------------------------------------------------------


def test_a_node_takes_as_many_volumes_as_its_driver_states_and_one_is_bought_for_the_rest() -> None:
    pods = [waiting(f"p{number}", f"own-{number}") for number in range(5)]
    answer = decide(running("r", "n", "bound"), *pods, limits={"n": {EBS: 3}})
    assert list(answer.placed.values()) == ["n", "n"]
    assert [len(bought.pods) for bought in answer.nodes] == [3]


@pytest.mark.parametrize("name", ["bound", "bound-old", "new-old", "own-1"])
def test_a_volume_counts_by_the_driver_of_its_volume_or_of_its_class(name: str) -> None:
    assert not decide(waiting("p", name), limits={"n": {EBS: 0}}).placed


@pytest.mark.parametrize("name", ["bound-nfs", "new-other"])
def test_a_volume_of_no_such_driver_does_not_count(name: str) -> None:
    """Not even by the storage class of a claim that is bound: that named what made it, or only a match."""
    assert decide(waiting("p", name), limits={"n": {EBS: 0}}).placed == {"ml/p": "n"}


def test_an_ephemeral_volume_counts_by_the_class_of_its_template() -> None:
    template = {"spec": {"storageClassName": "ebs"}}
    volumes = [{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}]
    assert not decide(view(pod("p", 1, volumes=volumes)), limits={"n": {EBS: 0}}).placed
    assert decide(view(pod("p", 1, volumes=volumes)), limits={"n": {EBS: 1}}).placed


def test_a_volume_of_several_pods_counts_once_on_a_node() -> None:
    some = [waiting(f"p{number}", "bound", "bound") for number in range(3)]
    answer = decide(running("r", "n", "bound"), *some, waiting("q", "own-1"), limits={"n": {EBS: 1}})
    assert set(answer.placed) == {"ml/p0", "ml/p1", "ml/p2"}


def test_a_full_node_that_has_the_volume_already_is_not_passed_over_for_a_pod_like_another() -> None:
    """The first pod of the kind finds no room there, and the second one brings nothing new."""
    pods = [waiting("a", "own-1"), waiting("b", "bound")]
    answer = decide(running("r", "n", "bound"), *pods, limits={"n": {EBS: 1}})
    assert answer.placed == {"ml/b": "n"}


def test_limits_of_other_drivers_and_nodes_bind_nothing() -> None:
    limits: dict[str, VolumeLimits] = {"a": {EBS: 0, OTHER: 5}, "b": {OTHER: 0}}
    assert decide(waiting("p", "own-1"), limits=limits).placed == {"ml/p": "b"}


def test_a_node_beyond_its_limit_takes_pods_without_new_volumes() -> None:
    there = running("r", "n", "bound", "own-1")
    answer = decide(there, waiting("p", "bound"), waiting("q", "own-2"), limits={"n": {EBS: 1}})
    assert answer.placed == {"ml/p": "n"}


def test_pods_with_as_many_volumes_of_their_own_are_of_one_kind() -> None:
    pods = [waiting("p", "own-1"), waiting("q", "own-2"), waiting("r", "own-3", "own-4"), waiting("s")]
    asks = take_snapshot(facts(*pods, limits={"n": {EBS: 9}}), CLOUD).asks
    assert len({ask.number for ask in asks}) == 3 and all(ask.free for ask in asks)


drawn = st.lists(st.lists(st.integers(0, 6), max_size=3), min_size=1, max_size=10)


@settings(max_examples=60, deadline=None)
@given(drawn, st.lists(st.integers(0, 4), min_size=1, max_size=3), st.lists(st.integers(0, 6), max_size=3))
def test_no_node_exceeds_its_limit_and_none_that_has_room_is_passed_over(
    wanted: list[list[int]], counts: list[int], there: list[int]
) -> None:
    limits: dict[str, VolumeLimits] = {f"n{at}": {EBS: count} for at, count in enumerate(counts)}
    old = running("r", "n0", *(f"own-{number}" for number in there))
    pods = [waiting(f"p{at}", *(f"own-{number}" for number in some)) for at, some in enumerate(wanted)]
    found = take_snapshot(facts(old, *pods, limits=limits), CLOUD)
    filling = NodeFilling(found.nodes)
    on: dict[str, set[int]] = {name: set() for name in limits}
    on["n0"] = set(there)
    for ask in found.asks:
        mine = set(wanted[int(ask.key.removeprefix("ml/p"))])
        fits = [name for name in sorted(limits) if mine <= on[name] or len(on[name] | mine) <= limits[name][EBS]]
        assert filling.add(ask, None, None) == bool(fits)
        if fits:
            assert filling.placed[ask.key] == fits[0]
            on[fits[0]] |= mine


# -- nodes to buy ------------------------------------------------------------------------------------------------------


def test_a_node_to_buy_gets_no_more_volumes_than_any_node_is_known_to_attach() -> None:
    """Neither of those that are proposed together nor of those that are filled pod by pod."""
    few = [waiting(f"p{number}", f"own-{number}") for number in range(4)]
    assert [len(bought.pods) for bought in decide(*few, limits={}).nodes] == [4]
    assert sizes(decide(*few, limits={}, most={EBS: 3})) == [1, 3]
    many = [waiting(f"p{number}", f"own-{number}", gpus=0) for number in range(60)]
    assert sizes(decide(*many, limits={}, most={EBS: 25})) == [10, 25, 25]


def test_nothing_is_bought_for_a_pod_with_more_volumes_than_any_node_is_known_to_attach() -> None:
    answer = decide(waiting("p", "own-1", "own-2"), waiting("q", "own-3"), limits={}, most={EBS: 1})
    assert [bought.pods for bought in answer.nodes] == [("ml/q",)]
    assert answer.waiting == {
        "ml/p": (f"gpu: its 2 volumes of {EBS} are more than any node here has attached so far: 1",)
    }


# -- consolidation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room, moves", [(1, False), (2, True)])
def test_a_node_stays_if_no_other_one_attaches_the_volumes_of_its_pods(room: int, moves: bool) -> None:
    pods = [running("p", "a", "own-1"), running("q", "b", "own-2")]
    world = ClusterWorld(facts(*pods, limits={"a": {EBS: 5}, "b": {EBS: room}}), CLOUD, None)  # type: ignore[arg-type]  # nothing is bought
    outcome = removal_outcome(world.question(["a"]))
    assert bool(outcome.bought) is not moves
    assert outcome.is_possible


def test_places_of_the_quick_answer_count_volumes_too() -> None:
    pods = [running("p", "a", "own-1"), running("q", "b", "own-2")]
    found: list[bool] = []
    for room in (1, 2):
        world = ClusterWorld(facts(*pods, limits={"a": {EBS: 5}, "b": {EBS: room}}), CLOUD, None)  # type: ignore[arg-type]  # as above
        places, _ = world.screen()._whole
        left = places.left(world.question(["a"]).asks, "a")
        assert left is not None
        found.append(bool(left))
    assert found == [True, False]


# -- objects -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec, limits",
    [
        ({"drivers": None}, {}),
        ({"drivers": [{"name": EBS, "nodeID": "i-1"}]}, {}),
        ({"drivers": [{"name": EBS, "nodeID": "i-1", "allocatable": {}}]}, {}),
        ({"drivers": [{"name": EBS, "nodeID": "i-1", "allocatable": {"count": 0}}]}, {EBS: 0}),
        ({"drivers": [{"name": EBS, "allocatable": {"count": 25}}, {"name": OTHER}]}, {EBS: 25}),
    ],
)
def test_a_driver_without_a_count_attaches_any_number(spec: dict[str, Any], limits: VolumeLimits) -> None:
    raw = msgspec.json.encode({"metadata": {"name": "n", "labels": {"a": "b"}}, "spec": spec})
    found = view_drivers(msgspec.json.decode(raw, type=NodeDrivers))
    assert found.limits == limits and found.metadata.name == "n"


def test_room_is_left_as_it_was_by_a_pod_that_finds_none() -> None:
    room = VolumeRoom({EBS: 1})
    some = take_snapshot(facts(waiting("p", "own-1", "own-2"), limits={"n": {EBS: 1}}), CLOUD).asks[0].attached
    assert room.after(some) is None and room.after(some[:1]) == VolumeRoom({EBS: 0}, frozenset(some[:1]))
    assert room.after(()) is room


# -- the controller ----------------------------------------------------------------------------------------------------


class CountedVolumes(AutoscalerWorld):
    """A world in which a node attaches two volumes, as its driver states once it has started."""

    async def furnish(self) -> None:
        await super().furnish()
        body = {"metadata": {"name": "s"}, "provisioner": EBS, "volumeBindingMode": "WaitForFirstConsumer"}
        await self.registry.create(("storage.k8s.io", "storageclasses"), None, body)

    async def join(self, instance: CloudInstance, request: LaunchRequest) -> None:
        name = instance.provider_id.rpartition("/")[2]
        driver = {"name": EBS, "nodeID": name, "topologyKeys": [], "allocatable": {"count": 2}}
        body = {"metadata": {"name": name}, "spec": {"drivers": [driver]}}
        await self.registry.create(("storage.k8s.io", "csinodes"), None, body)
        await super().join(instance, request)

    async def add_pods_with(self, count: int, volumes: int) -> None:
        """Add pods with volumes of their own."""
        for number in range(count):
            mine = []
            for at in range(volumes):
                name = f"data-{number}-{at}"
                spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
                body = {"metadata": {"name": name}, "spec": {**spec, "storageClassName": "s"}}
                await self.registry.create("persistentvolumeclaims", "default", body)
                mine.append({"name": name, "persistentVolumeClaim": {"claimName": name}})
            await self.add_pods(1, 0, volumes=mine)

    def _names(self) -> list[str]:
        return [one["metadata"]["name"] for one in self.nodes()]

    async def schedule(self) -> None:
        """Bind each pod to the first node that attaches its volumes."""
        for one in self.registry.list("pods", "default"):
            for name in self._names() if not one["spec"].get("nodeName") else ():
                there = [other for other in self.registry.list("pods") if other["spec"].get("nodeName") == name]
                used = [each for other in (*there, one) for each in other["spec"].get("volumes", ())]
                if sum("persistentVolumeClaim" in each for each in used) <= 2:
                    await self.bind(one["metadata"]["name"], name)
                    break


async def test_pods_that_a_new_node_has_no_volumes_for_get_the_nodes_that_they_need_and_no_more() -> None:
    world = CountedVolumes()
    await world.furnish()
    await world.add_provisioner("gpu")
    async with world.autoscaling():
        await world.add_pods_with(5, volumes=1)
        await world.until(lambda: len(world.bound()) == 5, seconds=300)
        await world.pass_time(60)
    assert len(world.cloud.launched) == 3


async def test_no_node_is_bought_twice_for_a_pod_with_more_volumes_than_a_node_attaches() -> None:
    """Not even when the node that has stated so is gone, for it was empty."""
    world = CountedVolumes()
    await world.furnish()
    await world.add_provisioner("gpu", ttlSecondsAfterEmpty=5)
    async with world.autoscaling():
        await world.add_pods_with(1, volumes=3)
        await world.until(lambda: world.cloud.launched and not world.registry.list(NODE_CLAIMS), seconds=300)
        for one in world.registry.list(("storage.k8s.io", "csinodes")):
            await world.registry.delete(("storage.k8s.io", "csinodes"), None, one["metadata"]["name"])
        await world.pass_time(120)
        assert any(f"its 3 volumes of {EBS} are more" in line for line in world.events("FailedScheduling"))
    assert len(world.cloud.launched) == 1
