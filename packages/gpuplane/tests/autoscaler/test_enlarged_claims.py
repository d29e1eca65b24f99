"""Nodes to buy that become larger for a pod, where that costs no more than a new node, and the room that they leave."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.api.karpenter import DeclaredPool
from gpuplane.autoscaler import purchase
from gpuplane.autoscaler.asks import PodAsk, PodReading, asks_of, read_asks, read_pod
from gpuplane.autoscaler.catalogue import ON_DEMAND, SPOT, InstanceType
from gpuplane.autoscaler.claim_domains import pods_that_count
from gpuplane.autoscaler.filling import ClaimFilling
from gpuplane.autoscaler.options import PoolLimits, PoolOptions, admits_pod
from gpuplane.autoscaler.purchase import NodePurchase, decide_purchase
from gpuplane.autoscaler.volume_limits import AttachedVolume
from packages.gpuplane.tests.autoscaler.worlds import (
    ZONES,
    fits_gpus,
    machine,
    options_of,
    pod,
    pool,
    requirement,
    shares_pool,
)

EXAMPLES: Final = int(os.environ.get("GPUPLANE_TEST_EXAMPLES", "60"))  # worlds
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
TYPE = "node.kubernetes.io/instance-type"
ANY = requirement("kubernetes.io/os", "Exists")


def apart(app: str, key: str = HOST) -> dict[str, Any]:
    """Fields of pods of an application that want a node, or a zone, without their like."""
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    return {
        "labels": {"app": app},
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
    }


def near(app: str, key: str = ZONE) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def spread(app: str, key: str) -> dict[str, Any]:
    selects = {"labelSelector": {"matchLabels": {"app": app}}}
    constraint = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", **selects}
    return {"labels": {"app": app}, "topologySpreadConstraints": [constraint]}


def filled(
    offers: Sequence[PoolOptions], seeded: str, free: Iterable[PodAsk], others: Iterable[PodAsk]
) -> tuple[dict[str, int], list[str]]:
    """Return type -> pods of its nodes, and the pods without one, after a node of the type `seeded` was bought for the
    free pods, and the other pods were added."""
    limits = PoolLimits(found.pool for found in offers)
    filling = ClaimFilling(offers, limits)
    others = list(others)
    filling.fill_nodes(others)
    found, option = next(
        (found, option) for found in offers for option in found.options if option.machine.name == seeded
    )
    assert not filling.seed(found, option, list(free))
    left = filling.add_all(others)
    sizes: dict[str, int] = {}
    for claim in filling.claims:
        sizes[claim.option.machine.name] = sizes.get(claim.option.machine.name, 0) + len(claim.asks)
    return sizes, [ask.key for ask in left]


FREE = pod("free", cpu="3")
SMALL = machine("small", 4, 1.0)


def after(*types: InstanceType, fields: dict[str, Any] | None = None, **limits: int) -> dict[str, int]:
    """Return what becomes of a small node with a free pod when a pod of 2 CPUs is added."""
    free, other = read_asks([FREE, pod("other", cpu="2", **(fields or apart("x")))])
    offers = options_of([free, other], pool("p", ANY, limits=limits), catalogue=[SMALL, *types])
    sizes, left = filled(offers, "small", [free], [other])
    assert not left
    return sizes


def test_a_larger_type_is_taken_where_it_costs_no_more_than_a_new_node() -> None:
    assert after(machine("large", 8, 2.0)) == {"large": 2}
    assert after(machine("large", 8, 2.1)) == {"small": 2}
    assert after(machine("large", 8, 2.0), machine("first", 8, 1.9)) == {"first": 2}


def test_equal_prices_are_equal_though_their_sums_are_rounded() -> None:
    assert 0.1 + 0.2 < 0.3 + 1e-15 and 0.3 - 0.1 < 0.2
    free, other = read_asks([FREE, pod("other", cpu="2", **apart("x"))])
    types = [machine("small", 4, 0.1), machine("large", 8, 0.2 + 1e-12)]
    offers = options_of([free, other], pool("p", ANY), catalogue=types)
    assert filled(offers, "small", [free], [other]) == ({"large": 2}, [])


def test_a_pod_that_fits_no_larger_type_gets_a_new_node() -> None:
    assert after(machine("cheaper", 2, 0.4), machine("same", 4, 1.1)) == {"small": 2}
    free, other = read_asks([FREE, pod("other", cpu="2", **apart("x"), nodeSelector={TYPE: "small"})])
    offers = options_of([free, other], pool("p", ANY), catalogue=[SMALL, machine("large", 8, 1.1)])
    assert filled(offers, "small", [free], [other]) == ({"small": 2}, [])
    # Nor do the pods that are there: they keep the node as it is.
    free, other = read_asks([pod("free", cpu="3", nodeSelector={TYPE: "small"}), pod("other", cpu="2", **apart("x"))])
    offers = options_of([free, other], pool("p", ANY), catalogue=[SMALL, machine("large", 8, 1.1)])
    assert filled(offers, "small", [free], [other]) == ({"small": 2}, [])


def test_a_free_pod_enlarges_a_node_as_well() -> None:
    assert after(machine("large", 8, 2.0), fields={"labels": {}}) == {"large": 2}


def test_limits_of_the_pool_decide_before_the_price() -> None:
    assert after(machine("large", 16, 1.5), cpu=15) == {"small": 2}
    # The limit leaves no room for another node, but for a larger one: at any price.
    assert after(machine("large", 6, 5.0), cpu=7) == {"large": 2}
    assert after(machine("large", 8, 5.0), nodes=1) == {"large": 2}


def test_what_a_larger_node_takes_of_the_limits_is_left_for_no_other() -> None:
    free, *others = read_asks([FREE, *(pod(f"other-{at}", cpu="2", **apart("x")) for at in range(3))])
    types = [SMALL, machine("large", 8, 1.5)]
    offers = options_of([free, *others], pool("p", ANY, limits={"cpu": 12}), catalogue=types)
    assert filled(offers, "small", [free], others) == ({"large": 2, "small": 1}, ["ml/other-2"])


@pytest.mark.parametrize("fields, limits", [({}, {"cpu": 10}), (apart("x"), {"nodes": 2})])
def test_once_limits_forbid_a_new_node_a_dear_larger_one_is_bought(
    fields: dict[str, Any], limits: dict[str, int]
) -> None:
    """The price refused it for the first pod of the kind."""
    *others, free = read_asks([pod("free", cpu="2"), *(pod(f"p-{at}", cpu="2500m", **fields) for at in range(2))])
    types = [SMALL, machine("five", 5, 5.0)]
    offers = options_of([free, *others], pool("p", ANY, limits=limits), catalogue=types)
    assert filled(offers, "small", [free], others) == ({"five": 2, "small": 1}, [])


def test_a_pool_of_less_weight_takes_no_pod_that_a_pool_of_more_weight_could_have() -> None:
    free, other = read_asks([FREE, pod("other", cpu="2", **apart("x"))])
    types = [SMALL, machine("large", 8, 1.1)]
    light, heavy = pool("light", ANY), pool("heavy", ANY, weight=10)
    first, second = options_of([free, other], light, heavy, catalogue=types)
    filling = ClaimFilling([first, second], PoolLimits([light, heavy]))
    filling.fill_nodes([other])
    assert not filling.seed(first, first.options[0], [free])
    assert not filling.add_all([other])
    assert [claim.option.pool.name for claim in filling.claims] == ["light", "heavy"]


def test_a_larger_node_is_offered_again_to_pods_that_it_refused_before() -> None:
    free, *others = read_asks([FREE, *(pod(f"p-{at}", cpu="2", **apart(app)) for at, app in enumerate("xyx"))])
    types = [SMALL, machine("large", 8, 1.9), machine("huge", 16, 9.0)]
    offers = options_of([free, *others], pool("p", ANY), catalogue=types)
    # Both x refuse each other; y finds room next to the first, without a larger type.
    assert filled(offers, "small", [free], others) == ({"large": 3, "small": 1}, [])


def test_each_enlargement_has_its_price() -> None:
    free, first, second = read_asks(
        [FREE, pod("first", cpu="2", **apart("x")), pod("second", cpu="1500m", **apart("y"))]
    )
    types = [machine("tiny", 2, 0.3), SMALL, machine("large", 6, 1.5), machine("huge", 16, 2.0)]
    offers = options_of([free, first, second], pool("p", ANY), catalogue=types)
    assert filled(offers, "small", [free], [first, second]) == ({"large": 2, "tiny": 1}, [])


def test_volumes_of_a_larger_node_count_together() -> None:
    def using(name: str, **fields: Any) -> PodReading:
        attached = (AttachedVolume("ebs", f"ml/{name}", False),)
        return read_pod(pod(name, cpu="2500m", **fields))._replace(attached=attached)

    asks = asks_of([using("a"), using("b", **apart("x")), using("c", **apart("y"))])
    (found,) = options_of(asks, pool("p", ANY), catalogue=[SMALL, machine("large", 16, 1.2)])
    found = msgspec.structs.replace(found, volume_limits={"ebs": 2})
    assert filled([found], "small", asks[:1], asks[1:]) == ({"large": 2, "small": 1}, [])


def test_a_larger_node_stays_in_the_domain_on_which_pods_depend() -> None:
    """A pod spread over types is placed; the node is of its type from then on."""
    spreading = {"small": 2}
    assert after(machine("large", 8, 1.5), fields=spread("x", TYPE)) == spreading


def test_shares_of_a_larger_node_are_placed_with_those_that_are_there() -> None:
    others = [pod(f"p-{app}", core=60, cpu="1", **apart(app)) for app in "xy"]
    asks = read_asks([pod("a", core=60, cpu="1"), *others])
    types = [machine("one", 8, 1.0, gpus=1), machine("two", 16, 1.5, gpus=2), machine("three", 16, 1.9, gpus=3)]
    offers = options_of(asks, shares_pool("p", ANY), catalogue=types)
    assert filled(offers, "one", asks[:1], asks[1:]) == ({"three": 3}, [])


def test_a_node_that_others_seek_becomes_no_cheaper_one_of_another_zone() -> None:
    sought = pod("sought", cpu="3", labels={"app": "x"})
    seeker = pod("seeker", cpu="2", **near("x"))
    asks = read_asks([sought, seeker])
    (found,) = options_of(asks, pool("p", ANY), catalogue=[SMALL, machine("dear", 4, 3.0)])
    there = [one for one in found.options if one.machine.name == "dear" and one.zone == "c"]
    elsewhere = [one for one in found.options if one.machine.name == "small"]
    filling = ClaimFilling([found], PoolLimits([found.pool]))
    filling.fill_nodes(asks)
    filling.seed(found, there[0], asks[:1])
    assert not filling.add_all(asks[1:])
    filling.cheapen()
    assert elsewhere and {claim.option.zone for claim in filling.claims} == {"c"}


def test_pods_that_must_be_apart_cost_no_more_nodes_than_there_are_of_them() -> None:
    """Nodes that were bought for free pods become larger for them."""
    asks = read_asks(
        [*(pod(f"free-{at}", cpu="3") for at in range(20)), *(pod(f"x-{at}", cpu="1", **apart("x")) for at in range(8))]
    )
    types = [machine(f"t{cpus}", cpus, cpus * 0.25) for cpus in range(2, 33, 2)]
    with by_program_alone():
        answer = decide_purchase(asks, options_of(asks, pool("p", ANY), catalogue=types))
    assert len(answer.nodes) == 8 and not answer.waiting


# -- pods that come last -----------------------------------------------------------------------------------------------


def named(free: dict[str, Any], other: dict[str, Any]) -> list[PodAsk]:
    """Return six small free pods with these fields, and four pods with a node each."""
    others = (pod(f"x-{at}", cpu="500m", **{**apart("x"), **other}) for at in range(4))
    return read_asks([*(pod(f"free-{at}", cpu="900m", **free) for at in range(6)), *others])


def test_free_pods_also_come_last_in_the_room_that_other_pods_leave() -> None:
    types = [machine("small", 2, 1.0), machine("large", 16, 4.0)]
    asks = named({"labels": {"app": "free"}}, {})
    with by_program_alone():
        answer = decide_purchase(asks, options_of(asks, pool("p", ANY), catalogue=types))
    assert Counter(node.option.machine.name for node in answer.nodes) == {"small": 5}
    assert not answer.waiting


def test_pods_that_others_seek_or_count_do_not_come_last() -> None:
    def counting(free: dict[str, Any], other: dict[str, Any]) -> int:
        return len(pods_that_count(named(free, other)))

    assert counting({"labels": {"app": "free"}}, {}) == 0
    assert counting({"labels": {"app": "free"}}, near("free")) == 6
    spreading = spread("free", ZONE)["topologySpreadConstraints"]
    assert counting({"labels": {"app": "free"}}, {"topologySpreadConstraints": spreading}) == 6
    assert pods_that_count(read_asks([pod("a"), pod("b")])) == frozenset()


# -- any world ---------------------------------------------------------------------------------------------------------


def by_program_alone() -> Any:
    """Leave out Karpenter's way, which is tried for few pods too."""
    return mock.patch.object(purchase, "_FEW", 0)


