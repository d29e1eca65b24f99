"""Rows of `gpuplane cost`: hours, energy and dollars of each group, and of all together."""

from __future__ import annotations

import pytest

from gpuplane.metering.cost import HourPrice, MeteredUse, cost_rows, total_row

HOUR = 3600.0


def use(*names: str, node: str = "n1", held: float = 1, used: float | None = 0.5, kwh: float | None = 1) -> MeteredUse:
    return MeteredUse(
        names=names,
        node=node,
        model="T4",
        held_seconds=held * HOUR,
        used_seconds=None if used is None else used * HOUR,
        energy_joules=None if kwh is None else kwh * 3.6e6,
    )


def price(node: str, model: str) -> HourPrice | None:
    return {"n1": HourPrice(2.0, "list"), "n2": HourPrice(10.0, "pool")}.get(node)


def test_groups_add_up_and_the_dearest_is_first() -> None:
    uses = [use("ml"), use("ml", node="n2"), use("web", held=2), use(held=4, used=0)]
    ml, web, rest = cost_rows(uses, price)
    assert (ml.name, ml.held_hours, ml.used_hours, ml.idle_hours, ml.energy_kwh, ml.dollars) == ("ml", 2, 1, 1, 2, 12)
    assert (web.name, web.dollars, web.idle_hours) == ("web", 4, 1.5)
    assert (ml.prices_from, web.prices_from) == (("list", "pool"), ("list",))
    assert (rest.name, rest.held_hours, rest.dollars) == ("unbooked", 4, 8)
    total = total_row(uses, price)
    assert total.held_hours == ml.held_hours + web.held_hours + rest.held_hours
    assert total.dollars == 12 + 4 + 8


def test_hours_without_a_price_are_counted_and_use_that_nothing_measures_is_unknown() -> None:
    [row] = cost_rows([use("ml", node="old", held=3, used=None, kwh=None)], price)
    assert (row.dollars, row.unpriced_hours, row.prices_from) == (None, 3, ())
    assert (row.used_hours, row.idle_hours, row.energy_kwh) == (None, None, None)


def test_a_share_that_uses_spare_time_is_not_less_than_idle() -> None:
    [row] = cost_rows([use("ml", held=1, used=2), use("ml", node="n2", held=1, used=0)], price)
    assert row.idle_hours == pytest.approx(1)
