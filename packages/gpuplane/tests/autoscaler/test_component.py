"""The autoscaler from pods that wait to nodes that run them, in virtual time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.autoscaler.catalogue import ON_DEMAND
from gpuplane.autoscaler.metrics import autoscaler_metrics
from gpuplane.autoscaler.providers.provider import CloudInstance
from kubekit.kube.exposition import exposition
from tests.support.autoscaler_world import CLAIMS, POOLS, PROVISIONERS, TYPES, AutoscalerWorld
from tests.support.fake_cloud import CloudFault

PLUGIN = {"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 10}]}}}


@pytest.fixture
async def world() -> AutoscalerWorld:
    made = AutoscalerWorld()
    await made.furnish()
    return made


def condition(claim: dict[str, Any], name: str) -> str:
    found = claim.get("status", {}).get("conditions", ())
    return next((one["status"] for one in found if one["type"] == name), "")


async def test_a_pod_that_waits_gets_a_node_and_runs(world: AutoscalerWorld) -> None:
    await world.add_provisioner(
        "gpu", labels={"team": "ml"}, taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
    )
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    async with world.autoscaling():
        await world.add_pods(1, tolerations=tolerations)
        await world.until(world.bound)
        await world.until(lambda: condition(world.claims()[0], "Ready") == "True")
    [claim] = world.claims()
    [node] = world.nodes()
    [instance] = world.cloud.launched
    assert instance.machine == "g4dn.xlarge"
    assert claim["status"]["providerID"] == instance.provider_id
    assert claim["status"]["nodeName"] == node["metadata"]["name"]
    assert claim["metadata"]["ownerReferences"][0]["name"] == "gpu"
    labels = node["metadata"]["labels"]
    assert {key: labels[key] for key in ("karpenter.sh/provisioner-name", "karpenter.sh/nodepool", "team")} == {
        "karpenter.sh/provisioner-name": "gpu",
        "karpenter.sh/nodepool": "gpu",
        "team": "ml",
    }
    assert labels["node.kubernetes.io/instance-type"] == "g4dn.xlarge"
    assert (labels["karpenter.sh/registered"], labels["karpenter.sh/initialized"]) == ("true", "true")
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["nvidia.com/gpu"], "the unregistered one is off"
    assert node["metadata"]["finalizers"] == ["karpenter.sh/termination"]
    assert node["metadata"]["ownerReferences"][0]["kind"] == "NodeClaim"


async def test_pods_that_come_together_are_bought_for_together(world: AutoscalerWorld) -> None:
    await world.add_provisioner("gpu")
    async with world.autoscaling():
        for _ in range(4):
            await world.add_pods(1, cpu="3")
            await world.pass_time(0.5)
        await world.until(lambda: len(world.bound()) == 4)
    bought = [instance.machine for instance in world.cloud.launched]
    assert bought == ["g4dn.xlarge"] * 4, "four of 0.526 $/h are less than one of 3.912"
    created = {claim["metadata"]["creationTimestamp"] for claim in world.claims()}
    assert len(created) == 1


async def test_ten_replicas_are_known_before_the_node_exists(world: AutoscalerWorld) -> None:
    import yaml

    await world.registry.create(
        "configmaps",
        "gpu-operator",
        {
            "metadata": {"name": "plugin"},
            "data": {"default": yaml.dump({"version": "v1"}), "shared_gpu": yaml.dump(PLUGIN)},
        },
    )
    policy = {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"devicePlugin": {"config": {"name": "plugin", "default": "default"}}},
    }
    await world.registry.create(("nvidia.com", "clusterpolicies"), None, policy)
    await world.add_provisioner("gpu-shared", labels={"nvidia.com/device-plugin.config": "shared_gpu"})
    async with world.autoscaling():
        await world.add_pods(10)
        await world.until(lambda: world.cloud.launched)
        await world.pass_time(20)
    assert [instance.machine for instance in world.cloud.launched] == ["g4dn.xlarge"]
    assert world.claims()[0]["status"]["allocatable"]["nvidia.com/gpu"] == "10"


async def test_a_limit_is_held_across_decisions(world: AutoscalerWorld) -> None:
    await world.add_provisioner("gpu", limits={"resources": {"cpu": "8"}})
    async with world.autoscaling():
        await world.add_pods(1, cpu="3")
        await world.until(lambda: world.cloud.launched)
        await world.add_pods(1, cpu="3")
        await world.until(lambda: len(world.cloud.launched) == 2)
        await world.add_pods(1, cpu="3")
        await world.pass_time(60)
        assert len(world.cloud.launched) == 2
        assert any("limit cpu 8" in text for text in world.events("FailedScheduling"))
        await world.until(lambda: world.registry.get(PROVISIONERS, None, "gpu")["status"]["resources"]["cpu"] == "8")  # type: ignore[index]


async def test_a_pod_that_fits_the_node_on_its_way_buys_nothing_more(world: AutoscalerWorld) -> None:
    await world.add_provisioner("gpu")
    async with world.autoscaling() as process:
        await world.add_pods(1)
        await world.until(lambda: world.cloud.launched)
        await world.add_pods(2, gpus=0)
        await world.pass_time(15)
        assert len(world.claims()) == 1
        [claim] = world.claims()
        assert process.writer.nominations.holds(claim["metadata"]["name"])
        await world.until(lambda: len(world.bound()) == 3)
    assert len(world.cloud.launched) == 1


async def test_pods_without_gpus_launch_none_of_the_dear_types_unless_nothing_else_is_left() -> None:
    plain, metal = (
        msgspec.structs.replace(TYPES["g4dn.xlarge"], name=name, gpus=0, gpu=None, prices=((ON_DEMAND, price),))
        for name, price in (("m5.xlarge", 0.192), ("m5.metal", 4.608))
    )
    world = AutoscalerWorld((plain, metal, TYPES["g4dn.xlarge"]))
    await world.furnish()
    names = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [*TYPES, plain.name, metal.name]}
    await world.add_provisioner("any", requirements=[names])
    world.joins = lambda instance: False
    async with world.autoscaling():
        await world.add_pods(1, gpus=0)
        await world.until(lambda: world.cloud.launched)
        assert {one.machine for one in world.cloud.requests[0].offerings} == {plain.name}
        assert not world.cloud.requests[0].own_prices
        world.cloud.closed = {(ON_DEMAND, plain.name, zone) for zone in ("zone-1", "zone-2")}
        await world.add_pods(1, gpus=0, cpu="3900m")
        await world.until(lambda: len(world.cloud.launched) == 2)
        assert {one.machine for one in world.cloud.requests[-1].offerings} == {"g4dn.xlarge", metal.name}


async def test_an_offering_without_capacity_is_left_for_the_next_one(world: AutoscalerWorld) -> None:
    world.cloud.closed = {("on-demand", "g4dn.xlarge", zone) for zone in ("zone-1", "zone-2")}
    await world.add_provisioner("gpu")
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(world.bound)
    assert [instance.machine for instance in world.cloud.launched] == ["g4dn.2xlarge"]


async def test_when_the_cloud_has_nothing_the_claim_goes_and_the_pod_is_told_and_three_minutes_later_it_runs(
    world: AutoscalerWorld,
) -> None:
    everything = {
        ("on-demand", name, zone)
        for name in ("g4dn.xlarge", "g4dn.2xlarge", "g4dn.4xlarge", "g4dn.12xlarge")
        for zone in ("zone-1", "zone-2")
    }
    world.cloud.closed = set(everything)
    await world.add_provisioner("gpu")
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(lambda: world.events("InsufficientCapacityError"))
        await world.pass_time(30)
        assert world.claims() == []
        assert len(world.cloud.requests) == 1, "closed offerings are not asked for again"
        world.cloud.closed.clear()
        await world.until(world.bound, seconds=300)


async def test_a_node_that_never_joins_is_given_up_and_another_one_is_bought(world: AutoscalerWorld) -> None:
    never: list[CloudInstance] = []

    def joins(instance: CloudInstance) -> bool:
        if not never:
            never.append(instance)
            return False
        return True

    world.joins = joins
    await world.add_provisioner("gpu")
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(lambda: world.cloud.launched)
        await world.pass_time(800, step=5)
        assert len(world.cloud.launched) == 1
        await world.until(world.bound, seconds=400, step=5)
        await world.until(lambda: world.cloud.ended == [never[0].provider_id], seconds=200)
    assert len(world.cloud.running()) == 1


async def test_a_pool_says_whether_its_nodes_join(world: AutoscalerWorld) -> None:
    def healthy() -> str:
        found = world.registry.get(PROVISIONERS, None, "gpu") or {}
        conditions = found.get("status", {}).get("conditions", ())
        return next((one["status"] for one in conditions if one["type"] == "NodeRegistrationHealthy"), "")

    await world.add_provisioner("gpu")
    world.joins = lambda instance: len(world.cloud.launched) > 2
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(lambda: len(world.cloud.launched) == 2, 1000, step=5)
        await world.pass_time(30)
        assert healthy() == "True", "one node of four may fail"
        await world.until(lambda: healthy() == "False", 1000, step=5)
        await world.until(world.bound)
        for number in range(3):
            await world.add_pods(1)
            await world.until(lambda number=number: len(world.bound()) == number + 2)  # type: ignore[misc]
        await world.until(lambda: healthy() == "True")


async def test_a_cloud_that_does_not_answer_ends_no_claim_and_no_pool(world: AutoscalerWorld) -> None:
    def ready() -> str:
        found = world.registry.get(PROVISIONERS, None, "gpu") or {}
        return next(one["status"] for one in found["status"]["conditions"] if one["type"] == "Ready")

    await world.add_provisioner("gpu")
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(world.claims, step=0.1)
        name = world.claims()[0]["metadata"]["name"]
        world.cloud._fault = lambda: CloudFault.BEFORE
        await world.pass_time(90)
        assert [claim["metadata"]["name"] for claim in world.claims()] == [name]
        assert world.events("NodeClassNotReady") == [] and ready() == "True"
        world.cloud._fault = lambda: CloudFault.NONE
        await world.until(world.bound)
        assert [claim["metadata"]["name"] for claim in world.claims()] == [name]
    assert len(world.cloud.launched) == 1


async def test_a_lost_answer_of_the_cloud_buys_nothing_twice(world: AutoscalerWorld) -> None:
    faults = [CloudFault.AFTER, CloudFault.BEFORE, CloudFault.AFTER]
    launches = 0

    def fault() -> CloudFault:
        return faults.pop(0) if faults and launches else CloudFault.NONE

    launch = world.cloud.launch

    async def counted(request: Any) -> CloudInstance:
        nonlocal launches
        launches += 1
        try:
            return await launch(request)
        finally:
            launches -= 1

    world.cloud.launch = counted  # type: ignore[method-assign]
    world.cloud._fault = fault
    await world.add_provisioner("gpu")
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(world.bound)
    assert not faults
    assert len(world.cloud.launched) == 1


async def test_an_instance_without_a_claim_is_ended(world: AutoscalerWorld) -> None:
    await world.add_provisioner("gpu")
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(world.bound)
    from gpuplane.autoscaler.providers.provider import LaunchRequest, MachineClass, Offering

    offering = Offering(0.526, "g4dn.xlarge", "zone-1", "on-demand")
    stray = await world.cloud.launch(LaunchRequest("lost", "t", "gpu", MachineClass("Provisioner", ""), (offering,)))
    async with world.autoscaling() as process:
        await world.pass_time(20)
        assert len(world.cloud.running()) == 2, "its claim could still come"
        await world.until(lambda: world.cloud.ended == [stray.provider_id])
        assert process.garbage.collected == 1
    assert len(world.cloud.running()) == 1


async def test_a_claim_whose_instance_was_ended_behind_our_back_goes_and_its_pod_gets_another(
    world: AutoscalerWorld,
) -> None:
    await world.add_provisioner("gpu")
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(world.bound)
        await world.until(lambda: condition(world.claims()[0], "Ready") == "True")
        [first] = world.cloud.running()
        await world.cloud.terminate(first.provider_id)
        await world.until(
            lambda: not any(one["status"].get("providerID") == first.provider_id for one in world.claims()), seconds=400
        )


async def test_startup_taints_and_missing_gpus_keep_a_node_from_being_initialized(world: AutoscalerWorld) -> None:
    world.offered = lambda instance: {}
    await world.add_provisioner("gpu", startupTaints=[{"key": "agent", "effect": "NoSchedule"}])
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(world.nodes)
        await world.pass_time(5)
        name = world.nodes()[0]["metadata"]["name"]

        def why() -> str:
            [one] = [one for one in world.claims()[0]["status"]["conditions"] if one["type"] == "Initialized"]
            return str(one["reason"])

        assert why() == "StartupTaintsExist"
        await world.registry.patch("nodes", None, name, {"spec": {"taints": []}}, "merge")
        await world.until(lambda: why() == "ResourceNotRegistered")
        patch = {"status": {"allocatable": {"nvidia.com/gpu": "1"}, "capacity": {"nvidia.com/gpu": "1"}}}
        await world.registry.patch("nodes", None, name, patch, "merge", subresource="status")
        await world.until(lambda: why() == "Initialized")
        assert len(world.claims()) == 1, "the pod waited for this very node"


async def test_a_difference_between_prediction_and_node_is_told_and_learned(world: AutoscalerWorld) -> None:
    world.offered = lambda instance: {"nvidia.com/gpu": "1", "memory": "8Gi"}
    await world.add_provisioner(
        "gpu", requirements=[{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g4dn.xlarge"]}]
    )
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(lambda: world.claims() and condition(world.claims()[0], "Ready") == "True")
        assert "memory 8589934592 instead of" in world.events("AllocatableDiffers")[0]
        await world.add_pods(1)
        await world.until(lambda: len(world.cloud.launched) == 2)
        await world.pass_time(1)
        second = world.registry.get(CLAIMS, None, world.cloud.launched[1].claim)
        assert second is not None
        assert second["status"]["allocatable"]["memory"] == str(8 << 30)
        await world.until(lambda: all(condition(claim, "Ready") == "True" for claim in world.claims()))
        assert len(world.events("AllocatableDiffers")) == 1


@pytest.mark.parametrize("broken", ["", "{", "[1]", '{"memory": "8Gi"}'])
async def test_a_claim_with_a_broken_prediction_stops_no_purchase(world: AutoscalerWorld, broken: str) -> None:
    await world.add_provisioner(
        "gpu", requirements=[{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g4dn.xlarge"]}]
    )
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(lambda: world.claims() and condition(world.claims()[0], "Ready") == "True")
        name = world.claims()[0]["metadata"]["name"]
        patch = {"metadata": {"annotations": {names.PREDICTED_ANNOTATION: broken}}}
        await world.registry.patch(CLAIMS, None, name, patch, "merge")
        await world.add_pods(1)
        await world.until(lambda: len(world.bound()) == 2)
    assert len(world.cloud.launched) == 2


async def test_scaled_to_zero_the_node_goes_after_its_ttl_and_nothing_is_left(world: AutoscalerWorld) -> None:
    await world.add_provisioner("gpu", ttlSecondsAfterEmpty=30)
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(world.bound)
        await world.until(lambda: condition(world.claims()[0], "Ready") == "True")
        await world.registry.delete("pods", "default", "p-1", grace=0)
        await world.pass_time(20)
        assert len(world.cloud.running()) == 1, "the pod may come back"
        await world.until(lambda: not world.cloud.running())
        await world.until(lambda: not world.claims() and not world.nodes())
        await world.pass_time(30)
    assert len(world.cloud.launched) == 1


async def test_a_pod_of_a_node_that_is_deleted_gets_another_node(world: AutoscalerWorld) -> None:
    await world.add_provisioner("gpu")
    async with world.autoscaling() as process:
        await world.add_pods(1)
        await world.until(world.bound)
        await world.until(lambda: condition(world.claims()[0], "Ready") == "True")
        await world.registry.delete(CLAIMS, None, world.claims()[0]["metadata"]["name"])
        await world.until(lambda: len(world.cloud.launched) == 2)
        await world.until(lambda: len(world.cloud.running()) == 1, seconds=200)
        text = exposition(autoscaler_metrics(process.state())).decode()
        labels = 'reason="provisioned",nodepool="gpu",min_values_relaxed="false"'
        assert f"karpenter_nodeclaims_created_total{{{labels}}} 2" in text
        assert 'karpenter_nodepools_cost_total{nodepool="gpu"} 0.526' in text
        assert 'karpenter_nodepools_usage{nodepool="gpu",resource_type="nodes"} 1' in text
        assert 'karpenter_pods_eviction_requests_total{code="201"} 1' in text


async def test_a_pool_says_whether_nodes_can_be_bought_for_it(world: AutoscalerWorld) -> None:
    await world.add_provisioner("gpu")
    template = {
        "spec": {
            "requirements": [],
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "c"},
        }
    }
    meta = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool"}
    for name, spec in {
        "without-class": {"template": template},
        "static": {"template": template, "replicas": 2},
    }.items():
        await world.registry.create(POOLS, None, {**meta, "metadata": {"name": name}, "spec": spec})

    def ready(kind: tuple[str, str], name: str) -> tuple[str, str]:
        found = world.registry.get(kind, None, name) or {}
        [one] = [one for one in found.get("status", {}).get("conditions", ()) if one["type"] == "Ready"] or [{}]
        return one.get("status", ""), one.get("message", "")

    async with world.autoscaling():
        await world.until(lambda: all(ready(POOLS, name)[0] for name in ("without-class", "static")))
        assert ready(PROVISIONERS, "gpu") == ("True", "")
        assert ready(POOLS, "without-class") == (
            "False",
            "EC2NodeClass c, which the pool names, does not exist; create it",
        )
        assert "spec.replicas" in ready(POOLS, "static")[1]
        await world.add_pods(1)
        await world.until(world.bound)
        assert [instance.pool for instance in world.cloud.launched] == ["gpu"]
