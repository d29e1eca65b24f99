"""Sums of the meter over a time, as people ask for them: by namespace, owner, label, pod or GPU, with dollars. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

UNBOOKED = "unbooked"


class MeteredUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of the GPUs of one model on one node by a group; None where nothing measures it.

    `names` are the values that the group goes by, empty for what no pod has.
    """

    names: tuple[str, ...]
    node: str = ""
    model: str = ""
    held_seconds: float = 0.0
    used_seconds: float | None = None
    energy_joules: float | None = None


class CostRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One line of the answer. Hours are GPU hours.

    `idle_hours` is held and not used; unknown where the use of a part is. `dollars` is None when no part has a price,
    and `unpriced_hours` are the hours held on GPUs without one. `prices_from` names where the prices come from.
    """

    name: str
    held_hours: float
    used_hours: float | None
    idle_hours: float | None
    energy_kwh: float | None
    dollars: float | None
    unpriced_hours: float = 0.0
    prices_from: tuple[str, ...] = ()


class HourPrice(msgspec.Struct, frozen=True):
    """Dollars of a GPU hour, and where they come from."""

    dollars: float
    source: str


Price = Callable[[str, str], HourPrice | None]
"""The price of a GPU hour by node and model; None for an unknown price."""


def cost_rows(uses: Iterable[MeteredUse], price: Price) -> tuple[CostRow, ...]:
    """Return a row for each group, the dearest first; of what no pod has last."""
    groups: dict[str, list[MeteredUse]] = {}
    for use in uses:
        groups.setdefault("/".join(filter(None, use.names)) or UNBOOKED, []).append(use)
    rows = [_row(name, group, price) for name, group in groups.items()]
    return tuple(sorted(rows, key=lambda row: (row.name == UNBOOKED, -(row.dollars or 0.0), -row.held_hours, row.name)))


def total_row(uses: Iterable[MeteredUse], price: Price) -> CostRow:
    """Return the sum of all."""
    return _row("total", list(uses), price)


def _row(name: str, group: list[MeteredUse], price: Price) -> CostRow:
    dollars, unpriced, sources = 0.0, 0.0, set[str]()
    for use in group:
        rate = price(use.node, use.model)
        if rate is None:
            unpriced += use.held_seconds / 3600
        else:
            sources.add(rate.source)
            dollars += rate.dollars * use.held_seconds / 3600
    measured = all(use.used_seconds is not None or not use.held_seconds for use in group)
    idle = sum(max(0.0, use.held_seconds - (use.used_seconds or 0.0)) for use in group)
    return CostRow(
        name=name,
        held_hours=sum(use.held_seconds for use in group) / 3600,
        used_hours=sum(use.used_seconds or 0.0 for use in group) / 3600 if measured else None,
        idle_hours=idle / 3600 if measured else None,
        energy_kwh=_sum(use.energy_joules for use in group),
        dollars=dollars if sources else None,
        unpriced_hours=unpriced,
        prices_from=tuple(sorted(sources)),
    )


def _sum(joules: Iterable[float | None]) -> float | None:
    known = [one for one in joules if one is not None]
    return sum(known) / 3.6e6 if known else None
