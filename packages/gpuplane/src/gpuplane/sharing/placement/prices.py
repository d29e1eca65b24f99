"""Prices a free part of a GPU, by a linear program over the expected requests.

A GPU is cut into patterns of shares, as a mill cuts steel (Gilmore and Gomory, 1961). The program fills the cluster's
GPUs with patterns so that as much as possible of the expected requests is served. Its dual prices say what each kind of
request is worth beyond the space it takes: a rare request that fits where nothing else does is worth most, one that
leaves unusable scraps least. The worth of a free part is the worth of the best pattern that fits into it.

Exact, by the revised simplex method with patterns made on demand (a knapsack for each model); pure Python, since there
are tens of rows. `solve` yields between steps, so that a live scheduler can spread the work.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final

import msgspec

from gpuplane.sharing.placement.steps import finish

UNITS: Final = 100  # of one GPU; sizes are rounded up to them, free parts down
_EPSILON: Final = 1e-9
_MOST_STEPS: Final = 4_000  # far beyond what tens of rows take; prices that are not quite optimal are good as well


class RequestKind(msgspec.Struct, frozen=True):
    """Requests that are one to the prices: the units of a GPU that each takes, and the models that will do."""

    units: int
    models: frozenset[str] = frozenset()  # empty: any

    def fits(self, model: str) -> bool:
        return not self.models or model in self.models


Worth = dict[str, tuple[float, ...]]
"""Model -> the worth of 0, 1, ... UNITS free units of one of its GPUs, in units; never falling."""


def worth(capacity: Mapping[str, int], demand: Mapping[RequestKind, float]) -> Worth:
    """Return the prices for `capacity` (model -> GPUs) and `demand` (kind -> count)."""
    return finish(solve(capacity, demand))


def solve(capacity: Mapping[str, int], demand: Mapping[RequestKind, float]) -> Generator[None, None, Worth]:
    """Compute the prices step by step; the generator's value is the result."""
    models = [model for model, gpus in sorted(capacity.items()) if gpus > 0]
    kinds = [kind for kind, count in demand.items() if count > 0 and 0 < kind.units <= UNITS]
    kinds.sort(key=lambda kind: (-kind.units, sorted(kind.models)))
    rows = len(models) + len(kinds)
    right = [float(capacity[model]) for model in models] + [demand[kind] for kind in kinds]
    inverse = [[float(i == j) for j in range(rows)] for i in range(rows)]
    gain = [0.0] * rows  # of the basis; it begins with the slack of each row
    slack_of = list(range(rows))  # row whose slack stands in the basis there, -1 for a pattern
    at = {kind: len(models) + index for index, kind in enumerate(kinds)}
    duals = [0.0] * rows
    for _ in range(_MOST_STEPS):
        column, value = _enter(models, kinds, at, duals, slack_of)
        if not column:
            break
        _pivot(column, value, inverse, right, gain, slack_of)
        duals = [sum(g * row[j] for g, row in zip(gain, inverse, strict=True) if g) for j in range(rows)]
        yield
    return {model: tuple(round(value, 3) for value in _best(model, kinds, at, duals)[0]) for model in models}


def _enter(
    models: list[str], kinds: list[RequestKind], at: dict[RequestKind, int], duals: list[float], slack_of: list[int]
) -> tuple[dict[int, float], float]:
    """Return the column that gains most, row -> coefficient, with its value; empty when no column gains."""
    best, column, value = _EPSILON * UNITS, dict[int, float](), 0.0
    for row, model in enumerate(models):
        table, taken = _best(model, kinds, at, duals)
        gains = table[UNITS] - duals[row]
        if gains > best:
            best, column, value = gains, {row: 1.0}, 0.0
            left = UNITS
            while left > 0:
                kind = taken[left]
                if kind is not None:
                    column[at[kind]] = column.get(at[kind], 0.0) + 1.0
                    value += kind.units
                left -= kind.units if kind is not None else 1
    for row, dual in enumerate(duals):
        if -dual > best:
            best, column, value = -dual, {row: 1.0}, -1.0
    if value < 0:
        return column, 0.0
    return column, value


def _best(
    model: str, kinds: list[RequestKind], at: dict[RequestKind, int], duals: list[float]
) -> tuple[list[float], list[RequestKind | None]]:
    """Return by free units the worth of the best pattern, and a request of it."""
    worths = [0.0] * (UNITS + 1)
    taken: list[RequestKind | None] = [None] * (UNITS + 1)
    items = [(kind.units, kind.units - duals[at[kind]], kind) for kind in kinds if kind.fits(model)]
    items = [item for item in items if item[1] > _EPSILON]
    for free in range(1, UNITS + 1):
        most, kind = worths[free - 1], None
        for units, value, item in items:
            if units <= free and worths[free - units] + value > most + _EPSILON:
                most, kind = worths[free - units] + value, item
        worths[free] = most
        taken[free] = kind
    return worths, taken


def _pivot(
    column: dict[int, float],
    value: float,
    inverse: list[list[float]],
    right: list[float],
    gain: list[float],
    slack_of: list[int],
) -> None:
    """Replace the row of the basis that runs out first by the column."""
    direction = [sum(row[j] * much for j, much in column.items()) for row in inverse]
    ratios = [(right[i] / step, i) for i, step in enumerate(direction) if step > _EPSILON]
    leaving = min(ratios)[1]
    pivot = direction[leaving]
    line = [x / pivot for x in inverse[leaving]]
    amount = right[leaving] / pivot
    nonzero = [(j, x) for j, x in enumerate(line) if x]
    for i, step in enumerate(direction):
        if i != leaving and step:
            row = inverse[i]
            for j, x in nonzero:
                row[j] -= step * x
            right[i] = max(0.0, right[i] - step * amount)
    inverse[leaving] = line
    right[leaving] = amount
    gain[leaving] = value
    slack_of[leaving] = -1
