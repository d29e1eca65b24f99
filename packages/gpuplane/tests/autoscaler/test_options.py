"""The nodes that could be bought: what each type will offer in a pool."""

from __future__ import annotations

import pytest

from gpuplane import names
from gpuplane.api.karpenter import DeclaredClass, PoolKubelet
from gpuplane.autoscaler.catalogue import InstanceType
from gpuplane.autoscaler.options import PoolLimits, SharingSettings, make_options
from gpuplane.autoscaler.overhead import allocatable
from kubekit.api.core import Taint
from kubekit.scheduling.podinfo import NodeTaint, compile_pod
from packages.gpuplane.tests.autoscaler.worlds import (
    AWS,
    REPLICAS,
    ZONES,
    options_of,
    pod,
    pool,
    requirement,
    shares_pool,
    types_named,
)

MIB = 2**20


@pytest.mark.parametrize(
    "name, cpu, memory_mib, pods",
    [
        ("g4dn.xlarge", 3920, 14481, 29),
        ("g4dn.12xlarge", 47810, 178933, 234),
        ("g5g.xlarge", 3920, 6525, 58),  # arm64
        ("p4d.24xlarge", 95690, 1082712, 737),
        ("p6-b300.48xlarge", 191450, 3877198, 198),
    ],
)
def test_allocatable_is_the_published_one(name: str, cpu: int, memory_mib: int, pods: int) -> None:
    assert allocatable(AWS[name]) == {"cpu": cpu, "memory": memory_mib * MIB, "pods": pods}


def test_the_kubelets_settings_change_allocatable() -> None:
    machine = AWS["g4dn.xlarge"]
    fewer = allocatable(machine, PoolKubelet(max_pods=10))
    assert fewer["pods"] == 10 and fewer["memory"] == (14481 + 19 * 11) * MIB
    assert allocatable(machine, PoolKubelet(pods_per_core=3))["pods"] == 12
    reserved = PoolKubelet(system_reserved={"cpu": "500m", "memory": "1Gi"}, kube_reserved={"cpu": 1, "memory": "0"})
    assert allocatable(machine, reserved)["cpu"] == 2500
    assert allocatable(machine, reserved)["memory"] == (14481 + 255 + 29 * 11 - 1024) * MIB
    evicted = allocatable(machine, PoolKubelet(eviction_hard={"memory.available": "10%"}))
    assert evicted["memory"] < allocatable(machine)["memory"] - 1000 * MIB
    assert allocatable(machine, PoolKubelet(eviction_hard={"memory.available": "100Mi"})) == allocatable(machine)


def test_a_node_has_the_labels_of_both_generations() -> None:
    (found,) = options_of([], pool("gpu", types_named("g4dn.xlarge"), kind="Provisioner", labels={"team": "red"}))
    labels = found.options[0].facts.labels
    assert labels["karpenter.sh/provisioner-name"] == labels["karpenter.sh/nodepool"] == "gpu"
    expected = {
        "team": "red",
        "node.kubernetes.io/instance-type": "g4dn.xlarge",
        "karpenter.sh/capacity-type": "on-demand",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": "a",
        "karpenter.k8s.aws/instance-category": "g",
        "karpenter.k8s.aws/instance-generation": "4",
        "karpenter.k8s.aws/instance-family": "g4dn",
        "karpenter.k8s.aws/instance-size": "xlarge",
        "karpenter.k8s.aws/instance-gpu-name": "t4",
        "karpenter.k8s.aws/instance-gpu-count": "1",
        "karpenter.k8s.aws/instance-gpu-memory": "16384",
    }
    assert expected.items() <= labels.items()


@pytest.mark.parametrize(
    "name, family, generation",
    [("p6-b200.48xlarge", "p6-b200", "6"), ("g7e.2xlarge", "g7e", "7"), ("g4dn.metal", "g4dn", "4")],
)
def test_families_of_unusual_names(name: str, family: str, generation: str) -> None:
    labels = AWS[name].labels()
    assert labels["karpenter.k8s.aws/instance-family"] == family
    assert labels["karpenter.k8s.aws/instance-generation"] == generation


def test_requirements_choose_types_by_their_labels() -> None:
    wanted = (
        requirement("karpenter.k8s.aws/instance-gpu-count", "Gt", "1"),
        requirement("karpenter.k8s.aws/instance-gpu-name", "In", "t4"),
        requirement("karpenter.k8s.aws/instance-size", "NotIn", "metal"),
    )
    (found,) = options_of([], pool("gpu", *wanted))
    assert {option.machine.name for option in found.options} == {"g4dn.12xlarge"}
    assert {option.zone for option in found.options} == set(ZONES)


def test_a_pool_without_a_type_says_why() -> None:
    (found,) = options_of([], pool("gpu", types_named("m5.large")))
    assert not found.options and "no instance type" in found.trouble
    (found,) = options_of([], pool("gpu", types_named("g4dn.xlarge"), labels={names.PLUGIN_CONFIG_LABEL: "typo"}))
    assert not found.options and "'typo', which does not exist" in found.trouble


