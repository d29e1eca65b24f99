"""The offers at which replacements cost less: prices of one node, of several, and of spot nodes by the gate."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.autoscaler.catalogue import ON_DEMAND, SPOT
from gpuplane.autoscaler.claims import MOST_OPTIONS
from gpuplane.autoscaler.disruption.facts import DisruptableNode
from gpuplane.autoscaler.disruption.removal import RemovalOutcome
from gpuplane.autoscaler.disruption.replacement import (
    GATE_CLOSED,
    LEAST_SAVED,
    LEAST_SAVED_BY_MORE,
    LEAST_SPOT_TYPES,
    SEVERAL_SPOT,
    TOO_DEAR,
    cheaper_nodes,
    choose_replacements,
)
from gpuplane.autoscaler.options import NodeOption
from gpuplane.autoscaler.purchase import BoughtNode
from packages.gpuplane.tests.autoscaler.worlds import AWS, ZONES, options_of, pool, requirement

ON_DEMAND_OPTIONS = options_of([], pool(), catalogue=list(AWS.values()))[0].options
SPOT_OPTIONS = tuple(
    msgspec.structs.replace(one, capacity_type=SPOT, price=one.price * 0.3) for one in ON_DEMAND_OPTIONS
)
ANY = requirement("node.kubernetes.io/instance-type", "Exists")
MANY_SPOT = tuple(
    sorted(
        (
            msgspec.structs.replace(one, capacity_type=SPOT, price=one.price * 0.3)
            for one in options_of([], pool("gpu", ANY), catalogue=list(AWS.values()))[0].options
        ),
        key=lambda one: one.price,
    )
)
SPOT_PRICES = {one.machine.name: one.price for one in MANY_SPOT}
CHEAPEST = sorted(SPOT_PRICES, key=lambda name: SPOT_PRICES[name])
CHEAP, DEAR = ON_DEMAND_OPTIONS[0], ON_DEMAND_OPTIONS[-1]


def gone(price: float, machine: str = "other", kind: str = ON_DEMAND) -> DisruptableNode:
    return DisruptableNode("c", "n", "gpu", price=price, machine=machine, capacity_type=kind)


def bought(*options: NodeOption) -> BoughtNode:
    return BoughtNode(options[0], ("ml/p",), options)


def test_one_node_launches_whatever_costs_less() -> None:
    found = cheaper_nodes([bought(*ON_DEMAND_OPTIONS)], [gone(2.0)])

    assert {one.machine.name for one in found[0].options} == {"g4dn.xlarge", "g4dn.2xlarge", "g4dn.4xlarge"}
    assert not cheaper_nodes([bought(DEAR)], [gone(2.0)])


def test_a_type_that_goes_is_launched_only_for_less_than_its_own_nodes() -> None:
    assert not cheaper_nodes([bought(CHEAP)], [gone(CHEAP.price, CHEAP.machine.name), gone(5.0)])
    assert cheaper_nodes([bought(CHEAP)], [gone(CHEAP.price), gone(5.0)])


def test_several_nodes_launch_what_saves_a_part_of_the_price() -> None:
    found = cheaper_nodes([bought(*ON_DEMAND_OPTIONS)] * 2, [gone(2.0)])

    assert [{one.machine.name for one in node.options} for node in found] == [{"g4dn.xlarge", "g4dn.2xlarge"}] * 2
    for nodes, part in ((1, LEAST_SAVED_BY_MORE), (2, LEAST_SAVED)):
        least = 2 * CHEAP.price / (1 - part) / nodes
        assert not cheaper_nodes([bought(CHEAP)] * 2, [gone(least - 0.001)] * nodes)
        assert cheaper_nodes([bought(CHEAP)] * 2, [gone(least + 0.001)] * nodes)


@pytest.mark.parametrize("count", [1, 2])
def test_spot_replaces_on_demand_and_never_spot_alone_without_the_gate(count: int) -> None:
    mixed = [bought(*SPOT_OPTIONS, *ON_DEMAND_OPTIONS)] * count

    assert replace(mixed, [gone(9.0, kind=SPOT)], gate=False) == GATE_CLOSED
    for nodes in ([gone(9.0)], [gone(5.0), gone(4.0, kind=SPOT)]):
        found = cheaper_nodes(mixed, nodes)
        assert len(found) == count
        assert {one.capacity_type for node in found for one in node.options} == {SPOT}


def replace(
    wanted: list[BoughtNode], nodes: list[DisruptableNode], *, gate: bool = True, together: BoughtNode | None = None
) -> tuple[BoughtNode, ...] | str:
    outcome = RemovalOutcome(tuple(wanted), together=lambda some: together)
    return choose_replacements(outcome, nodes, spot_to_spot=gate)


def only(found: tuple[BoughtNode, ...] | str) -> BoughtNode:
    assert not isinstance(found, str), found
    (node,) = found
    return node


def types_of(node: BoughtNode) -> list[str]:
    return list(dict.fromkeys(one.machine.name for one in node.options))


def test_a_spot_node_is_replaced_by_the_cheapest_types_if_enough_are_cheaper() -> None:
    wanted = [bought(*MANY_SPOT)]
    for at, cheaper in ((LEAST_SPOT_TYPES, True), (LEAST_SPOT_TYPES - 1, False)):
        node = gone(SPOT_PRICES[CHEAPEST[at]], CHEAPEST[at], SPOT)
        found = replace(wanted, [node])
        if not cheaper:
            count = LEAST_SPOT_TYPES - 1
            assert found == (
                f"SpotToSpotConsolidation needs 15 cheaper instance types that hold its pods, there are {count}"
            )
            continue
        assert types_of(only(found)) == CHEAPEST[:LEAST_SPOT_TYPES]
        assert len(only(found).options) == LEAST_SPOT_TYPES * len(ZONES)
    assert replace(wanted, [gone(0.01, kind=SPOT)]) == TOO_DEAR


def test_several_spot_nodes_are_replaced_by_one_that_is_cheaper_by_any_type() -> None:
    nodes = [gone(0.5, kind=SPOT)] * 2
    assert len(types_of(only(replace([bought(*SPOT_OPTIONS)], nodes)))) == 3
    assert replace([bought(*SPOT_OPTIONS)] * 2, nodes) == SEVERAL_SPOT
    assert only(replace([bought(*SPOT_OPTIONS)] * 2, nodes, together=bought(*SPOT_OPTIONS))).option is SPOT_OPTIONS[0]
    assert replace([bought(*SPOT_OPTIONS)] * 2, nodes, together=bought(SPOT_OPTIONS[-1])) == SEVERAL_SPOT


def test_a_launch_has_as_many_types_as_min_values_need() -> None:
    dear = gone(90.0, kind=SPOT)
    for least, count in ((3, LEAST_SPOT_TYPES), (20, 20)):
        node = bought(*of_pool(MANY_SPOT, least))
        assert types_of(only(replace([node], [dear]))) == CHEAPEST[:count]
    few = [one for one in MANY_SPOT if one.price < SPOT_PRICES[CHEAPEST[LEAST_SPOT_TYPES]]]
    why = replace([bought(*of_pool(few, 20))], [dear])
    assert isinstance(why, str) and "minValues of node.kubernetes.io/instance-type is 20" in why


def test_min_values_hold_for_every_replacement() -> None:
    three = [bought(*of_pool(ON_DEMAND_OPTIONS, 3))]
    assert len(types_of(only(replace(three, [gone(2.0)])))) == 3
    why = replace(three, [gone(1.0)])
    assert isinstance(why, str) and "minValues" in why
    many = bought(*of_pool(MANY_SPOT, 25))
    assert len(types_of(only(replace([many], [gone(90.0)])))) == 25
    assert len(only(replace([bought(*MANY_SPOT)], [gone(90.0)])).options) == MOST_OPTIONS


def of_pool(options: Sequence[NodeOption], least: int) -> list[NodeOption]:
    """The options, of a pool that wants so many types to choose from."""
    wants = pool("gpu", requirement("node.kubernetes.io/instance-type", "Exists", least=least))
    return [msgspec.structs.replace(one, pool=wants) for one in options]


def test_what_replaces_a_spot_node_stays_whatever_is_launched() -> None:
    wanted = [bought(*MANY_SPOT)]
    for name in CHEAPEST[LEAST_SPOT_TYPES:]:
        made = only(replace(wanted, [gone(SPOT_PRICES[name], name, SPOT)]))
        for option in made.options:
            launched = gone(option.price, option.machine.name, SPOT)
            assert isinstance(replace(wanted, [launched]), str)


def test_a_type_that_is_cheaper_in_one_zone_is_no_other_type() -> None:
    # Overlays may give zones their own prices.
    zoned = [
        msgspec.structs.replace(one, price=one.price * (0.9 if one.zone == ZONES[0] else 1.0)) for one in MANY_SPOT
    ]
    wanted = [bought(*sorted(zoned, key=lambda one: one.price))]
    made = only(replace(wanted, [gone(90.0, kind=SPOT)]))
    for option in made.options:
        assert isinstance(replace(wanted, [gone(option.price, option.machine.name, SPOT)]), str)


every = st.lists(st.sampled_from((*ON_DEMAND_OPTIONS, *SPOT_OPTIONS)), min_size=1, max_size=4).map(
    lambda some: sorted(some, key=lambda one: one.price)
)
going = st.builds(
    gone, st.floats(0.05, 9.0), st.sampled_from(["other", "g4dn.xlarge"]), st.sampled_from([SPOT, ON_DEMAND])
)


@settings(max_examples=200, deadline=None)
@given(st.lists(every, min_size=1, max_size=4), st.lists(going, min_size=1, max_size=4))
def test_the_dearest_launch_costs_less(wanted: list[list[NodeOption]], nodes: list[DisruptableNode]) -> None:
    found = cheaper_nodes([bought(*options) for options in wanted], nodes)
    if not found:
        return
    with_gate, without = (replace([bought(*one) for one in wanted], nodes, gate=gate) for gate in (True, False))
    if all(node.capacity_type == SPOT for node in nodes) and found[0].option.capacity_type == SPOT:
        assert without == GATE_CLOSED
        assert isinstance(with_gate, str) or len(with_gate) == 1 < len(nodes)
    limit = sum(node.price or 0.0 for node in nodes)
    dearest = sum(max(option.price for option in node.options) for node in found)
    assert len(found) == len(wanted)
    assert dearest < limit
    assert len(found) == 1 or dearest <= limit * (1 - LEAST_SAVED) + 1e-9
    for made, options in zip(found, wanted, strict=True):
        assert made.option is made.options[0]
        assert {id(one) for one in made.options} <= {id(one) for one in options}
        assert made.option.price == min(one.price for one in made.options)
