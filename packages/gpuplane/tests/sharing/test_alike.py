"""Nodes in the same state are rated once; the best node is the one that rating every node finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.sharing import POLICIES, Ask, Ledger, NodeState, Request
from gpuplane.sharing.placement import Placement, alike, place
from gpuplane.sharing.placement.alike import AlikeNodes
from gpuplane.sharing.placement.fit import rate
from gpuplane.sharing.placement.mix import Mix
from gpuplane.sharing.placement.ranking import Ranking
from gpuplane.sharing.placement.registry import policy_named
from tests.support.sharing_examples import gpus

NODES = [f"n{at}" for at in range(12)]
REQUESTS = [
    *(Request((Ask("a", core, 0),), cpu_milli=cpu) for core in (10, 30, 60, 100, 200) for cpu in (1000, 4000)),
    Request((Ask("a", 30, 4096), Ask("b", 50, 0)), cpu_milli=1000),
    Request((Ask("a", 30, 0),), uuids=("GPU-n7-0",)),
    Request((Ask("a", 30, 0),), not_uuids=("GPU-n0-0", "GPU-n1-0")),
    Request((Ask("a", 30, 0),), models=("A100",)),
]


def cluster() -> Ledger:
    """Two sizes of nodes and two models, several nodes of each."""
    ledger = Ledger()
    for at, name in enumerate(NODES):
        made = gpus(1 + at % 2, model="A100" if at % 3 == 0 else "T4", node=name)
        ledger.set_node(name, made, cpu_milli=16_000, host_memory_mib=64_000)
    return ledger


def fault(ledger: Ledger, name: str) -> None:
    """Break the first GPU of the node, or repair it."""
    state = ledger.node(name)
    if state is not None:
        first = msgspec.structs.replace(state.gpus[0], fault="" if state.gpus[0].fault else "Xid 79")
        ledger.set_node(name, (first, *state.gpus[1:]), cpu_milli=16_000, host_memory_mib=64_000)


step = st.one_of(
    st.tuples(st.just("place"), st.integers(0, len(REQUESTS) - 1)),
    st.tuples(st.just("end"), st.integers(0, 40)),
    st.tuples(st.just("fault"), st.integers(0, len(NODES) - 1)),
    st.tuples(st.just("drop"), st.integers(0, len(NODES) - 1)),
)


def unnamed(state: NodeState | None) -> Any:
    """A node's state without what may differ."""
    if state is None:
        return None
    return msgspec.structs.replace(state, name="", gpus=tuple(msgspec.structs.replace(g, uuid="") for g in state.gpus))


def check_numbers(nodes: AlikeNodes, ledger: Ledger) -> None:
    numbers = nodes.numbers()
    states = [unnamed(ledger.node(name)) for name in NODES]
    for at, number in enumerate(numbers):
        assert unnamed(nodes.state(number)) == states[at]
        assert [one == number for one in numbers] == [one == states[at] for one in states]


def played(ledger: Ledger, steps: list[tuple[str, int]], place: Callable[[Request, str], None]) -> None:
    for count, (what, at) in enumerate(steps):
        match what:
            case "place":
                place(REQUESTS[at], f"p{count}")
            case "end":
                ledger.release(f"p{at}")
            case "fault":
                fault(ledger, NODES[at])
            case "drop":
                ledger.drop_node(NODES[at])


@settings(max_examples=150, deadline=None)
@given(st.lists(step, max_size=40), st.sampled_from(POLICIES))
def test_the_best_node_is_that_of_rating_every_node(steps: list[tuple[str, int]], name: str) -> None:
    ledger, mix = cluster(), Mix()
    for request in REQUESTS:
        mix.seen(request)
    policy = policy_named(name, mix, [state.gpus for state in ledger.nodes()])
    nodes = AlikeNodes(ledger, NODES)
    known = Ranking(ledger, nodes, policy)

    def place(request: Request, uid: str) -> None:
        rated = [(state, rate(state, request, policy)) for one in NODES if (state := ledger.node(one)) is not None]
        values = [(found[1], state.name) for state, found in rated if found is not None]
        expected = max(values, key=lambda one: one[0], default=None)
        for ranking in (known, Ranking(ledger, nodes, policy), Ranking(ledger, NODES, policy)):
            best = ranking.best(request)
            assert (best and (best.value, best.assignment.node)) == expected
        if best is not None:
            ledger.hold(uid, best.assignment.node, best.assignment, cpu_milli=request.cpu_milli)
        check_numbers(nodes, ledger)

    played(ledger, steps, place)