def test_spot_has_no_price_in_the_built_in_list_and_one_in_a_list_of_the_user() -> None:
    spot = pool("gpu", requirement("karpenter.sh/capacity-type", "In", "spot"))
    assert options_of([], spot)[0].trouble
    cheap = InstanceType("x.large", 4, 8192, 20, (("on-demand", 1.0), ("spot", 0.4)))
    (found,) = options_of([], spot, catalogue=[cheap])
    assert {(option.capacity_type, option.price) for option in found.options} == {("spot", 0.4)}


def test_the_label_of_the_pool_chooses_the_configuration() -> None:
    plain, shared = options_of([], pool("plain"), pool("shared", shared=True))
    assert plain.options[0].facts.allocatable[names.GPU_RESOURCE] == 1
    assert shared.options[0].facts.allocatable[names.GPU_RESOURCE] == 10
    largest = shared.options[-1]
    assert (largest.machine.name, largest.facts.allocatable[names.GPU_RESOURCE]) == ("g4dn.12xlarge", 40)


def test_shares_are_offered_where_the_label_says_so() -> None:
    (found,) = options_of([], shares_pool())
    offered = found.options[0].facts.allocatable
    assert (offered[names.VCUDA_CORE], offered[names.VCUDA_MEMORY]) == (100, 60)
    assert names.GPU_RESOURCE not in offered
    assert found.options[0].places_shares


def test_without_knowledge_of_sharing_a_gpu_is_a_gpu() -> None:
    (found,) = options_of([], pool("shared", shared=True), sharing=SharingSettings(known=False))
    assert found.options[0].facts.allocatable[names.GPU_RESOURCE] == 1


def test_daemons_take_their_part_where_they_will_run() -> None:
    asks = {"cpu": "500m", "memory": "1Gi"}
    daemon = {
        "metadata": {"name": "agent", "namespace": "kube-system"},
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": asks}}],
            "nodeSelector": {"team": "red"},
            "tolerations": [{"key": "team", "operator": "Exists"}],
        },
    }
    running = [compile_pod(daemon)]
    taints = (Taint(key="team", effect="NoSchedule"),)
    with_it, without = options_of(
        [], pool("red", labels={"team": "red"}, taints=taints), pool("blue", labels={"team": "blue"}), daemons=running
    )
    for name, amount in (("cpu", 500), ("memory", 2**30), ("pods", 1)):
        assert without.options[0].free[name] - with_it.options[0].free[name] == amount
    (refused,) = options_of(
        [], pool("red", labels={"team": "red"}, taints=(Taint(key="x", effect="NoExecute"),)), daemons=running
    )
    assert refused.options[0].free == refused.options[0].facts.allocatable


def test_a_class_brings_zones_and_the_kubelets_settings() -> None:
    found = make_options(
        pool("gpu", class_kind="EC2NodeClass", class_name="gpu"),
        [DeclaredClass("EC2NodeClass", "gpu", PoolKubelet(max_pods=5), ("z",)), DeclaredClass("EC2NodeClass", "other")],
        list(AWS.values()),
        REPLICAS,
        zones=ZONES,
    )
    assert {option.zone for option in found.options} == {"z"}
    assert {option.facts.allocatable["pods"] for option in found.options} == {5}


def test_taints_are_on_the_node_and_startup_taints_are_not() -> None:
    taint = Taint(key="nvidia.com/gpu", effect="NoSchedule", value="x")
    (found,) = options_of([], pool("gpu", taints=(taint,), startup_taints=(Taint(key="boot", effect="NoExecute"),)))
    assert found.options[0].facts.taints == (NodeTaint("nvidia.com/gpu", "x", "NoSchedule"),)


def test_a_label_of_the_pools_own_has_each_value_that_it_admits() -> None:
    one = types_named("g4dn.xlarge")
    (listed,) = options_of([], pool("gpu", one, requirement("team", "In", "red", "blue")))
    assert {option.facts.labels["team"] for option in listed.options} == {"red", "blue"}
    asks = [pod("p", nodeSelector={"team": "green"})]
    from gpuplane.autoscaler.asks import read_asks

    (open_to_all,) = options_of(read_asks(asks), pool("gpu", one, requirement("team", "Exists")))
    assert {option.facts.labels["team"] for option in open_to_all.options} == {"green"}


def test_limits_count_the_largest_option_until_one_is_chosen() -> None:
    limited = pool("gpu", limits={"cpu": 52, "nodes": "2"}, used={"cpu": "2", "nodes": 0})
    (found,) = options_of([], limited)
    small, large = found.options[0], found.options[-1]
    limits = PoolLimits([limited])
    assert not limits.lacking(large)
    limits.take((small, large))
    assert limits.lacking(small) == "the limit cpu 52 of the pool is reached"
    limits.give_back((small, large))
    limits.take((small,))
    limits.take((small,))
    assert limits.lacking(small) == "the limit nodes 2 of the pool is reached"