MACHINES = st.lists(
    st.builds(
        lambda vcpu, gpus, price, prices, number: msgspec.structs.replace(
            machine(f"t{number}-{vcpu}-{gpus}", vcpu, price, gpus=gpus),
            prices=tuple((kind, price) for kind in prices),
        ),
        st.sampled_from([2, 4, 6, 8, 12, 16, 32]),
        st.sampled_from([0, 0, 1, 2, 4]),
        st.sampled_from([0.5, 1.0, 1.2, 1.7, 2.2, 3.1]),
        st.sampled_from([(ON_DEMAND,), (SPOT,), (ON_DEMAND, SPOT)]),
        st.integers(0, 3),
    ),
    min_size=2,
    max_size=7,
    unique_by=lambda one: one.name,
)
EXPRESSION = {"key": "karpenter.k8s.aws/instance-cpu", "operator": "Lt", "values": ["9"]}
SMALL_ONLY = {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [EXPRESSION]}]}
}
FORMS: dict[str, Callable[[str], dict[str, Any]]] = {
    "plain": lambda app: {"labels": {"app": f"free-{app}"}},
    "apart": apart,
    "zones": lambda app: spread(app, ZONE),
    "hosts": lambda app: spread(app, HOST),
    "types": lambda app: spread(app, TYPE),
    "near": lambda app: {"labels": {"app": app}, **near(app)},
    "seek": lambda app: {"labels": {"app": "any"}, **near(f"free-{app}")},
    "port": lambda app: {"port": 80},
    "zone-b": lambda app: {"nodeSelector": {ZONE: "b"}},
    "small": lambda app: {"affinity": {"nodeAffinity": SMALL_ONLY}},
}
KINDS = st.lists(
    st.tuples(
        st.sampled_from([*FORMS, "plain", "plain", "apart"]),
        st.sampled_from([200, 900, 1500, 2900]),
        st.sampled_from([0, 0, 0, 30, 55, 100, 200]),
        st.integers(0, 2),
        st.integers(1, 7),
    ),
    min_size=1,
    max_size=6,
)
LIMITS = st.sampled_from([{}, {}, {"cpu": 12}, {"cpu": 40}, {"nodes": 3}])


