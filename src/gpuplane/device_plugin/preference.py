"""Which GPUs go best together: the exact choice, over bit masks.

Of all sets of the wanted size the closest one is taken; of equally close ones the one that leaves the closest
remainder, so that a small request does not break up a large group; then the one with the lowest indices. A set's
closeness is the sum over its pairs. The sums of all 2^n sets are made once for a node's topology (65,536 for 16 GPUs,
50 ms), after which a choice looks at no more than the 12,870 ways to take 8 of 16.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import combinations
from typing import Final

from gpuplane.errors import InvalidInput
from gpuplane.hardware import GPU

EXACT_UP_TO: Final = 16
# NVLink beats every path over PCIe, by lanes; one switch beats several, they beat the host bridge, that the same
# socket.
CLOSENESS: Final = {"SYS": 1, "NODE": 2, "PHB": 3, "PXB": 4, "PIX": 5}
CLOSENESS_OF_A_LANE: Final = 10


def closeness(gpus: Sequence[GPU]) -> tuple[tuple[int, ...], ...]:
    """The symmetric matrix of pairs, in the order of `gpus`; the same NUMA node counts where a path is unknown."""
    position = {gpu.index: row for row, gpu in enumerate(gpus)}
    rows = [[0] * len(gpus) for _ in gpus]
    for row, gpu in enumerate(gpus):
        for other_row, other in enumerate(gpus):
            if row != other_row:
                same_numa = gpu.numa >= 0 and gpu.numa == other.numa
                rows[row][other_row] = CLOSENESS["NODE"] if same_numa else CLOSENESS["SYS"]
        for link in gpu.links:
            if link.gpu in position:
                near = CLOSENESS_OF_A_LANE * link.lanes if link.type == "NVL" else CLOSENESS.get(link.type, 1)
                rows[row][position[link.gpu]] = near
    return tuple(tuple(max(rows[i][j], rows[j][i]) for j in range(len(gpus))) for i in range(len(gpus)))


class Chooser:
    """Chooses among the devices of one node; `ids` and `matrix` are in the same order."""

    def __init__(self, ids: Sequence[str], matrix: Sequence[Sequence[int]]) -> None:
        self._ids = tuple(ids)
        self._matrix = matrix
        self._position = {name: i for i, name in enumerate(self._ids)}
        self._sums: array[int] | None = None

    def choose(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        """The best `size` of `available` with all of `must_include`, in the order of the node's GPUs.

        Raises InvalidInput for ids that this node does not have and sizes that cannot be met.
        """
        offered = self._mask(available)
        required = self._mask(must_include)
        if required & ~offered:
            raise InvalidInput("ids that must be included are not available", where="GetPreferredAllocation")
        if not required.bit_count() <= size <= offered.bit_count():
            raise InvalidInput(
                f"{size} of {offered.bit_count()} available, {required.bit_count()} of them fixed, is not possible",
                where="GetPreferredAllocation",
            )
        chosen = self._exact if len(self._ids) <= EXACT_UP_TO else self._greedy
        mask = chosen(offered, required, size)
        return tuple(name for i, name in enumerate(self._ids) if mask >> i & 1)

    def _mask(self, ids: Sequence[str]) -> int:
        unknown = [name for name in ids if name not in self._position]
        if unknown:
            raise InvalidInput(f"no such device on this node: {', '.join(unknown)}", where="GetPreferredAllocation")
        mask = 0
        for name in ids:
            mask |= 1 << self._position[name]
        return mask

    def _exact(self, offered: int, required: int, size: int) -> int:
        sums = self._all_sums()
        open_bits = [1 << i for i in range(len(self._ids)) if (offered & ~required) >> i & 1]
        best = (-1, -1)
        chosen = required
        # `combinations` gives lower indices first, and only a better set replaces one.
        for bits in combinations(open_bits, size - required.bit_count()):
            mask = required | sum(bits)
            if sums[mask] < best[0]:
                continue
            quality = (sums[mask], sums[offered & ~mask])
            if quality > best:
                best, chosen = quality, mask
        return chosen

    def _all_sums(self) -> array[int]:
        """For each mask the closeness of its pairs: that of the mask without its lowest bit, plus that bit's row."""
        if self._sums is None:
            count = len(self._ids)
            sums = array("q", bytes(8 << count))
            for low in reversed(range(count)):
                row = array("q", bytes(8 << (count - low - 1)))
                for index in range(1, len(row)):
                    bit = index & -index
                    row[index] = row[index ^ bit] + self._matrix[low][low + bit.bit_length()]
                    rest = index << (low + 1)
                    sums[rest | 1 << low] = sums[rest] + row[index]
            self._sums = sums
        return self._sums

    def _greedy(self, offered: int, required: int, size: int) -> int:
        """For more GPUs than machines have today: add the nearest one, of equals the one that others miss least."""
        chosen = required
        while chosen.bit_count() < size:
            left = offered & ~chosen
            bits = [i for i in range(len(self._ids)) if left >> i & 1]
            best = max(bits, key=lambda i: (self._near(i, chosen), -self._near(i, left), -i))
            chosen |= 1 << best
        return chosen

    def _near(self, gpu: int, mask: int) -> int:
        return sum(near for i, near in enumerate(self._matrix[gpu]) if mask >> i & 1)
