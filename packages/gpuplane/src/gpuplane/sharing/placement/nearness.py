"""Ranks sets of whole GPUs by the links between them.

Of all sets of the wanted size the closest is taken; of equally close sets the set that leaves the closest remainder, so
that a small request does not break up a large group; then the set with the lowest indices. Closeness of a set is the
sum over its pairs: NVLink by lanes, else the common ancestor on PCIe, as `nvidia-smi topo -m` names it.

Results are cached by the matrix of pairs: the thousands of nodes of a cluster are of few kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb
from typing import Final

from gpuplane.sharing.node import LedgerGPU

_CLOSENESS: Final = {"SYS": 1, "NODE": 2, "PHB": 3, "PXB": 4, "PIX": 5}
_CLOSENESS_OF_A_LANE: Final = 10
_MOST_SETS: Final = 13_000  # 8 of 16 GPUs; beyond it one GPU after the other is added
_MOST_CHOICES: Final = 65_536  # remembered for one kind of node
_MOST_NODES: Final = 20_000  # remembered; far more than a cluster has

Matrix = tuple[tuple[int, ...], ...]


class Nearness:
    """The GPUs of one kind of node; `pairs` is the symmetric matrix of their closeness."""

    def __init__(self, pairs: Matrix) -> None:
        self.pairs = pairs
        self._alike = len({pairs[a][b] for a, b in combinations(range(len(pairs)), 2)}) < 2
        self._chosen: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}

    def choose(self, free: tuple[int, ...], size: int) -> tuple[int, ...]:
        """Return the `size` nearest of the positions `free`, in their order; all of them where they are not more."""
        if self._alike or size >= len(free):
            return free[:size]
        found = self._chosen.get((free, size))
        if found is None:
            if len(self._chosen) >= _MOST_CHOICES:
                self._chosen.clear()
            exact = comb(len(free), size) <= _MOST_SETS
            found = self._chosen[free, size] = self._exact(free, size) if exact else self._greedy(free, size)
        return found

    def near(self, some: Sequence[int]) -> int:
        """Return the sum over the pairs of a set."""
        return sum(self.pairs[a][b] for a, b in combinations(some, 2))

    def _exact(self, free: tuple[int, ...], size: int) -> tuple[int, ...]:
        best, chosen = (-1, -1), free[:size]
        # `combinations` gives lower indices first, and only a better set replaces one.
        for some in combinations(free, size):
            near = self.near(some)
            if near >= best[0]:
                quality = (near, self.near([at for at in free if at not in some]))
                if quality > best:
                    best, chosen = quality, some
        return chosen

    def _greedy(self, free: tuple[int, ...], size: int) -> tuple[int, ...]:
        """For more GPUs than machines have today: add the nearest one, of equals the one that others miss least."""
        chosen: list[int] = []
        while len(chosen) < size:
            left = [at for at in free if at not in chosen]
            chosen.append(max(left, key=lambda at: (self._to(at, chosen), -self._to(at, left), -at)))
        return tuple(sorted(chosen))

    def _to(self, gpu: int, others: Sequence[int]) -> int:
        return sum(self.pairs[gpu][other] for other in others)


_of_pairs: dict[Matrix, Nearness] = {}
_of_gpus: dict[int, tuple[tuple[LedgerGPU, ...], Nearness]] = {}


def nearness(gpus: tuple[LedgerGPU, ...]) -> Nearness:
    """Return the links of a node's GPUs; nodes share the tuple of their GPUs, so it is cached by that tuple."""
    known = _of_gpus.get(id(gpus))
    if known is None or known[0] is not gpus:
        if len(_of_gpus) >= _MOST_NODES:
            _of_gpus.clear()
            _of_pairs.clear()
        pairs = _pairs(gpus)
        known = _of_gpus[id(gpus)] = gpus, _of_pairs.setdefault(pairs, Nearness(pairs))
    return known[1]


def _pairs(gpus: Sequence[LedgerGPU]) -> Matrix:
    """Return the closeness of each pair; the same NUMA node counts where a path is unknown."""
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