def world(kinds: Sequence[tuple[str, int, int, int, int]]) -> tuple[list[PodAsk], dict[str, tuple[str, str]]]:
    """Return the pods, and pod -> form and application."""
    read, forms = [], {}
    for kind, (form, cpu, core, volumes, count) in enumerate(kinds):
        for number in range(count):
            name, app = f"{form}-{kind}-{number}", f"{form}-{'ab'[kind % 2]}"
            app = app.replace("seek", "plain")
            fields = FORMS[form](app)
            port = fields.pop("port", None)
            made = pod(name, core=core, cpu=f"{cpu}m", **fields)
            if port:
                made["spec"]["containers"][0]["ports"] = [{"hostPort": port}]
            attached = tuple(AttachedVolume("ebs", f"ml/{name}-{at}", False) for at in range(volumes))
            read.append(read_pod(made)._replace(attached=attached))
            forms[f"ml/{name}"] = (form, app)
    return asks_of(read), forms


def check_world(
    answer: NodePurchase, asks: Sequence[PodAsk], forms: dict[str, tuple[str, str]], pools: Sequence[DeclaredPool]
) -> None:
    by_key = {ask.key: ask for ask in asks}
    assert sorted([*(key for node in answer.nodes for key in node.pods), *answer.waiting]) == sorted(by_key)
    places: dict[tuple[str, str], list[tuple[str, str, int]]] = {}
    for at, node in enumerate(answer.nodes):
        inside = [by_key[key] for key in node.pods]
        assert inside and node.option is node.options[0]
        for option in node.options:
            assert all(admits_pod(ask.info, option.facts) for ask in inside)
            assert len(inside) <= option.free["pods"]
            assert sum(ask.info.requests["cpu"] for ask in inside) <= option.free["cpu"]
            assert fits_gpus(option, inside)
            assert option.pool is node.option.pool
        assert sum(len(ask.attached) for ask in inside) <= 5
        alone = Counter(forms[key] for key in node.pods if forms[key][0] in ("apart", "port"))
        assert sum(count for (form, _), count in alone.items() if form == "port") <= 1
        assert all(count == 1 for count in alone.values())
        for key in node.pods:
            places.setdefault(forms[key], []).append((node.option.zone, node.option.machine.name, at))
    for (form, app), found in places.items():
        zones = Counter(zone for zone, _, _ in found)
        if form == "zones":
            assert max(zones.values()) - min(zones[zone] for zone in ZONES) <= 1
        elif form == "near":
            assert len(zones) == 1
        elif form == "seek":
            assert set(zones) <= {zone for zone, _, _ in places.get(("plain", app), ())}
        elif form == "zone-b":
            assert set(zones) == {"b"}
    for one in pools:
        bought = [node.option.machine for node in answer.nodes if node.option.pool.name == one.name]
        assert sum(each.vcpu for each in bought) <= int(one.limits.get("cpu", 10**6))
        assert len(bought) <= int(one.limits.get("nodes", 10**6))


@given(MACHINES, KINDS, LIMITS, st.sampled_from([0, 0, 2]))
@settings(max_examples=EXAMPLES, deadline=None)
def test_in_any_world_pods_fit_the_nodes_that_were_enlarged_and_rules_hold(
    machines: list[InstanceType], kinds: list[Any], limits: dict[str, int], least: int
) -> None:
    asks, forms = world(kinds)
    first = shares_pool("first", ANY, weight=10, limits=limits)
    second = shares_pool("second", requirement(TYPE, "Exists", least=least), limits={"cpu": 64})
    offers = options_of(asks, first, second, catalogue=machines)
    offers = [msgspec.structs.replace(found, volume_limits={"ebs": 5}) for found in offers]
    with by_program_alone():
        answer = decide_purchase(asks, offers)
        assert answer == decide_purchase(asks, offers)
    check_world(answer, asks, forms, (first, second))
    for node in answer.nodes:
        if least and node.option.pool.name == "second":
            assert len({option.machine.name for option in node.options}) >= least
