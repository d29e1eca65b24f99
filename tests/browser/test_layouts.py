"""The comparison of layouts."""

from __future__ import annotations

import pytest

from tests.support.layouts import layout_changes

BEFORE = [["header", 0, 0, 800, 40], ["h2 Held", 20, 60, 300, 22], ["table", 20, 90, 600, 200]]


def changed(at: int, *box: int) -> list[list[object]]:
    return [part if number != at else [part[0], *box] for number, part in enumerate(BEFORE)]


@pytest.mark.parametrize("after", [BEFORE, changed(1, 24, 80, 292, 44), changed(2, 20, 110, 570, 220)])
def test_a_few_pixels_are_no_difference(after: list[list[object]]) -> None:
    assert layout_changes(BEFORE, after) == []


@pytest.mark.parametrize("box", [(60, 60, 300, 22), (20, 160, 300, 22), (20, 60, 200, 22), (20, 60, 300, 90)])
def test_another_place_or_size_is_a_difference(box: tuple[int, ...]) -> None:
    assert layout_changes(BEFORE, changed(1, *box)) == [
        f"h2 Held: left, top, width, height [20, 60, 300, 22], now {list(box)}"
    ]


def test_parts_that_are_missing_or_new_are_named() -> None:
    after = [*BEFORE[:1], ["h2 Busy", 20, 60, 300, 22], BEFORE[2]]
    assert layout_changes(BEFORE, after) == ["- h2 Held", "+ h2 Busy"]
