"""Placement: a pod that fits is placed, a pod that does not gets the reason, and each policy has its preference."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.api.gpunode import Link
from gpuplane.sharing import Ledger, NodeState, empty, request_of
from gpuplane.sharing.placement import Placement, Refusal, node_order, place
from gpuplane.sharing.placement.policy import Policy
from gpuplane.sharing.placement.spread import SpreadPolicy
from gpuplane.sharing.placement.tightest import TightestPolicy
from gpuplane.sharing.placement.topology import TopologyPolicy
from tests.support.sharing_examples import container, gpus, init, node, pod, sidecar

POLICIES: list[Policy] = [TightestPolicy(), SpreadPolicy(), TopologyPolicy()]


def chosen(state: NodeState, *containers: dict[str, object], policy: Policy | None = None, **said: str) -> list[int]:
    """Indices of the GPUs of each container, in order."""
    placed = place(state, request_of(pod(*containers, **said)), policy or TightestPolicy())
    assert isinstance(placed, Placement), placed
    return [part.index for parts in placed.assignment.containers.values() for part in parts]


def refused(state: NodeState, *containers: dict[str, object], **said: str) -> Refusal:
    answer = place(state, request_of(pod(*containers, **said)), TightestPolicy())
    assert isinstance(answer, Refusal)
    return answer


def test_the_conformance_case_of_gpu_admission() -> None:
    """Three nodes with 2 GPUs of 4 units each; the pods go where gpu-admission's own test says."""
    kept = Ledger()
    for name in ("node0", "node1", "node2"):
        kept.set_node(name, gpus(2, memory_mib=1024, node=name))
    pods = [
        (container("a", core=10, units=1), container("b", core=10, units=1)),
        (container("a", core=100, units=3), container("b", core=80, units=3)),
        (container("a", core=200, units=10), container("b")),
        (container("a", core=10, units=2), container("b")),
    ]
    went = []
    for number, containers in enumerate(pods):
        for state in sorted(kept.nodes(), key=node_order):
            placed = place(state, request_of(pod(*containers)), TightestPolicy())
            if isinstance(placed, Placement):
                kept.reserve(str(number), state.name, placed.assignment)
                went.append(state.name)
                break
    assert went == ["node0", "node1", "node2", "node0"]


def test_tightest_takes_the_fullest_gpu_and_spread_the_emptiest() -> None:
    state = node(100, 40, 60)
    asked = container("a", core=30, units=4)
    assert chosen(state, asked) == [1]
    assert chosen(state, asked, policy=SpreadPolicy()) == [0]


def test_core_and_memory_must_be_on_the_same_gpu() -> None:
    state = node(50, 100, memory=(16_384, 1024))
    answer = refused(state, container("a", core=60, units=8))
    assert answer.reason == "no GPU has 60% core and 2048 MiB together"
    assert [(lack.reason, lack.core, lack.memory_mib) for lack in answer.gpus] == [("core", 10, 0), ("memory", 0, 1024)]


def test_each_gpu_counts_under_its_first_failing_reason() -> None:
    listed = list(gpus(4))
    listed[0] = msgspec.structs.replace(listed[0], fault="Xid 79")
    listed[1] = msgspec.structs.replace(listed[1], model="NVIDIA H100")
    state = msgspec.structs.replace(node(100, 100, 10, 50), gpus=tuple(listed))
    said = {names.GPU_MODELS_ANNOTATION: "T4", names.NOT_GPU_UUIDS_ANNOTATION: "GPU-n-3"}
    answer = refused(state, container("a", core=40), **said)
    assert [lack.reason for lack in answer.gpus] == ["lost", "model", "core", "uuid"]


@pytest.mark.parametrize(
    ("state", "asked", "reason"),
    [
        (empty("n", ()), container("a", gpu=1), "has no GPUs"),
        (node(100, 90), container("a", gpu=2), "2 whole GPUs asked, 1 wholly free"),
        (node(60, 60), container("a", core=70), "no GPU has 70% core"),
    ],
)
def test_a_refusal_in_one_line(state: NodeState, asked: dict[str, object], reason: str) -> None:
    assert refused(state, asked).reason == reason


def test_containers_that_find_no_room_together() -> None:
    answer = refused(node(60), container("a", core=40), container("b", core=40))
    assert answer.reason == "no room for its 2 containers together"
    assert [lack.reason for lack in answer.gpus] == [""]


