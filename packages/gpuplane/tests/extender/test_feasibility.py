"""Cached placements equal the placements of a new computation."""

from __future__ import annotations

import contextlib

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.scheduler.feasibility import FITS, UNKNOWN, FeasibilityCache, Lacking
from gpuplane.scheduler.policies import Chosen, Policies
from gpuplane.sharing import Ask, Assignment, Ledger, LedgerGPU, Part, Request
from gpuplane.sharing.placement import Placement, Refusal, place
from kubekit.errors import Retryable

MODELS, MEMORY = ["Tesla T4", "A100"], [4096, 16384]
gpus = st.lists(st.tuples(st.sampled_from(MODELS), st.sampled_from(MEMORY), st.booleans()), max_size=4)
cores, memories = st.sampled_from([10, 50, 99, 100, 200, 300]), st.sampled_from([0, 2048, 9000])
asks = st.lists(st.tuples(cores, memories), min_size=1, max_size=2)
requests = st.tuples(asks, st.sampled_from([(), ("T4",), ("H100",)]), st.sampled_from([(), ("GPU-n1-0",)]))
steps = st.lists(
    st.tuples(st.just("node"), st.sampled_from(["n1", "n2"]), gpus)
    | st.tuples(st.just("drop"), st.sampled_from(["n1", "n2"]))
    | st.tuples(st.just("hold"), st.sampled_from(["n1", "n2"]), st.integers(0, 3), st.sampled_from([10, 50, 100]))
    | st.tuples(st.just("release"), st.integers(0, 10))
    | st.tuples(st.just("ask"), st.integers(0, 2)),
    max_size=30,
)


def made(asked: tuple[list[tuple[int, int]], tuple[str, ...], tuple[str, ...]]) -> Request:
    each = [Ask(f"c{at}", core, 0 if core >= 100 else memory) for at, (core, memory) in enumerate(asked[0])]
    return Request(asks=tuple(each), models=asked[1], uuids=asked[2])


@given(st.lists(requests, min_size=3, max_size=3), steps, st.sampled_from(["tightest", "opportunity"]))
def test_answers_are_those_of_placement(asked: list, history: list, name: str) -> None:
    ledger = Ledger()
    policies = Policies(Chosen(name))
    cache = FeasibilityCache(ledger, policies)
    wanted = [made(one) for one in asked]
    count = 0
    for step in [*history, ("ask", 0), ("ask", 1), ("ask", 2)]:
        match step:
            case ("node", node, hardware):
                ledger.set_node(
                    node,
                    [
                        LedgerGPU(
                            index=at,
                            uuid=f"GPU-{node}-{at}",
                            model=model,
                            memory_mib=memory,
                            fault="" if well else "lost",
                        )
                        for at, (model, memory, well) in enumerate(hardware)
                    ],
                )
            case ("drop", node):
                ledger.drop_node(node)
            case ("hold", node, at, core):
                part = Part(f"GPU-{node}-{at}", at, core, 1024)
                count += 1
                try:
                    ledger.reserve(str(count), node, Assignment({"c": (part,)}))
                except Retryable:
                    continue
            case ("release", which):
                ledger.release(str(which))
            case ("ask", which):
                request = wanted[which]
                answers = cache.of(request)
                if which == 2:
                    answers.rate_all()
                if which != 1:
                    answers.prepare(["n1", "n2", "n3"])
                for node in ("n1", "n2", "n3"):
                    state = ledger.node(node)
                    if state is None:
                        assert answers.lacking(node) == Lacking(UNKNOWN, hopeless=True)
                        continue
                    expected = place(state, request, *policies.of(request))
                    if isinstance(expected, Refusal):
                        assert answers.value(node) == float("-inf")
                        whole = ledger_of(state.gpus).node(node)
                        assert whole is not None
                        alone = place(whole, request, *policies.of(request))
                        assert answers.lacking(node) == Lacking(expected.reason, isinstance(alone, Refusal))
                    else:
                        assert answers.lacking(node) is FITS
                        assert answers.value(node) == expected.value
                        assert isinstance(answers.place(node), Placement)


@given(
    st.lists(st.tuples(gpus, st.sampled_from([None, 500, 4000]), st.booleans()), min_size=1, max_size=6),
    st.lists(st.tuples(requests | st.none(), st.sampled_from([0, 1000, 4000])), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from([10, 50, 100])), max_size=8),
    st.sampled_from(["tightest", "opportunity", "fragmentation"]),
    st.booleans(),
)
def test_rating_all_nodes_at_once_says_the_same_as_each_alone(
    nodes: list, asked: list, held: list, name: str, other_gpus: bool
) -> None:
    ledger, policies = Ledger(), Policies(Chosen(name, "spread" if other_gpus else None))
    cache = FeasibilityCache(ledger, policies)
    for number, (hardware, cpu, by_count) in enumerate(nodes):
        made_of = [
            LedgerGPU(index=at, uuid=f"GPU-n{number}-{at}", model=model, memory_mib=memory, fault="" if well else "x")
            for at, (model, memory, well) in enumerate(hardware)
        ]
        memory_mib = None if cpu is None else 8192
        ledger.set_node(f"n{number}", made_of, cpu_milli=cpu, host_memory_mib=memory_mib, by_count=by_count)
    for count, (number, at, core) in enumerate(held):
        with contextlib.suppress(Retryable):
            part = Part(f"GPU-n{number}-{at}", at, core, 1024)
            ledger.reserve(str(count), f"n{number}", Assignment({"c": (part,)}))
    for one, cpu in asked:
        request = msgspec.structs.replace(Request() if one is None else made(one), cpu_milli=cpu)
        answers, alone = cache.of(request), FeasibilityCache(ledger, policies).of(request)
        answers.rate_all()
        assert [answers.value(f"n{at}") for at in range(len(nodes))] == [
            alone.value(f"n{at}") for at in range(len(nodes))
        ]


def ledger_of(listed: tuple[LedgerGPU, ...]) -> Ledger:
    ledger = Ledger()
    for name in ("n1", "n2"):
        ledger.set_node(name, listed)
    return ledger
