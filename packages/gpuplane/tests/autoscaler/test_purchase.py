"""The choice of nodes to buy, and the reasons why a pod gets no node."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.autoscaler.asks import counted_in_gpus, read_asks
from gpuplane.autoscaler.catalogue import InstanceType
from gpuplane.autoscaler.nodeclaims import make_claim, pool_reference
from gpuplane.autoscaler.options import SharingSettings, admits_pod
from gpuplane.autoscaler.providers.provider import MachineClass
from gpuplane.autoscaler.purchase import NodePurchase, decide_as_karpenter, decide_purchase
from kubekit.api.core import Taint
from packages.gpuplane.tests.autoscaler.worlds import (
    FOUR,
    T4,
    fits_gpus,
    options_of,
    pod,
    pods,
    pool,
    requirement,
    shares_pool,
    types_named,
)

UNAWARE = SharingSettings(known=False)
ZONE = "topology.kubernetes.io/zone"


def bought(answer: NodePurchase) -> dict[str, int]:
    return dict(Counter(node.option.machine.name for node in answer.nodes))


def test_ten_pods_of_a_gpu_are_one_machine_with_ten_replicas() -> None:
    asks = pods(10, 1)
    ours = decide_purchase(asks, options_of(asks, pool(shared=True)))
    assert bought(ours) == {"g4dn.xlarge": 1} and not ours.waiting
    assert ours.price == pytest.approx(0.526)
    theirs = decide_as_karpenter(counted_in_gpus(asks), options_of(asks, pool(shared=True), sharing=UNAWARE))
    assert bought(theirs) == {"g4dn.12xlarge": 3}
    assert theirs.price == pytest.approx(11.736)


def test_without_replicas_the_whole_set_is_still_cheaper_than_the_first_fit() -> None:
    asks = pods(10, 1)
    ours = decide_purchase(asks, options_of(asks, pool()))
    assert bought(ours) == {"g4dn.xlarge": 10}


def test_shares_are_packed_on_gpus_and_never_across_them() -> None:
    asks = pods(6, core=60)
    answer = decide_purchase(asks, options_of(asks, shares_pool("gpu", types_named("g4dn.12xlarge"))))
    assert bought(answer) == {"g4dn.12xlarge": 2}  # 60% of a GPU leaves no 60%, though 6 x 60 is less than 400
    assert sorted(len(node.pods) for node in answer.nodes) == [2, 4]


def test_the_memory_of_a_share_counts() -> None:
    resources = {names.VCUDA_CORE: 10, names.VCUDA_MEMORY: 40}  # 10 GiB of a T4's 15
    asks = read_asks(
        {
            "metadata": {"name": f"p-{number}", "namespace": "ml"},
            "spec": {"containers": [{"name": "main", "resources": {"limits": resources}}]},
        }
        for number in range(2)
    )
    assert bought(decide_purchase(asks, options_of(asks, shares_pool()))) == {"g4dn.xlarge": 2}


def test_a_pod_of_two_containers_with_shares_is_placed_as_the_scheduler_places_it() -> None:
    part = {"resources": {"limits": {names.VCUDA_CORE: 60}}}
    two = {
        "metadata": {"name": "two", "namespace": "ml"},
        "spec": {"containers": [{"name": "a", **part}, {"name": "b", **part}]},
    }
    asks = read_asks([two])
    answer = decide_purchase(asks, options_of(asks, shares_pool()))
    assert bought(answer) == {"g4dn.12xlarge": 1}  # two GPUs of one node


def test_models_that_a_pod_names_decide_the_type() -> None:
    wanted = pod("p", core=30)
    wanted["metadata"]["annotations"] = {names.GPU_MODELS_ANNOTATION: "L4"}
    asks = read_asks([wanted])
    offers = options_of(asks, shares_pool("gpu", types_named("g4dn.xlarge", "g6.xlarge")))
    assert bought(decide_purchase(asks, offers)) == {"g6.xlarge": 1}


def test_a_pool_of_higher_weight_goes_before_a_cheaper_one() -> None:
    asks = pods(1, 1)
    dear = pool("dear", types_named("g4dn.12xlarge"), weight=10)
    answer = decide_purchase(asks, options_of(asks, pool("cheap"), dear))
    assert [node.option.pool.name for node in answer.nodes] == ["dear"]


def test_limits_are_kept_and_the_next_pool_takes_the_rest() -> None:
    asks = pods(5, 1)
    first = pool("first", types_named("g4dn.xlarge"), weight=10, limits={"cpu": 8})
    second = pool("second", types_named("g4dn.2xlarge"))
    answer = decide_purchase(asks, options_of(asks, first, second))
    assert bought(answer) == {"g4dn.xlarge": 2, "g4dn.2xlarge": 3}
    alone = decide_purchase(asks, options_of(asks, first))
    assert bought(alone) == {"g4dn.xlarge": 2}
    assert set(alone.waiting.values()) == {("first: the limit cpu 8 of the pool is reached",)}


def test_min_values_are_left_or_the_pod_waits() -> None:
    asks = pods(10, 1)
    least = requirement("node.kubernetes.io/instance-type", "In", *FOUR, least=3)
    answer = decide_purchase(asks, options_of(asks, pool("gpu", least, shared=True)))
    assert bought(answer) == {"g4dn.xlarge": 1} and not answer.waiting
    asks = pods(1, 2)
    answer = decide_purchase(asks, options_of(asks, pool("gpu", least)))
    assert "minValues" in answer.waiting["ml/p-0"][0]


def test_min_values_that_cannot_be_left_are_relaxed_by_best_effort() -> None:
    asks = pods(1, 2)
    least = requirement("karpenter.k8s.aws/instance-size", "Exists", least=3)
    asked = pool("gpu", types_named(*FOUR), least)
    assert decide_purchase(asks, options_of(asks, asked)).waiting
    asked = msgspec.structs.replace(asked, relaxes_min_values=True)
    answer = decide_purchase(asks, options_of(asks, asked))
    assert bought(answer) == {"g4dn.12xlarge": 1} and not answer.waiting

    (node,) = answer.nodes
    owner = pool_reference("NodePool", "gpu", "1")
    claim = make_claim(node, node.options, "gpu-1", MachineClass("EC2NodeClass", "gpu"), owner)
    assert claim.metadata.annotations["karpenter.sh/nodeclaim-min-values-relaxed"] == "true"
    assert {one.key: one.min_values for one in claim.spec.requirements}[least.key] == 1


def test_min_values_are_left_to_a_node_that_takes_a_pod_of_its_zone() -> None:
    """The free pod leaves types of all capacity types; the other one binds the node to one of them."""
    machines = [
        InstanceType("spot", 4, 16384, 20, (("spot", 1.0),)),
        *(InstanceType(f"demand-{at}", 4, 16384, 20, (("on-demand", 2.0 + at),)) for at in range(2)),
    ]
    term = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    asks = read_asks([pod("a", cpu="2"), pod("b", cpu="1", labels={"app": "x"}, affinity=affinity)])
    least = requirement("node.kubernetes.io/instance-type", "Exists", least=2)
    answer = decide_purchase(asks, options_of(asks, pool("gpu", least), catalogue=machines))
    assert not answer.waiting
    assert all(len({option.machine.name for option in node.options}) >= 2 for node in answer.nodes)


def test_pods_spread_over_zones_that_have_no_node_yet() -> None:
    spread = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}},
    }
    asks = pods(6, 1, labels={"app": "x"}, topologySpreadConstraints=[spread])
    answer = decide_purchase(asks, options_of(asks, pool(shared=True)))
    assert Counter(node.option.zone for node in answer.nodes) == {"a": 1, "b": 1, "c": 1}
    assert [len(node.pods) for node in answer.nodes] == [2, 2, 2]


def test_pods_that_avoid_each_other_get_a_node_each() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    asks = pods(3, 1, labels={"app": "x"}, affinity=affinity)
    assert bought(decide_purchase(asks, options_of(asks, pool(shared=True)))) == {"g4dn.xlarge": 3}
    # A pod without the rule is avoided by those that have it.
    asks = read_asks([pod("a", 1, labels={"app": "x"}, affinity=affinity), pod("b", 1, labels={"app": "x"})])
    assert bought(decide_purchase(asks, options_of(asks, pool(shared=True)))) == {"g4dn.xlarge": 2}


def test_pods_that_seek_each_other_share_a_node() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    asks = read_asks([pod("a", 1, affinity=affinity), pod("b", 1, labels={"app": "x"}), pod("c", 1, affinity=affinity)])
    answer = decide_purchase(asks, options_of(asks, pool(shared=True)))
    assert bought(answer) == {"g4dn.xlarge": 1} and not answer.waiting


def test_host_ports_need_nodes_of_their_own() -> None:
    web = pod("a", 1)
    web["spec"]["containers"][0]["ports"] = [{"hostPort": 80}]
    again = {**web, "metadata": {**web["metadata"], "name": "b"}}
    asks = read_asks([web, again])
    assert bought(decide_purchase(asks, options_of(asks, pool(shared=True)))) == {"g4dn.xlarge": 2}


def test_a_zone_that_a_pod_names_is_bought() -> None:
    asks = pods(1, 1, nodeSelector={ZONE: "c"})
    (node,) = decide_purchase(asks, options_of(asks, pool())).nodes
    assert node.option.zone == "c"


TAINTED = pool("gpu", taints=(Taint(key="team", effect="NoSchedule", value="x"),))
AMD64_ONLY = pool("gpu", types_named("g4dn.xlarge"), requirement("kubernetes.io/arch", "In", "amd64"))
SMALL = pool("gpu", types_named("g4dn.xlarge"))


@pytest.mark.parametrize(
    "wanted, found, reason",
    [
        (pod("p", 1), TAINTED, "does not tolerate the taint team=x:NoSchedule"),
        (
            pod("p", 1, nodeSelector={"kubernetes.io/arch": "arm64"}),
            AMD64_ONLY,
            "kubernetes.io/arch: the pod wants In arm64, the pool has In amd64",
        ),
        (
            pod("p", 1, nodeSelector={"team": "red"}),
            SMALL,
            "team: the pod wants In red, and no node of the pool would have it",
        ),
        (pod("p", 9), pool("gpu"), "the nearest is g4dn.12xlarge: Insufficient nvidia.com/gpu"),
        (pod("p", 1, cpu="50"), SMALL, "Insufficient cpu"),
        (pod("p", core=30), SMALL, "Insufficient tencent.com/vcuda-core"),
        (pod("p", core=150), shares_pool("gpu"), "150 can never be met"),
        (pod("p", 1), pool("gpu", types_named("none")), "no instance type with a known price"),
    ],
)
def test_a_pod_that_gets_no_node_has_the_rule_that_excludes_it(wanted: dict[str, Any], found: Any, reason: str) -> None:
    asks = read_asks([wanted])
    answer = decide_purchase(asks, options_of(asks, found))
    assert not answer.nodes
    assert any(reason in line for line in answer.waiting["ml/p"]), answer.waiting


def test_every_pool_has_its_reason() -> None:
    asks = pods(1, 9)
    answer = decide_purchase(asks, options_of(asks, pool("one"), pool("two", types_named("none"))))
    first, second = answer.waiting["ml/p-0"]
    assert first.startswith("one: ") and second.startswith("two: ")
    assert decide_purchase(asks, []).waiting == {"ml/p-0": ("there is no node pool",)}


# -- any world ---------------------------------------------------------------------------------------------------------

MACHINES = st.builds(
    lambda vcpu, gpus, price, number: InstanceType(
        f"t{vcpu}-{gpus}-{number}", vcpu, vcpu * 4096, 20, (("on-demand", price),), gpus=gpus, gpu=T4 if gpus else None
    ),
    st.sampled_from([2, 4, 8, 16]),
    st.sampled_from([0, 1, 2, 4]),
    st.sampled_from([0.5, 1.0, 1.7, 3.1]),
    st.integers(0, 9),
)
SPECS = st.tuples(st.sampled_from([100, 900, 1500, 3900]), st.sampled_from([0, 0, 10, 19, 40, 55, 81, 100, 200]))
WORLDS = st.tuples(
    st.lists(MACHINES, min_size=1, max_size=5, unique_by=lambda machine: machine.name),
    st.lists(st.tuples(SPECS, st.integers(1, 6)), min_size=1, max_size=5),
    st.sampled_from([None, 8, 30]),
)


@given(WORLDS)
@settings(max_examples=60, deadline=None)
def test_in_any_world_pods_fit_their_nodes_and_limits_hold(world: tuple[Any, Any, Any]) -> None:
    machines, specs, limit = world
    wanted = [
        pod(f"p-{kind}-{number}", core=core, cpu=f"{cpu}m")
        for kind, ((cpu, core), count) in enumerate(specs)
        for number in range(count)
    ]
    asks = read_asks(wanted)
    offers = options_of(
        asks,
        shares_pool("gpu", requirement("kubernetes.io/os", "Exists"), limits={"cpu": limit} if limit else {}),
        catalogue=machines,
    )
    by_key = {ask.key: ask for ask in asks}
    for answer in (decide_purchase(asks, offers), decide_as_karpenter(asks, offers)):
        placed = [key for node in answer.nodes for key in node.pods]
        assert sorted([*placed, *answer.waiting]) == sorted(by_key)
        assert all(reasons and all(reasons) for reasons in answer.waiting.values())
        for node in answer.nodes:
            inside = [by_key[key] for key in node.pods]
            assert inside and all(admits_pod(ask.info, node.option.facts) for ask in inside)
            assert len(inside) <= node.option.free["pods"]
            assert sum(ask.info.requests["cpu"] for ask in inside) <= node.option.free["cpu"]
            assert fits_gpus(node.option, inside)
        if limit:
            assert sum(node.option.machine.vcpu for node in answer.nodes) <= limit
    if not limit:
        ours, theirs = decide_purchase(asks, offers), decide_as_karpenter(asks, offers)
        assert ours.price <= theirs.price + 1e-9
        assert set(ours.waiting) == set(theirs.waiting)
        assert ours == decide_purchase(asks, offers)
