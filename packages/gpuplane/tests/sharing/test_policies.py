"""Fragmentation and opportunity: what they prefer and why; and the ranking of nodes, which must be what it shortens."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.sharing import POLICIES, Ledger, LedgerGPU, NodeState, Request, request_of
from gpuplane.sharing.placement import Placement, place
from gpuplane.sharing.placement.fit import rate, taken
from gpuplane.sharing.placement.fragmentation import FragmentationPolicy
from gpuplane.sharing.placement.mix import Mix
from gpuplane.sharing.placement.opportunity import learn
from gpuplane.sharing.placement.policy import Policy
from gpuplane.sharing.placement.ranking import Ranking
from gpuplane.sharing.placement.registry import policy_named
from gpuplane.sharing.placement.watts import GPUWatts, watts_of
from kubekit.errors import UsageError
from tests.support.sharing_examples import container, gpus, node, pod


def asked(core: int, units: int = 0, cpu: str = "1", **said: str) -> Request:
    return request_of(pod(container("a", core=core, units=units, cpu=cpu), **said))


def mix(*requests: Request) -> Mix:
    made = Mix()
    for request in requests:
        made.seen(request)
    return made


def index_of(policy: Policy, state: NodeState, request: Request) -> int:
    placed = place(state, request, policy)
    assert isinstance(placed, Placement)
    return placed.assignment.containers["a"][0].index


def test_fragments_are_what_the_next_pod_cannot_use() -> None:
    policy = FragmentationPolicy(mix(asked(60), asked(100)))
    state = msgspec.structs.replace(node(100, 60, 40), cpu_milli=4000)
    # The 60% cannot use the 40; the whole one can use neither the 40 nor the 60.
    assert policy.fragments(state, state.core, 4000) == pytest.approx(0.5 * 40 + 0.5 * 100)
    assert policy.fragments(state, state.core, 500) == 200


def test_a_pod_without_gpus_finds_every_free_gpu_useless() -> None:
    policy = FragmentationPolicy(mix(Request(cpu_milli=100)))
    assert policy.fragments(node(100, 50), (100, 50), None) == 150


def test_fragmentation_leaves_what_others_can_use() -> None:
    policy = FragmentationPolicy(mix(asked(50), asked(30), asked(30)))
    assert index_of(policy, node(100, 80, 30), asked(30)) == 2
    # Next to the 20 that are held, it would leave 30 that no other 50 can use.
    assert index_of(policy, node(80, 100), asked(50)) == 1


def test_opportunity_keeps_the_gap_that_somebody_else_fills_better() -> None:
    """70s and 30s are equally frequent: a 30 goes next to a 70, not into an empty GPU, nor into a gap of 60."""
    policy = learn(mix(*[asked(70)] * 10, *[asked(30)] * 10), [gpus(8)])
    assert index_of(policy, node(100, 60, 30), asked(30)) == 2
    assert index_of(policy, node(100, 30), asked(70)) == 0


def test_opportunity_spares_models_that_others_name() -> None:
    wanted = asked(100, **{names.GPU_MODELS_ANNOTATION: "H100"})
    listed = (
        LedgerGPU(index=0, uuid="GPU-0", model="NVIDIA H100", memory_mib=81_920),
        LedgerGPU(index=1, uuid="GPU-1", model="Tesla T4", memory_mib=16_384),
    )
    policy = learn(mix(*[wanted] * 8, *[asked(100)] * 2), [listed])
    h100, t4 = (NodeState(gpu.model, (gpu,), (100,), (gpu.memory_mib,)) for gpu in listed)
    values = [found[1] for state in (h100, t4) if (found := rate(state, asked(100), policy)) is not None]
    assert values[0] < values[1]


def test_opportunity_spares_the_cpu_that_free_gpus_need() -> None:
    policy = learn(mix(asked(100, cpu="10"), Request(cpu_milli=10_000)), [gpus(2)])
    scarce = msgspec.structs.replace(node(100), cpu_milli=12_000)
    ample = msgspec.structs.replace(node(100), cpu_milli=40_000)
    without_gpus = Request(cpu_milli=10_000)
    values = [found[1] for state in (scarce, ample) if (found := rate(state, without_gpus, policy)) is not None]
    assert values[0] < values[1] == 0


def test_opportunity_counts_the_scarcer_of_core_and_memory() -> None:
    """A GPU with half its core and hardly any memory is hardly worth anything: the place for who needs no memory."""
    policy = learn(mix(*[asked(50, units=32)] * 5), [gpus(2)])
    state = node(50, 50, memory=(8192, 256))
    assert index_of(policy, state, asked(10, units=1)) == 1


def listed(model: str, count: int) -> tuple[LedgerGPU, ...]:
    return tuple(LedgerGPU(index=at, uuid=f"{model}-{at}", model=model, memory_mib=15_360) for at in range(count))


def value_of(policy: Policy, of: tuple[LedgerGPU, ...], core: tuple[int, ...], request: Request) -> float:
    rated = rate(NodeState("n", of, core, tuple(gpu.memory_mib for gpu in of)), request, policy)
    assert rated is not None
    return rated[1]


def test_power_prefers_busy_gpus_and_models_that_take_less() -> None:
    t4, v100 = listed("Tesla T4", 2), listed("Tesla V100-SXM2-32GB", 2)
    policy = policy_named("power", mix(*[asked(40)] * 10), [t4, v100])
    assert value_of(policy, t4, (100, 100), asked(40)) > value_of(policy, v100, (100, 100), asked(40))
    assert value_of(policy, v100, (60, 100), asked(40)) > value_of(policy, t4, (100, 100), asked(40))
    assert index_of(policy, NodeState("n", v100, (100, 60), (15_360, 15_360)), asked(40)) == 1


def test_power_weighs_watts_against_the_average_of_the_cluster() -> None:
    """If all GPUs are equal, the watts of a GPU cost the same in any cluster, for each model."""
    values = []
    for model in ("Tesla T4", "NVIDIA H100 80GB HBM3", "a model of tomorrow"):
        of = listed(model, 4)
        policy = policy_named("power", mix(*[asked(100)] * 10), [of])
        values.append(value_of(policy, of, (100, 100, 100, 100), asked(100)))
    assert values == pytest.approx([values[0]] * 3, abs=1)
    assert isinstance(policy_named("power", Mix(), []), Policy)


@pytest.mark.parametrize(
    ("model", "idle", "busy"),
    [
        ("Tesla T4", 10, 70),
        ("NVIDIA A10", 30, 150),
        ("NVIDIA A10G", 37, 300),
        ("NVIDIA A100-SXM4-80GB", 50, 400),
        ("NVIDIA H100 PCIe", 43, 350),
        ("NVIDIA H100 80GB HBM3", 87, 700),
        ("a model of tomorrow", 25, 250),
    ],
)
def test_watts_go_by_words_of_the_model(model: str, idle: int, busy: int) -> None:
    assert watts_of(model) == GPUWatts(idle, busy)


def test_without_having_seen_anything_there_is_a_guess() -> None:
    policy = learn(Mix(), [gpus(4)])
    assert index_of(policy, node(100, 50), asked(50)) == 1


def test_pods_that_no_gpu_will_ever_do_for_teach_nothing() -> None:
    policy = learn(mix(asked(70, **{names.GPU_MODELS_ANNOTATION: "B200"})), [gpus(2)])
    assert index_of(policy, node(100, 50), asked(50)) == 1
    assert isinstance(place(node(100), asked(50), learn(Mix(), [])), Placement)


def test_old_requests_fade() -> None:
    kept, request = Mix(), asked(30)
    for _ in range(100_001):
        kept.seen(request)
    assert kept.total < 60_000
    kept.seen(asked(60))
    assert [typical.shape.core for typical in kept.typical()] == [30]


def test_a_wrong_name_is_told_with_the_right_ones() -> None:
    with pytest.raises(UsageError, match="opportunity, fragmentation"):
        policy_named("best", Mix(), [])


requests = st.builds(
    lambda cores, units, cpu: request_of(
        pod(*(container(f"c{i}", core=core, units=units * (core < 100), cpu=cpu) for i, core in enumerate(cores)))
    ),
    st.lists(st.sampled_from([10, 30, 50, 70, 100, 200]), min_size=1, max_size=2),
    st.sampled_from([0, 4, 16]),
    st.sampled_from(["1", "4"]),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(requests, min_size=1, max_size=5), st.lists(st.integers(0, 4), max_size=40), st.sampled_from(POLICIES))
def test_the_ranking_finds_what_looking_at_every_node_finds(seen: list[Request], order: list[int], name: str) -> None:
    ledger = Ledger()
    for at in range(4):
        ledger.set_node(f"n{at}", gpus(at + 1, node=f"n{at}"), cpu_milli=10_000, host_memory_mib=10_000)
    policy = policy_named(name, mix(*seen), [state.gpus for state in ledger.nodes()])
    ranking = Ranking(ledger, [f"n{at}" for at in range(4)], policy)
    for number, which in enumerate(order):
        request = seen[which % len(seen)]
        expected = None
        for state in ledger.nodes():
            found = rate(state, request, policy)
            if found is not None and (expected is None or found[1] > expected[1]):
                expected = state.name, found[1]
        best = ranking.best(request)
        assert (best and best.assignment.node) == (expected and expected[0])
        if best is not None:
            assert best.value == pytest.approx(expected[1] if expected else None)
            assert 0 <= best.score <= 100
            ledger.reserve(str(number), best.assignment.node, best.assignment, cpu_milli=request.cpu_milli)
        elif order:
            ledger.rollback(str(number // 2))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0, 10, 30, 50, 100]), min_size=1, max_size=4), requests, st.sampled_from(POLICIES))
def test_the_short_cut_of_a_policy_says_what_the_long_way_says(free: list[int], request: Request, name: str) -> None:
    policy = policy_named(name, mix(request, asked(30, units=8), asked(100)), [gpus(4)])
    state = msgspec.structs.replace(node(*free), cpu_milli=5000)
    found = rate(state, request, policy)
    placed = place(state, request, policy)
    assert (found is None) is not isinstance(placed, Placement)
    if found is not None:
        spots, value = found
        long_way = _long_way(state, request, policy, spots)
        assert value == pytest.approx(long_way, abs=1e-3)


def _long_way(state: NodeState, request: Request, policy: Policy, spots: dict[str, tuple[int, ...]]) -> float:
    return policy.value(state, taken(state, request, spots), request)
