"""topology: whole GPUs that are near each other, leaving the best remainder; shares on the GPUs others miss least.

Of all sets of the wanted size the closest is taken, of equally close ones that which leaves the closest remainder, so
that a small request does not break up a large group, then the one with the lowest indices. Closeness of a set is the
sum over its pairs: NVLink by lanes, else the common ancestor on PCIe, as `nvidia-smi topo -m` names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import Final

from gpuplane.sharing.node import Gpu, NodeState
from gpuplane.sharing.placement.policy import BEST, Policy
from gpuplane.sharing.request import Ask, Request

_CLOSENESS: Final = {"SYS": 1, "NODE": 2, "PHB": 3, "PXB": 4, "PIX": 5}
_CLOSENESS_OF_A_LANE: Final = 10
_MOST_SETS: Final = 13_000  # 8 of 16 GPUs; beyond it one GPU after the other is added


class Topology(Policy):
    name = "topology"

    def order(self, node: NodeState, ask: Ask, fitting: Sequence[int]) -> Iterable[int]:
        """The fullest GPU; of equally full ones that with the fewest near neighbours that are wholly free."""
        matrix = closeness(node.gpus)
        free = [at for at, core in enumerate(node.core) if core == node.scale]
        missed = {at: sum(matrix[at][other] for other in free) for at in fitting}
        return sorted(fitting, key=lambda at: (node.core[at], node.memory[at], missed[at], at))

    def choose(self, node: NodeState, ask: Ask, free: Sequence[int]) -> tuple[int, ...]:
        return nearest(node.gpus, tuple(free), ask.gpus)

    def value(self, before: NodeState, after: NodeState, request: Request) -> float:
        """How near the wholly free GPUs that are left stay to each other, of what the node has."""
        whole = tuple(range(len(after.gpus)))
        left = tuple(at for at in whole if after.core[at] == after.scale)
        matrix = closeness(after.gpus)
        best = _near(matrix, whole)
        if not best:
            return BEST - sum(before.core) * BEST / (before.scale * max(1, len(before.gpus)))
        kept, had = _near(matrix, left), _near(matrix, tuple(at for at in whole if before.core[at] == before.scale))
        return BEST - (had - kept) * BEST / best


@lru_cache(maxsize=65_536)
def nearest(gpus: tuple[Gpu, ...], free: tuple[int, ...], size: int) -> tuple[int, ...]:
    """`size` of the positions `free`, in their order: the closest, then with the closest remainder."""
    if size >= len(free):
        return free
    matrix = closeness(gpus)
    if len({matrix[a][b] for a, b in combinations(free, 2)}) < 2:
        return free[:size]  # all pairs alike, as on one switch
    if comb(len(free), size) > _MOST_SETS:
        return _greedy(matrix, free, size)
    best, chosen = (-1, -1), free[:size]
    # `combinations` gives lower indices first, and only a better set replaces one.
    for some in combinations(free, size):
        near = _near(matrix, some)
        if near >= best[0]:
            quality = (near, _near(matrix, tuple(at for at in free if at not in some)))
            if quality > best:
                best, chosen = quality, some
    return chosen


@lru_cache(maxsize=4096)
def closeness(gpus: tuple[Gpu, ...]) -> tuple[tuple[int, ...], ...]:
    """The symmetric matrix of pairs; the same NUMA node counts where a path is unknown."""
    position = {gpu.index: row for row, gpu in enumerate(gpus)}
    rows = [[0] * len(gpus) for _ in gpus]
    for row, gpu in enumerate(gpus):
        for other_row, other in enumerate(gpus):
            if row != other_row:
                rows[row][other_row] = _CLOSENESS["NODE" if gpu.numa >= 0 and gpu.numa == other.numa else "SYS"]
        for link in gpu.links:
            if link.gpu in position:
                near = _CLOSENESS_OF_A_LANE * link.lanes if link.type == "NVL" else _CLOSENESS.get(link.type, 1)
                rows[row][position[link.gpu]] = near
    return tuple(tuple(max(rows[i][j], rows[j][i]) for j in range(len(gpus))) for i in range(len(gpus)))


def _near(matrix: Sequence[Sequence[int]], some: Sequence[int]) -> int:
    return sum(matrix[a][b] for a, b in combinations(some, 2))


def _greedy(matrix: Sequence[Sequence[int]], free: Sequence[int], size: int) -> tuple[int, ...]:
    """For more GPUs than machines have today: add the nearest one, of equals the one that others miss least."""
    chosen: list[int] = []
    while len(chosen) < size:
        left = [at for at in free if at not in chosen]
        chosen.append(
            max(left, key=lambda at: (sum(matrix[at][o] for o in chosen), -sum(matrix[at][o] for o in left), -at))
        )
    return tuple(sorted(chosen))
