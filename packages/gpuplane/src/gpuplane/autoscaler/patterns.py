"""Patterns: how many pods of each kind one node of an option holds. The fast model behind the linear program.

It knows CPU, memory and other counted resources, and the GPUs of a node with the shares on each. It proposes; what it
proposes is placed again pod by pod by `gpuplane.autoscaler.claims`, with the scheduler's own code. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from gpuplane.autoscaler.asks import PodAsk
from gpuplane.autoscaler.options import NodeOption
from gpuplane.sharing.placement.fit import usable_gpus

WHOLE: Final = 100  # core of one GPU

Pattern = dict[int, int]
"""Number of a kind -> its pods on one node."""


class PatternKind(msgspec.Struct, frozen=True):
    """Pods of one kind. A share takes `core` percent of one GPU, and `memory_mib` of it (0: the same part)."""

    requests: tuple[tuple[str, int], ...]
    gpus: int = 0
    core: int = 0
    memory_mib: int = 0


def kind_of_ask(ask: PodAsk) -> PatternKind | None:
    """Return the kind for patterns; None for pods that patterns cannot express."""
    asks = ask.request.asks
    if not ask.free or ask.trouble or len(asks) > 1 or any(one.init for one in asks):
        return None
    requests = tuple((name, amount) for name, amount in ask.info.requests.items() if amount)
    one = asks[0] if asks else None
    if one is None or one.gpus:
        return PatternKind(requests, one.gpus if one else 0)
    return PatternKind(requests, 0, one.core, one.memory_mib)


class PatternMachine:
    """An option as patterns see it.

    Args:
        kinds: number -> kind, of those that the option admits.
    """

    def __init__(self, option: NodeOption, kinds: Mapping[int, tuple[PatternKind, PodAsk]]) -> None:
        self.option = option
        self.price = option.price
        self._free = [amount for _, amount in sorted(option.free.items())]
        place = {name: at for at, name in enumerate(sorted(option.free))}
        self._pods = place["pods"]
        state = option.gpus if option.places_shares else None
        self._memory = [gpu.memory_mib for gpu in state.gpus] if state is not None else []
        self._placed = state is not None
        self._needs: dict[int, list[tuple[int, int]]] = {}
        self._shares: dict[int, tuple[int, int, int]] = {}  # whole GPUs, core, MiB
        self._sizes: dict[int, tuple[float, ...]] = {}
        for number, (kind, ask) in kinds.items():
            if any(name not in place for name, _ in kind.requests):
                continue
            if state is not None and ask.request.selects and len(usable_gpus(state, ask.request)) < len(state.gpus):
                continue  # it selects some of the GPUs only; claims place it
            needs = [*((place[name], amount) for name, amount in kind.requests), (self._pods, 1)]
            self._needs[number] = needs
            memory = kind.memory_mib or (self._memory[0] * kind.core // WHOLE if self._memory else 0)
            self._shares[number] = (kind.gpus, kind.core, memory)
            if self.most(number, 1):
                self._sizes[number] = self._measure(needs, kind)
            else:
                del self._needs[number], self._shares[number]

    def _measure(self, needs: Sequence[tuple[int, int]], kind: PatternKind) -> tuple[float, ...]:
        """Return how much of the node a pod takes, by several measures: each finds other good patterns."""
        parts = [amount / self._free[at] for at, amount in needs]
        if self._memory:
            parts.append((kind.gpus + kind.core / WHOLE) / len(self._memory))
        total, largest = sum(parts), max(parts)
        return total, largest, largest + total / len(parts)

    @property
    def kinds(self) -> Iterator[int]:
        """Return the numbers of the kinds of which the node holds a pod."""
        return iter(self._sizes)

    def most(self, number: int, count: int) -> int:
        """Return how many pods of one kind alone the node holds, up to `count`."""
        return self._fill([number], {number: count}).get(number, 0)

    def orders(self, values: Mapping[int, float]) -> list[list[int]]:
        """Return the kinds by their value for the room that they take, the best first: an order for each measure.

        Args:
            values: of a pod of each kind, in dollars an hour.
        """
        worth = [number for number in self._sizes if values.get(number, 0) > 0]
        return [self._order(worth, values, measure) for measure in range(3)]

    def _order(self, worth: Sequence[int], values: Mapping[int, float], measure: int) -> list[int]:
        return sorted(worth, key=lambda number: -values[number] / self._sizes[number][measure])

    def best(
        self, values: Mapping[int, float], left: Mapping[int, int], orders: Sequence[Sequence[int]]
    ) -> tuple[Pattern, float]:
        """Return a pattern of high value of the pods that are left, with its value; `orders` are those of `values`."""
        best: Pattern = {}
        most = 0.0
        for order in orders:
            pattern = self._fill(order, left)
            value = sum(values[number] * count for number, count in pattern.items())
            if value > most:
                best, most = pattern, value
        return best, most

    def _fill(self, order: Sequence[int], left: Mapping[int, int]) -> Pattern:
        free = list(self._free)
        core = [WHOLE] * len(self._memory)
        memory = list(self._memory)
        pattern: Pattern = {}
        for number in order:
            count = left.get(number, 0)
            if not count:
                continue
            needs = self._needs[number]
            for at, amount in needs:
                room = free[at] // amount
                if room < count:
                    count = room
            if count <= 0:
                continue
            if self._placed:
                count = self._put(self._shares[number], count, core, memory)
            if count > 0:
                pattern[number] = count
                for at, amount in needs:
                    free[at] -= amount * count
                if not free[self._pods]:
                    break
        return pattern

    @staticmethod
    def _put(share: tuple[int, int, int], count: int, core: list[int], memory: list[int]) -> int:
        """Put shares on the fullest GPUs that hold them; return how many found room."""
        gpus, size, mib = share
        if not gpus and not size:
            return count
        for done in range(count):
            if gpus:
                whole = [at for at, left in enumerate(core) if left == WHOLE][:gpus]
                if len(whole) < gpus:
                    return done
                for at in whole:
                    core[at] = memory[at] = 0
                continue
            chosen, least = -1, WHOLE + 1
            for at, left in enumerate(core):
                if size <= left < least and mib <= memory[at]:
                    chosen, least = at, left
            if chosen < 0:
                return done
            core[chosen] -= size
            memory[chosen] -= mib
        return count
