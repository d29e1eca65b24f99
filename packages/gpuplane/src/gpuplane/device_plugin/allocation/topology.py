"""Chooses the GPUs with the closest links: exactly, over bit masks.

Of all sets of the wanted size the closest one is taken; of equally close ones the one that leaves the closest
remainder, so that a small request does not break up a large group; then the one with the lowest indices. A set's
closeness is the sum over its pairs.

How this stays below a millisecond for 16 GPUs: the sums of all 65,536 sets are made once for a node's topology, as a
table of 256 rows (the upper eight GPUs) by 256 columns (the lower eight), and a request reads from each row that is
possible the columns that are, at C's speed. GPUs that a topology does not tell apart are taken lowest first, which is
what the last rule would choose. The remainder's closeness is what all available ones have, less each chosen GPU's
share in it, plus the set's own; so among equally close sets it is a sum over GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final

from gpuplane.hardware import GPUFacts
from kubekit.errors import InvalidInput

EXACT_UP_TO: Final = 16
_HALF: Final = 8
# NVLink beats every path over PCIe, by lanes; one switch beats several, they beat the host bridge, that the same
# socket.
CLOSENESS: Final = {"SYS": 1, "NODE": 2, "PHB": 3, "PXB": 4, "PIX": 5}
CLOSENESS_OF_A_LANE: Final = 10
Matrix = Sequence[Sequence[int]]
_Place = tuple[int, Sequence[int], Sequence[int]]
"""The upper half of a set, the lower halves that are possible with it, and the closeness with each."""


def closeness(gpus: Sequence[GPUFacts]) -> tuple[tuple[int, ...], ...]:
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


class TopologyChooser:
    """Chooses among the devices of one node; `ids` and `matrix` are in the same order."""

    def __init__(self, ids: Sequence[str], matrix: Matrix) -> None:
        self._ids = tuple(ids)
        self._matrix = matrix
        self._position = {name: i for i, name in enumerate(self._ids)}
        self._exact = len(self._ids) <= EXACT_UP_TO
        self._rows = _all_sums(matrix) if self._exact else []
        self._bounds = _bounds(self._rows)
        self._alike = _alike(matrix) if self._exact else []

    def choose(self, available: Iterable[str], must_include: Iterable[str], size: int) -> tuple[str, ...]:
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
        mask = self._best(offered, required, size) if self._exact else self._greedy(offered, required, size)
        return tuple(name for i, name in enumerate(self._ids) if mask >> i & 1)

    def _mask(self, ids: Iterable[str]) -> int:
        mask = 0
        for name in ids:
            if name not in self._position:
                raise InvalidInput(f"no such device on this node: {name}", where="GetPreferredAllocation")
            mask |= 1 << self._position[name]
        return mask

    def _best(self, offered: int, required: int, size: int) -> int:
        lower, upper = (self._halves(offered, required, shift, size) for shift in (0, _HALF))
        columns = [_getter(masks) for masks in lower]
        hopes: list[tuple[int, int]] = []
        for count, masks in enumerate(upper):
            rest = size - count
            if 0 <= rest < len(lower) and lower[rest]:
                bounds = self._bounds[rest]
                hopes += [(bounds[high], high) for high in masks]
        hopes.sort(reverse=True)
        best, places = -1, []
        for hope, high in hopes:
            if hope < best:
                break
            sums = columns[size - high.bit_count()](self._rows[high])
            nearest = max(sums)
            if nearest > best:
                best, places = nearest, [(high, sums)]
            elif nearest == best:
                places.append((high, sums))
        return self._least_missed(
            offered, [(high, lower[size - high.bit_count()], sums) for high, sums in places], best
        )

    def _least_missed(self, offered: int, places: Iterable[_Place], best: int) -> int:
        """Of the sets whose closeness is `best` the one that leaves the closest remainder, then the lowest."""
        share = [
            sum(near for j, near in enumerate(row) if offered >> j & 1) if offered >> i & 1 else 0
            for i, row in enumerate(self._matrix)
        ]
        low_share, high_share = _subset_sums(share[:_HALF]), _subset_sums(share[_HALF:])
        least, chosen = -1, 0
        for high, lows, sums in places:
            at = -1
            for _ in range(sums.count(best)):
                at = sums.index(best, at + 1)
                lost = low_share[lows[at]] + high_share[high]
                mask = high << _HALF | lows[at]
                if least < 0 or lost < least or (lost == least and _before(mask, chosen)):
                    least, chosen = lost, mask
        return chosen

    def _halves(self, offered: int, required: int, shift: int, size: int) -> list[list[int]]:
        """The masks of one half that are possible, by their size; of GPUs that are alike the lowest ones only."""
        found = [0]
        for group in self._alike:
            mine = [i for i in group if shift <= i < shift + _HALF and offered >> i & 1]
            if not mine:
                continue
            fixed = sum(1 << i - shift for i in mine if required >> i & 1)
            options, mask = [fixed], fixed
            for i in mine:
                if not required >> i & 1:
                    mask |= 1 << i - shift
                    options.append(mask)
            found = [one | more for one in found for more in options]
        sized: list[list[int]] = [[] for _ in range(min(size, _HALF) + 1)]
        for mask in found:
            count = mask.bit_count()
            if count < len(sized):
                sized[count].append(mask)
        return sized

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


def _getter(masks: Sequence[int]) -> Callable[[Sequence[int]], Sequence[int]]:
    """Reads the entries `masks` of a row."""
    # NB: of one index an itemgetter gives the item and not a tuple of it.
    return itemgetter(*masks) if len(masks) > 1 else itemgetter(slice(masks[0], masks[0] + 1) if masks else slice(0))


def _before(mask: int, other: int) -> bool:
    """Return whether the lowest GPU in which two sets of one size differ is in the first one."""
    return bool((mask ^ other) & -(mask ^ other) & mask)


def _alike(matrix: Matrix) -> list[list[int]]:
    """Groups of GPUs that can be exchanged for each other without any pair being nearer or farther."""
    groups: list[list[int]] = []
    for gpu in range(len(matrix)):
        for group in groups:
            if all(matrix[gpu][k] == matrix[group[0]][k] for k in range(len(matrix)) if k not in (gpu, group[0])):
                group.append(gpu)
                break
        else:
            groups.append([gpu])
    return groups


def _all_sums(matrix: Matrix) -> list[list[int]]:
    """`[upper][lower]`: the closeness of every set, that of the set without its lowest GPU plus that GPU's row."""
    count = len(matrix)
    upper = max(0, count - _HALF)
    rows: list[list[int]] = []
    weights = [_subset_sums(row[:_HALF]) for row in matrix]
    inside = [0] * (1 << min(count, _HALF))
    for mask in range(1, len(inside)):
        low = (mask & -mask).bit_length() - 1
        inside[mask] = inside[mask & mask - 1] + weights[low][mask]
    rows.append(inside)
    for high in range(1, 1 << upper):
        gpu = _HALF + (high & -high).bit_length() - 1
        rest = high & high - 1
        within = sum(matrix[gpu][_HALF + i] for i in range(upper) if rest >> i & 1)
        rows.append([sum_ + near + within for sum_, near in zip(rows[rest], weights[gpu], strict=True)])
    return rows


def _bounds(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """`[count][upper]`: the closest that a set can be with this upper half and `count` GPUs of the lower one."""
    columns = len(rows[0]) if rows else 0
    sized = [[mask for mask in range(columns) if mask.bit_count() == count] for count in range(_HALF + 1)]
    return [[max(getter(row), default=0) for row in rows] for getter in map(_getter, sized)]


def _subset_sums(values: Sequence[int]) -> list[int]:
    """For each mask of `values` their sum."""
    sums = [0]
    for value in values:
        sums += [one + value for one in sums]
    return sums