def test_a_share_without_memory_holds_the_part_that_goes_with_its_core() -> None:
    placed = place(node(100, size=10_000), request_of(pod(container("a", core=30))), TightestPolicy())
    assert isinstance(placed, Placement)
    assert placed.assignment.containers["a"][0].memory_mib == 3000


def test_the_first_choice_is_given_up_when_it_leaves_no_room() -> None:
    """The share is asked for first and prefers the small GPU, which alone has room for the other's memory."""
    state = node(100, 100, memory=(8000, 4000))
    assert chosen(state, container("a", core=10, units=8), container("b", core=95, units=8)) == [1, 0]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_whole_gpu_is_found_whatever_a_share_would_prefer(policy: Policy) -> None:
    assert sorted(chosen(node(100, 50), container("a", core=20), container("b", gpu=1), policy=policy)) == [0, 1]


def test_init_containers_use_what_the_pod_has_anyway() -> None:
    state = node(30, 100, 100)
    asking = pod(container("main", gpu=1), first=(init("i", core=60, units=4), sidecar("s", core=10), init("j", gpu=1)))
    placed = place(state, request_of(asking), TightestPolicy())
    assert isinstance(placed, Placement)
    at = {name: [part.index for part in parts] for name, parts in placed.assignment.containers.items()}
    assert at == {"i": [1], "s": [0], "j": [1], "main": [1]}
    assert sum(core for core, _ in placed.assignment.held().values()) == 110


LINKED = {0: 1, 1: 0, 2: 3, 3: 2}


def linked() -> NodeState:
    """Four GPUs, in two pairs with NVLink."""
    listed = tuple(
        msgspec.structs.replace(
            gpu,
            links=tuple(
                Link(gpu=other, type="NVL", lanes=4) if LINKED[gpu.index] == other else Link(gpu=other, type="SYS")
                for other in range(4)
                if other != gpu.index
            ),
        )
        for gpu in gpus(4)
    )
    return empty("n", listed)


def test_whole_gpus_are_near_each_other() -> None:
    state = msgspec.structs.replace(linked(), core=(100, 50, 100, 100))
    assert chosen(state, container("a", gpu=2), policy=TopologyPolicy()) == [2, 3]


def test_one_gpu_is_taken_where_it_breaks_up_no_pair() -> None:
    state = msgspec.structs.replace(linked(), core=(50, 100, 100, 100))
    assert chosen(state, container("a", gpu=1), policy=TopologyPolicy()) == [1]
    empty_share = msgspec.structs.replace(linked(), core=(0, 100, 100, 100))
    assert chosen(empty_share, container("a", core=30), policy=TopologyPolicy()) == [1]


def test_many_gpus_are_chosen_quickly_and_near() -> None:
    listed = tuple(msgspec.structs.replace(gpu, numa=gpu.index // 16) for gpu in gpus(32))
    state = msgspec.structs.replace(empty("n", listed), core=tuple(100 if at >= 4 else 0 for at in range(32)))
    assert chosen(state, container("a", gpu=12), policy=TopologyPolicy()) == list(range(4, 16))


sizes = st.sampled_from([10, 20, 30, 50, 70, 100, 200])


@given(
    st.lists(st.sampled_from([0, 20, 40, 60, 100]), min_size=1, max_size=4),
    st.lists(sizes, min_size=1, max_size=4),
    st.sampled_from(POLICIES),
)
def test_a_pod_fits_exactly_when_some_way_exists(free: list[int], sizes: list[int], policy: Policy) -> None:
    state = node(*free, memory=(16_384,) * len(free), size=16_384)
    request = request_of(pod(*(container(f"c{i}", core=core, units=1) for i, core in enumerate(sizes))))
    placed = place(state, request, policy)
    assert isinstance(placed, Placement) is _some_way(tuple(sorted(sizes, reverse=True)), tuple(free))
    if isinstance(placed, Placement):
        assert 0 <= placed.score <= 100
        for (_, index), (core, _) in placed.assignment.held().items():
            assert core <= free[index]


def _some_way(sizes: tuple[int, ...], free: tuple[int, ...]) -> bool:
    if not sizes:
        return True
    first, rest = sizes[0], sizes[1:]
    if first >= 100:
        whole = [at for at, core in enumerate(free) if core == 100][: first // 100]
        left = tuple(0 if at in whole else core for at, core in enumerate(free))
        return len(whole) == first // 100 and _some_way(rest, left)
    return any(
        _some_way(rest, (*free[:at], core - first, *free[at + 1 :])) for at, core in enumerate(free) if core >= first
    )