SHARES = st.builds(
    lambda core, memory, cpu, models, not_models: Request(
        (Ask("a", core, memory),), cpu_milli=cpu, models=models, not_models=not_models
    ),
    st.integers(1, 99),
    st.sampled_from([0, 0, 256, 4096, 15360, 15361]),
    st.sampled_from([0, 500, 4000, 9000]),
    st.sampled_from([(), (), ("A100",)]),
    st.sampled_from([(), (), ("T4",)]),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(SHARES, st.integers(0, 7)), max_size=30),
    st.lists(SHARES, min_size=1, max_size=4),
    st.sampled_from([name for name in POLICIES if name in ("opportunity", "power")]),
    st.lists(st.sampled_from(["", "Xid 79", "divided"]), min_size=8, max_size=8),
)
def test_a_share_is_rated_by_the_states_of_gpus_as_on_each_node(
    held: list[tuple[Request, int]], asked: list[Request], name: str, faults: list[str]
) -> None:
    """Nodes with two models, GPUs that are lost or in MIG mode, with and without CPU, and pods by chance."""
    ledger, mix = Ledger(), Mix()
    for at in range(8):
        made = [*gpus(2, model="A100", node=f"n{at}"), *gpus(3, model="T4", node=f"m{at}")]
        made = [msgspec.structs.replace(gpu, index=index) for index, gpu in enumerate(made)]
        if faults[at] == "divided":
            made[0] = msgspec.structs.replace(made[0], mig="enabled")
        elif faults[at]:
            made[0] = msgspec.structs.replace(made[0], fault=faults[at])
        host = {"cpu_milli": 16_000, "host_memory_mib": 64_000} if at % 2 else {}
        ledger.set_node(f"n{at}", tuple(made), **host)
    for request, _ in held:
        mix.seen(request)
    policy = policy_named(name, mix, [state.gpus for state in ledger.nodes()])
    for count, (request, at) in enumerate(held):
        state = ledger.node(f"n{at}")
        assert state is not None
        placed = place(state, request, policy)
        if isinstance(placed, Placement):
            ledger.hold(f"p{count}", state.name, placed.assignment, cpu_milli=request.cpu_milli)
    nodes = AlikeNodes(ledger, [f"n{at}" for at in range(8)])
    for request in asked:
        numbers = nodes.numbers()
        found = nodes.share_values(numbers, request, policy)
        assert found is not None
        for number in numbers:
            state = nodes.state(number)
            assert state is not None
            rated = rate(state, request, policy)
            assert found[number] == (float("-inf") if rated is None else rated[1])


def test_what_needs_a_look_at_each_node_is_not_rated_by_gpus() -> None:
    ledger = cluster()
    nodes = AlikeNodes(ledger, NODES)
    policy = policy_named("opportunity", Mix(), [])
    two = Request((Ask("a", 30, 0), Ask("b", 30, 0)))
    for request in (Request((Ask("a", 100, 0),)), two, Request((Ask("a", 30, 0),), uuids=("GPU-n7-0",))):
        assert nodes.share_values(nodes.numbers(), request, policy) is None
    assert nodes.share_values([], Request((Ask("a", 30, 0),)), policy_named("fragmentation", Mix(), [])) is None


def test_numbers_are_given_again_when_there_are_too_many_states(monkeypatch: Any) -> None:
    monkeypatch.setattr(alike, "_LEAST_STATES", 3)
    monkeypatch.setattr(alike, "_STATES_FOR_A_NODE", 1)
    ledger = cluster()
    nodes = AlikeNodes(ledger, NODES)
    for cpu in range(50):
        ledger.set_node("n0", gpus(1, model="A100", node="n0"), cpu_milli=cpu)
        check_numbers(nodes, ledger)
    assert max(nodes.numbers()) <= len(NODES) + 1
