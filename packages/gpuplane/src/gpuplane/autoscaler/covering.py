"""Nodes that hold all pods at the least price: a linear program over patterns, then whole nodes.

min sum(price x nodes), so that for each kind of pods the patterns of the nodes hold all of them. Patterns are generated
where the program's dual prices say that a node would pay (Gilmore and Gomory, 1961), by a greedy knapsack, so that the
program's value is a good figure and no proven bound. The fractional answer is rounded, down and to the nearest, and the
rest is bought node by node: the pattern with the highest value for its price, valued by the duals. The program learns
the patterns of these answers, and the next turn begins. Pure; bounded by steps, not by time, so that the same question
always has the same answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gpuplane.autoscaler.patterns import Pattern, PatternMachine

_EPSILON: Final = 1e-9
_MOST_KINDS: Final = 160  # rows of the program; with more the duals are those of single kinds
_MOST_ROUNDS: Final = 8  # of pricing, in each turn
_TURNS: Final = 5
_WHOLE_GREEDY_TURNS: Final = 2  # turns in which the answer is also built without the program's fractions
_COLUMNS_A_ROUND: Final = 12
_MANY_MACHINES: Final = 100  # from which only those are looked at that are among the cheapest for some kind alone
_CHEAPEST_FOR_A_KIND: Final = 6

_HALF: Final = 0.5

Purchase = tuple[PatternMachine, Pattern, int]
"""A machine, the pods on each, and the number of such machines."""

SinglePattern = tuple[float, int, PatternMachine]
"""The cheapest way to hold one kind alone: (price of a pod, pods on a node, machine)."""


class _Rounding(msgspec.Struct, frozen=True):
    """`keep` is the part of the program's nodes that is bought; fractions from 1 - `up` on are whole nodes."""

    keep: float
    up: float = 1e-6

    def order(self, amount: float) -> float:
        """Return by what nodes come first: the nearest to a whole one, or the most."""
        return amount % 1 if self.up >= _HALF else amount


_GREEDY: Final = _Rounding(0.0)
_ROUNDINGS: Final = (_GREEDY, _Rounding(1.0), _Rounding(1.0, _HALF))


def cover(machines: Sequence[PatternMachine], demand: Mapping[int, int]) -> list[Purchase]:
    """Return nodes that hold all pods of `demand` (kind -> pods) of which some machine holds one."""
    machines, single = _promising(machines, demand)
    demand = {number: count for number, count in demand.items() if number in single and count > 0}
    if not demand:
        return []
    program = _Program(demand, single)
    best: list[Purchase] = []
    if len(demand) > _MOST_KINDS:
        return _rounded(machines, demand, program, _GREEDY)
    for turn in range(_TURNS):
        program.solve(machines)
        for rounding in _ROUNDINGS[0 if turn < _WHOLE_GREEDY_TURNS else 1 :]:
            answer = _rounded(machines, demand, program, rounding)
            if not best or total_price(answer) < total_price(best) - _EPSILON:
                best = answer
            # The patterns of a whole answer fit each other, so the program learns more from them than from prices.
            program.learn(answer)
    return best


def total_price(purchases: Sequence[Purchase]) -> float:
    """Return the dollars an hour of purchases."""
    return sum(machine.price * count for machine, _, count in purchases)


def _promising(
    machines: Sequence[PatternMachine], demand: Mapping[int, int]
) -> tuple[list[PatternMachine], dict[int, SinglePattern]]:
    """Return the machines to look at, and the cheapest way to hold each kind alone.

    Of many machines those are left that are among the cheapest for some kind alone: others would cost time and hardly
    ever pay.
    """
    ways: dict[int, list[tuple[float, int, int]]] = {}
    for at, machine in enumerate(machines):
        for number in machine.kinds:
            count = machine.most(number, demand.get(number, 0))
            if count:
                ways.setdefault(number, []).append((machine.price / count, at, count))
    single = {number: _as_single(machines, min(found)) for number, found in ways.items()}
    if len(machines) <= _MANY_MACHINES:
        return list(machines), single
    kept = {at for found in ways.values() for _, at, _ in heapq.nsmallest(_CHEAPEST_FOR_A_KIND, found)}
    return [machines[at] for at in sorted(kept)], single


def _as_single(machines: Sequence[PatternMachine], way: tuple[float, int, int]) -> SinglePattern:
    price, at, count = way
    return price, count, machines[at]


