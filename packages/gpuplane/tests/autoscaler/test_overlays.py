"""NodeOverlays: prices, resources, order and conflicts; the offers that leave have the changes made."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.api.karpenter import DeclaredPool
from gpuplane.api.nodeoverlay import NodeOverlay, NodeOverlayStatus
from gpuplane.autoscaler.asks import read_asks
from gpuplane.autoscaler.catalogue import ON_DEMAND, SPOT, aws_catalogue
from gpuplane.autoscaler.options import PoolLimits, PoolOptions, SharingSettings, make_options
from gpuplane.autoscaler.overlays import LEAST_PRICE, VALID, OverlayVerdict, is_applied, judge_overlays, overlaid
from gpuplane.autoscaler.purchase import decide_purchase
from gpuplane.autoscaler.settings import AutoscalerSettings
from gpuplane.cli.cost_prices import bought_price
from gpuplane.metering.cost import HourPrice
from kubekit.api.core import Node
from kubekit.api.meta import Condition
from kubekit.scheduling.podinfo import compile_pod
from tests.support.autoscaler_world import AutoscalerWorld

SMALL, LARGE = "g4dn.xlarge", "g4dn.12xlarge"
TYPE = "node.kubernetes.io/instance-type"
FUSE = "smarter-devices/fuse"


def overlay(name: str, *requirements: tuple[str, str, tuple[str, ...]], **spec: Any) -> NodeOverlay:
    asked = [{"key": key, "operator": operator, "values": list(values)} for key, operator, values in requirements]
    return msgspec.convert({"metadata": {"name": name}, "spec": {"requirements": asked, **spec}}, NodeOverlay)


def of_type(*machines: str) -> tuple[str, str, tuple[str, ...]]:
    return (TYPE, "In", machines)


def offers(name: str = "gpu", daemons: tuple[Any, ...] = (), **pool: Any) -> PoolOptions:
    types = [
        msgspec.structs.replace(one, prices=(*one.prices, (SPOT, one.prices[0][1] / 2)))
        for one in aws_catalogue()
        if one.name in (SMALL, LARGE)
    ]
    return make_options(DeclaredPool(name, **pool), (), types, SharingSettings(), daemons, zones=("us-1a", "us-1b"))


def prices(found: PoolOptions, machine: str = SMALL) -> dict[tuple[str, str], float]:
    return {(one.capacity_type, one.zone): round(one.price, 6) for one in found.options if one.machine.name == machine}


def changed(*overlays: NodeOverlay, **pool: Any) -> PoolOptions:
    [found], verdicts = overlaid([offers(**pool)], overlays)
    assert not any(one.reason for one in verdicts.values()), verdicts
    return found


@pytest.mark.parametrize(
    ("spec", "price"),
    [
        ({"price": "0.1"}, 0.1),
        ({"priceAdjustment": "+0.5"}, 1.026),
        ({"priceAdjustment": "-0.026"}, 0.5),
        ({"priceAdjustment": "+10%"}, 0.5786),
        ({"priceAdjustment": "-15%"}, 0.4471),
        ({"priceAdjustment": "-100%"}, LEAST_PRICE),
        ({"priceAdjustment": "-3"}, LEAST_PRICE),
        ({"price": "0"}, LEAST_PRICE),
    ],
)
def test_prices_are_set_or_changed_by_an_amount_or_a_percentage(spec: dict[str, str], price: float) -> None:
    found = changed(overlay("a", of_type(SMALL), **spec))
    assert prices(found)[ON_DEMAND, "us-1a"] == pytest.approx(price)
    assert prices(found, LARGE) == prices(offers(), LARGE)
    assert [one.price for one in found.options] == sorted(one.price for one in found.options)


def test_an_offering_is_met_by_its_capacity_type_and_its_zone() -> None:
    spot = overlay("spot", ("karpenter.sh/capacity-type", "In", ("spot",)), price="1")
    zone = overlay("zone", ("topology.kubernetes.io/zone", "NotIn", ("us-1a",)), price="2", weight=1)
    assert prices(changed(spot, zone)) == {
        (ON_DEMAND, "us-1a"): 0.526,
        (SPOT, "us-1a"): 1.0,
        (ON_DEMAND, "us-1b"): 2.0,
        (SPOT, "us-1b"): 2.0,
    }


def test_a_pool_is_met_by_its_name_and_the_labels_of_its_template() -> None:
    named = overlay("named", ("karpenter.sh/nodepool", "In", ("gpu",)), price="1")
    team = overlay("team", ("team", "In", ("red",)), price="2", weight=5)
    assert prices(changed(named, team))[ON_DEMAND, "us-1a"] == 1.0
    assert prices(changed(named, team, labels={"team": "red"}))[ON_DEMAND, "us-1a"] == 2.0
    assert prices(changed(named, name="other"))[ON_DEMAND, "us-1a"] == 0.526


def test_resources_are_offered_less_those_of_daemonsets_and_count_against_limits() -> None:
    container = {"name": "c", "resources": {"requests": {FUSE: "1"}, "limits": {FUSE: "1"}}}
    daemon = compile_pod({"metadata": {"name": "d", "namespace": "x"}, "spec": {"containers": [container]}})
    low = overlay("low", of_type(SMALL), capacity={FUSE: "3", "example.com/nic": "1"})
    high = overlay("high", of_type(SMALL), capacity={FUSE: "7"}, weight=10)
    found = changed(low, high, daemons=(daemon,), limits={FUSE: "6"})
    [option, *_] = [one for one in found.options if one.machine.name == SMALL]
    assert (option.facts.allocatable[FUSE], option.free[FUSE], option.capacity[FUSE]) == (7, 6, 7)
    assert option.facts.allocatable["example.com/nic"] == 1
    assert PoolLimits([found.pool]).lacking(option) == f"the limit {FUSE} 6 of the pool is reached"
    assert FUSE not in option.predicted  # else what nodes turned out to offer were looked for under another key
    assert not [one for one in found.options if one.machine.name == LARGE and FUSE in one.free]


def test_the_decision_follows_the_price_and_the_resource() -> None:
    def bought(found: PoolOptions, **limits: str) -> str:
        spec = {"containers": [{"name": "c", "resources": {"limits": limits}}]}
        asks = read_asks([{"metadata": {"name": "p", "namespace": "x"}, "spec": spec}])
        [node] = decide_purchase(asks, [found]).nodes
        return node.option.machine.name

    assert bought(offers(), cpu="1") == SMALL
    assert bought(changed(overlay("a", of_type(LARGE), price="0")), cpu="1") == LARGE
    assert bought(changed(overlay("a", of_type(LARGE), capacity={FUSE: "1"})), **{FUSE: "1"}) == LARGE


# -- conflicts ---------------------------------------------------------------------------------------------------------


def verdicts(*overlays: NodeOverlay) -> dict[str, str]:
    return {name: one.reason for name, one in judge_overlays(overlays, [offers()]).items()}


def test_of_equal_weights_the_name_later_in_the_alphabet_counts() -> None:
    first, second = overlay("a", of_type(SMALL), price="1"), overlay("b", of_type(SMALL, LARGE), priceAdjustment="-1%")
    [found], said = overlaid([offers()], [first, second])
    assert said == {
        "b": OverlayVerdict(),
        "a": OverlayVerdict(
            "Conflict",
            "conflict with the overlay b, which sets the price of g4dn.xlarge at the same weight; give one of them"
            " another weight",
        ),
    }
    assert prices(found)[ON_DEMAND, "us-1a"] == 0.52074


def test_an_overlay_in_conflict_is_not_applied_at_all() -> None:
    both = overlay("a", of_type(SMALL, LARGE), price="1", capacity={FUSE: "1"})
    [found], said = overlaid([offers()], [both, overlay("b", of_type(LARGE), capacity={FUSE: "2"})])
    assert (said["a"].reason, said["b"].reason) == ("Conflict", "")
    assert prices(found) == prices(offers())
    assert not [one for one in found.options if one.machine.name == SMALL and FUSE in one.free]


def test_overlays_that_meet_nothing_of_the_same_are_no_conflict() -> None:
    price, resource = overlay("a", of_type(SMALL), price="1"), overlay("b", of_type(SMALL), capacity={FUSE: "1"})
    other, heavy = overlay("c", of_type(LARGE), price="1"), overlay("d", of_type(SMALL), price="2", weight=2)
    assert set(verdicts(price, resource, other, heavy).values()) == {""}
    assert verdicts(price, overlay("z", of_type("m5.large"), price="1")) == {"a": "", "z": ""}


def test_a_pair_in_conflict_does_not_hide_behind_a_third_of_the_same_weight() -> None:
    """Karpenter remembers the resources of the last overlay only."""
    a, b = overlay("c", of_type(SMALL), capacity={FUSE: "1"}), overlay("b", of_type(SMALL), capacity={"x.com/y": "1"})
    assert verdicts(a, b, overlay("a", of_type(SMALL), capacity={FUSE: "2"})) == {"c": "", "b": "", "a": "Conflict"}


@pytest.mark.parametrize(
    "requirement",
    [
        ("kubernetes.io/role", "Exists", ()),
        ("team", "In", ("a b",)),
        ("karpenter.sh/capacity-type", "In", ("cheap",)),
        ("example.com/" + 64 * "x", "Exists", ()),
    ],
)
def test_what_only_run_time_can_judge_is_refused_by_the_verdict(requirement: tuple[str, str, tuple[str, ...]]) -> None:
    assert verdicts(overlay("a", requirement, price="1"), overlay("b", of_type(SMALL), price="1")) == {
        "a": "RuntimeValidation",
        "b": "",
    }


@given(st.permutations(range(4)), st.lists(st.integers(0, 2), min_size=4, max_size=4))
def test_the_order_of_the_list_changes_nothing(order: list[int], weights: list[int]) -> None:
    made = [
        overlay(f"o{at}", of_type(SMALL), price=str(at + 1), **({"weight": weight} if weight else {}))
        for at, weight in enumerate(weights)
    ]
    [found], said = overlaid([offers()], made)
    [other], again = overlaid([offers()], [made[at] for at in order])
    assert said == again and prices(found) == prices(other)
    best = max(range(4), key=lambda at: (weights[at], at))
    assert prices(found)[ON_DEMAND, "us-1a"] == best + 1


# -- at work -----------------------------------------------------------------------------------------------------------

OVERLAYS = ("karpenter.sh", "nodeoverlays")


async def cluster(gate: bool = True) -> AutoscalerWorld:
    made = AutoscalerWorld()
    await made.furnish()
    made.settings = AutoscalerSettings("demo", node_overlay=gate)
    await made.add_provisioner("gpu")
    return made


async def add(world: AutoscalerWorld, name: str, machine: str, **spec: Any) -> None:
    asked = [{"key": TYPE, "operator": "In", "values": [machine]}]
    body = {"metadata": {"name": name}, "spec": {"requirements": asked, **spec}}
    await world.registry.create(OVERLAYS, None, body)


def judged(world: AutoscalerWorld, name: str) -> dict[str, tuple[str, str]]:
    found = world.registry.get(OVERLAYS, None, name)
    assert found is not None
    return {one["type"]: (one["status"], one["reason"]) for one in found.get("status", {}).get("conditions", ())}


def seen_generations(world: AutoscalerWorld, name: str) -> set[int]:
    found = world.registry.get(OVERLAYS, None, name)
    assert found is not None
    return {one["observedGeneration"] for one in found["status"]["conditions"]}


SOUND = {VALID: ("True", VALID), "Ready": ("True", "Ready")}
CONFLICT = {VALID: ("False", "Conflict"), "Ready": ("False", "Conflict")}


async def test_nodes_are_bought_by_the_prices_and_the_resources_of_overlays() -> None:
    world = await cluster()
    world.offered = lambda instance: {"nvidia.com/gpu": "4", FUSE: "1"}
    await add(world, "contract", LARGE, price="0.1", capacity={FUSE: "1"})
    async with world.autoscaling():
        await world.until(lambda: judged(world, "contract") == SOUND)
        await world.add_pods(1)
        await world.until(world.bound)
    assert [one.machine for one in world.cloud.launched] == [LARGE]
    assert [request.own_prices for request in world.cloud.requests] == [True]
    [claim] = world.claims()
    assert claim["status"]["allocatable"][FUSE] == "1"
    assert world.events("AllocatableDiffers") == []
    # Four GPUs for 0.1 $ an hour, as `gpuplane cost` has it.
    [node] = world.nodes()
    price = bought_price(msgspec.convert(node, Node))
    assert price == HourPrice(0.1 / 4, "node pool gpu, on-demand at launch")


async def test_conflicts_are_reported_and_end_with_their_cause() -> None:
    world = await cluster()
    await add(world, "a", LARGE, price="0.1")
    await add(world, "b", LARGE, price="9")
    async with world.autoscaling():
        await world.until(lambda: judged(world, "a") == CONFLICT and judged(world, "b") == SOUND)
        await world.add_pods(1)
        await world.until(world.bound)
        assert [one.machine for one in world.cloud.launched] == [SMALL]
        await world.registry.delete(OVERLAYS, None, "b")
        await world.until(lambda: judged(world, "a") == SOUND)
        await world.registry.patch(OVERLAYS, None, "a", {"spec": {"weight": 3}}, "merge")
        await world.until(lambda: seen_generations(world, "a") == {2})


async def test_without_the_gate_overlays_have_no_effect_and_no_conditions() -> None:
    world = await cluster(gate=False)
    await add(world, "contract", LARGE, price="0.1")
    async with world.autoscaling():
        await world.add_pods(1)
        await world.until(world.bound)
    assert [one.machine for one in world.cloud.launched] == [SMALL]
    assert judged(world, "contract") == {}


def test_an_overlay_that_was_changed_counts_when_it_was_judged_again() -> None:
    one = overlay("a", of_type(SMALL), price="1")
    meta = msgspec.structs.replace(one.metadata, generation=2)
    for generation, counts in ((1, False), (2, True)):
        condition = Condition(type=VALID, status="True", observed_generation=generation)
        made = msgspec.structs.replace(one, metadata=meta, status=NodeOverlayStatus(conditions=(condition,)))
        assert is_applied(made) is counts
