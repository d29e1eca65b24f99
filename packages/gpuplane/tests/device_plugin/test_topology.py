"""The preferred GPUs are those that an exhaustive search finds."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.api.gpunode import Link
from gpuplane.device_plugin.allocation.topology import CLOSENESS, TopologyChooser, closeness
from gpuplane.hardware import GPUFacts
from kubekit.errors import InvalidInput


def gpu(index: int, numa: int = -1, links: tuple[Link, ...] = ()) -> GPUFacts:
    return GPUFacts(
        index=index,
        minor=index,
        uuid=f"GPU-{index}",
        model="T",
        memory_bytes=1,
        pci="",
        compute=(7, 5),
        numa=numa,
        links=links,
    )


def two_sockets(per_socket: int) -> list[GPUFacts]:
    """PCIe GPUs, pairs on one switch, two sockets."""

    def path(a: int, b: int) -> str:
        if a // 2 == b // 2:
            return "PIX"
        return "PHB" if a // per_socket == b // per_socket else "SYS"

    count = 2 * per_socket
    return [
        gpu(i, i // per_socket, tuple(Link(gpu=j, type=path(i, j)) for j in range(count) if j != i))
        for i in range(count)
    ]


def brute_force(
    matrix: list[list[int]], available: set[int], must: set[int], size: int
) -> tuple[tuple[int, int], set[int]]:
    def inside(chosen: set[int]) -> int:
        return sum(matrix[a][b] for a, b in combinations(sorted(chosen), 2))

    best, found = (-1, -1), set()
    for chosen in combinations(sorted(available), size):
        candidate = set(chosen)
        if not must <= candidate:
            continue
        quality = (inside(candidate), inside(available - candidate))
        if quality > best:
            best, found = quality, candidate
    return best, found


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[list[int]], list[int], list[int], int]:
    count = draw(st.integers(1, 9))
    matrix = [[0] * count for _ in range(count)]
    for a, b in combinations(range(count), 2):
        matrix[a][b] = matrix[b][a] = draw(st.sampled_from([1, 2, 3, 4, 5, 40, 120]))
    available = draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    size = draw(st.integers(1, len(available)))
    must = draw(st.lists(st.sampled_from(available), unique=True, max_size=size))
    return matrix, available, must, size


@settings(max_examples=300, deadline=None)
@given(requests())
def test_equals_brute_force(request: tuple[list[list[int]], list[int], list[int], int]) -> None:
    matrix, available, must, size = request
    chooser = TopologyChooser([f"GPU-{i}" for i in range(len(matrix))], matrix)
    chosen = chooser.choose([f"GPU-{i}" for i in available], [f"GPU-{i}" for i in must], size)
    quality, expected = brute_force(matrix, set(available), set(must), size)
    got = {int(name.removeprefix("GPU-")) for name in chosen}
    assert len(chosen) == size
    assert set(must) <= got <= set(available)
    assert got == expected, quality


@st.composite
def sixteen(draw: st.DrawFn) -> tuple[list[list[int]], list[int], list[int], int]:
    """16 GPUs in groups, with now and then a pair that is nearer: many sets are alike, and some are not."""
    group = draw(st.sampled_from([1, 2, 4, 8, 16]))
    near, far = draw(st.sampled_from([(5, 1), (40, 3), (2, 2)]))
    matrix = [[near if a // group == b // group else far for b in range(16)] for a in range(16)]
    for a, b in draw(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=6)):
        matrix[a][b] = matrix[b][a] = draw(st.integers(1, 50))
    for a in range(16):
        matrix[a][a] = 0
    available = draw(st.lists(st.integers(0, 15), min_size=1, unique=True)) if draw(st.booleans()) else [*range(16)]
    size = draw(st.integers(1, len(available)))
    must = draw(st.lists(st.sampled_from(available), unique=True, max_size=min(size, 2)))
    return matrix, available, must, size


def search(matrix: list[list[int]], available: list[int], must: list[int], size: int) -> int:
    """As `brute_force`, over bit masks: the first best set in the order of combinations."""
    sums = [0] * (1 << 16)
    for mask in range(1, 1 << 16):
        low = (mask & -mask).bit_length() - 1
        rest = mask & mask - 1
        sums[mask] = sums[rest] + sum(matrix[low][i] for i in range(low + 1, 16) if rest >> i & 1)
    offered, fixed = sum(1 << i for i in available), sum(1 << i for i in must)
    best, found = (-1, -1), 0
    for chosen in combinations([1 << i for i in sorted(available)], size):
        mask = sum(chosen)
        if mask & fixed == fixed and (quality := (sums[mask], sums[offered & ~mask])) > best:
            best, found = quality, mask
    return found


@settings(max_examples=15, deadline=None)
@given(sixteen())
def test_sixteen_equal_brute_force(request: tuple[list[list[int]], list[int], list[int], int]) -> None:
    matrix, available, must, size = request
    chosen = TopologyChooser([str(i) for i in range(16)], matrix).choose(map(str, available), map(str, must), size)
    assert sum(1 << int(name) for name in chosen) == search(matrix, available, must, size)


def test_pairs_stay_on_a_switch_and_small_requests_leave_groups_whole() -> None:
    gpus = two_sockets(4)
    chooser = TopologyChooser([g.uuid for g in gpus], closeness(gpus))
    everything = [g.uuid for g in gpus]
    assert chooser.choose(everything, [], 2) == ("GPU-0", "GPU-1")
    assert chooser.choose(everything, ["GPU-5"], 2) == ("GPU-4", "GPU-5")
    assert chooser.choose(everything, [], 4) == ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
    # 3 has lost its neighbour already: taking it leaves every whole pair whole.
    assert chooser.choose(["GPU-0", "GPU-1", "GPU-3", "GPU-4", "GPU-5"], [], 1) == ("GPU-3",)


def test_nvlink_beats_pcie_and_unknown_paths_fall_back_to_numa() -> None:
    linked = [
        gpu(0, 0, (Link(gpu=1, type="PIX"), Link(gpu=2, type="NVL", lanes=4))),
        gpu(1, 0, (Link(gpu=0, type="PIX"), Link(gpu=2, type="SYS"))),
        gpu(2, 1, (Link(gpu=0, type="NVL", lanes=4), Link(gpu=1, type="SYS"))),
    ]
    chooser = TopologyChooser([g.uuid for g in linked], closeness(linked))
    assert chooser.choose([g.uuid for g in linked], [], 2) == ("GPU-0", "GPU-2")
    matrix = closeness([gpu(0, 0), gpu(1, 1), gpu(2, 0)])
    assert matrix[0][2] == CLOSENESS["NODE"] > matrix[0][1] == CLOSENESS["SYS"]


def test_sixteen_gpus_eight_wanted() -> None:
    gpus = two_sockets(8)
    chooser = TopologyChooser([g.uuid for g in gpus], closeness(gpus))
    assert chooser.choose([g.uuid for g in gpus], ["GPU-9"], 8) == tuple(f"GPU-{i}" for i in range(8, 16))


def test_more_than_sixteen_are_chosen_too() -> None:
    gpus = two_sockets(10)
    chooser = TopologyChooser([g.uuid for g in gpus], closeness(gpus))
    assert chooser.choose([g.uuid for g in gpus], ["GPU-12"], 2) == ("GPU-12", "GPU-13")
    assert len(chooser.choose([g.uuid for g in gpus], [], 7)) == 7


@pytest.mark.parametrize(
    ("available", "must", "size"),
    [(["GPU-0"], [], 2), (["GPU-9"], [], 1), (["GPU-0"], ["GPU-1"], 1), (["GPU-0", "GPU-1"], ["GPU-0", "GPU-1"], 1)],
)
def test_impossible_requests_are_refused(available: list[str], must: list[str], size: int) -> None:
    chooser = TopologyChooser(["GPU-0", "GPU-1"], [[0, 1], [1, 0]])
    with pytest.raises(InvalidInput):
        chooser.choose(available, must, size)