class _Program:
    """The linear program, by the revised simplex method. It begins with the patterns of single kinds."""

    def __init__(self, demand: Mapping[int, int], single: Mapping[int, SinglePattern]) -> None:
        self.numbers = sorted(demand)
        self._row = {number: row for row, number in enumerate(self.numbers)}
        self._demand = demand
        size = range(len(self.numbers))
        counts = [single[number][1] for number in self.numbers]
        self._inverse = [[1.0 / counts[i] if i == j else 0.0 for j in size] for i in size]
        self._amounts = [demand[number] / count for number, count in zip(self.numbers, counts, strict=True)]
        self._basis: list[tuple[PatternMachine, Pattern] | None] = [
            (single[number][2], {number: count}) for number, count in zip(self.numbers, counts, strict=True)
        ]
        self.duals = [single[number][0] for number in self.numbers]

    def values(self) -> dict[int, float]:
        """Return what a pod of each kind is worth, in dollars an hour."""
        return {number: max(0.0, dual) for number, dual in zip(self.numbers, self.duals, strict=True)}

    def solve(self, machines: Sequence[PatternMachine]) -> None:
        for _ in range(_MOST_ROUNDS):
            values = self.values()
            found = []
            for machine in machines:
                pattern, value = machine.best(values, self._demand, machine.orders(values))
                if value > machine.price * (1 + 1e-6):
                    found.append((value / machine.price, machine, pattern))
            if not found and not any(dual < -_EPSILON for dual in self.duals):
                return
            found.sort(key=lambda one: -one[0])
            for _, machine, pattern in found[:_COLUMNS_A_ROUND]:
                self._enter(pattern, machine.price, (machine, pattern))
            for row, dual in enumerate(self.duals):
                if dual < -_EPSILON:
                    self._enter({self.numbers[row]: -1}, 0.0, None)

    def learn(self, answer: Sequence[Purchase]) -> None:
        """Offer the program the patterns of an answer."""
        for machine, pattern, _ in answer:
            self._enter(pattern, machine.price, (machine, pattern))

    def _enter(self, pattern: Mapping[int, int], price: float, column: tuple[PatternMachine, Pattern] | None) -> None:
        """Take a column into the basis if it still pays."""
        entries = [(self._row[number], count) for number, count in pattern.items()]
        reduced = price - sum(self.duals[row] * count for row, count in entries)
        if reduced >= -_EPSILON:
            return
        direction = [sum(line[row] * count for row, count in entries) for line in self._inverse]
        ratios = [(self._amounts[i] / step, i) for i, step in enumerate(direction) if step > _EPSILON]
        if not ratios:
            return
        amount, leaving = min(ratios)
        pivot = direction[leaving]
        line = [value / pivot for value in self._inverse[leaving]]
        nonzero = [(j, value) for j, value in enumerate(line) if value]
        for i, step in enumerate(direction):
            if i != leaving and step:
                row = self._inverse[i]
                for j, value in nonzero:
                    row[j] -= step * value
                self._amounts[i] = max(0.0, self._amounts[i] - step * amount)
        self._inverse[leaving], self._amounts[leaving], self._basis[leaving] = line, amount, column
        for j, value in nonzero:
            self.duals[j] += reduced * value

    def columns(self) -> list[tuple[float, PatternMachine, Pattern]]:
        """Return the nodes of the answer, in fractions of nodes."""
        parts = zip(self._amounts, self._basis, strict=True)
        return [(amount, *column) for amount, column in parts if column is not None and amount > _EPSILON]


def _rounded(
    machines: Sequence[PatternMachine], demand: Mapping[int, int], program: _Program, rounding: _Rounding
) -> list[Purchase]:
    """Return whole nodes: the program's as `rounding` says, then greedily for the pods that are left."""
    left = dict(demand)
    bought: list[Purchase] = []
    for amount, machine, pattern in sorted(program.columns(), key=lambda column: -rounding.order(column[0])):
        whole = int(amount * rounding.keep + rounding.up)
        count = min(whole, *(left[number] // each for number, each in pattern.items()))
        if count > 0:
            _take(left, pattern, count)
            bought.append((machine, pattern, count))
    # Pods that are worth nothing must be held all the same.
    values = {number: max(value, 1e-6) for number, value in program.values().items()}
    orders = [machine.orders(values) for machine in machines]
    patterns = [machine.best(values, left, each) for machine, each in zip(machines, orders, strict=True)]
    # A machine's value only falls while pods are taken, so one is looked at again when it comes to the top.
    heap = [(-value / machines[at].price, at) for at, (_, value) in enumerate(patterns) if value]
    heapq.heapify(heap)
    while heap:
        _, at = heapq.heappop(heap)
        machine, (pattern, value) = machines[at], patterns[at]
        if any(left[number] < each for number, each in pattern.items()):
            pattern, value = patterns[at] = machine.best(values, left, orders[at])
        else:
            count = min(left[number] // each for number, each in pattern.items())
            _take(left, pattern, count)
            bought.append((machine, pattern, count))
        if value:
            heapq.heappush(heap, (-value / machine.price, at))
    return bought


def _take(left: dict[int, int], pattern: Pattern, count: int) -> None:
    for number, each in pattern.items():
        left[number] -= each * count
