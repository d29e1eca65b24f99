"""The offers at which replacements cost less: prices of one node, of several, and of spot."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.autoscaler.catalogue import ON_DEMAND, SPOT
from gpuplane.autoscaler.disruption.facts import DisruptableNode
from gpuplane.autoscaler.disruption.replacement import LEAST_SAVED, LEAST_SAVED_BY_MORE, cheaper_nodes
from gpuplane.autoscaler.options import NodeOption
from gpuplane.autoscaler.purchase import BoughtNode
from packages.gpuplane.tests.autoscaler.worlds import AWS, options_of, pool

ON_DEMAND_OPTIONS = options_of([], pool(), catalogue=list(AWS.values()))[0].options
SPOT_OPTIONS = tuple(
    msgspec.structs.replace(one, capacity_type=SPOT, price=one.price * 0.3) for one in ON_DEMAND_OPTIONS
)
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
def test_spot_replaces_on_demand_and_never_spot_alone(count: int) -> None:
    mixed = [bought(*SPOT_OPTIONS, *ON_DEMAND_OPTIONS)] * count

    assert not cheaper_nodes(mixed, [gone(9.0, kind=SPOT)])
    for nodes in ([gone(9.0)], [gone(5.0), gone(4.0, kind=SPOT)]):
        found = cheaper_nodes(mixed, nodes)
        assert len(found) == count
        assert {one.capacity_type for node in found for one in node.options} == {SPOT}


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
    limit = sum(node.price or 0.0 for node in nodes)
    dearest = sum(max(option.price for option in node.options) for node in found)
    assert len(found) == len(wanted)
    assert dearest < limit
    assert len(found) == 1 or dearest <= limit * (1 - LEAST_SAVED) + 1e-9
    for made, options in zip(found, wanted, strict=True):
        assert made.option is made.options[0]
        assert {id(one) for one in made.options} <= {id(one) for one in options}
        assert made.option.price == min(one.price for one in made.options)
