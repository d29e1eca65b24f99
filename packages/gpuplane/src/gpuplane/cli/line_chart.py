"""Line charts for the pages of answers, as SVG and HTML: axes with units, a legend, and the same as a table. Pure.

The lines are stretched to the width of the page and the texts are not: a chart is read at 390 px as well as at 1,440.
Lines differ in their dashes besides their colour. A pointer that rests on a chart reads the values at that place.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from gpuplane.cli.html_page import html_table, text_of_page

ChartPoint = tuple[float, float]
_MOST_ROWS: Final = 40  # of the table
_BANDS: Final = 60  # places that a pointer can rest on
_TICKS: Final = 6
_COLOURS: Final = 6
_DASHES: Final = ("none", "9 4", "2 4", "12 4 2 4")


class Axis(msgspec.Struct, frozen=True):
    """An axis: what it counts, its unit as written behind a number, and its range."""

    title: str
    unit: str
    low: float
    high: float

    def part(self, value: float) -> float:
        """Return the place of a value, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return round numbers that lie in the range, about six."""
        step = _round_step((self.high - self.low) / _TICKS)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


class Curve(msgspec.Struct, frozen=True):
    """A line. `points` are ordered by their first number. An `ideal` line is one to compare with, and is drawn thin."""

    name: str
    points: Sequence[ChartPoint]
    ideal: bool = False

    def at(self, x: float) -> float | None:
        """Return the value at a place, None outside of the line."""
        place = bisect_left(self.points, x, key=lambda point: point[0])
        if place == len(self.points) or (place == 0 and self.points[0][0] != x):
            return None
        (x1, y1) = self.points[place]
        if x1 == x:
            return y1
        x0, y0 = self.points[place - 1]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def line_chart(heading: str, x: Axis, y: Axis, curves: Sequence[Curve], about: str = "") -> Iterator[str]:
    """Yield a section of a page with the chart, its legend and its table.

    Args:
        about: a short text behind the heading.
    """
    small = f" <small>{text_of_page(about)}</small>" if about else ""
    names = ", ".join(curve.name for curve in curves)
    yield f"<section>\n<h2>{text_of_page(heading)}{small}</h2>"
    yield f'<p class="axis">{text_of_page(y.title)}</p>'
    yield f'<div class="plot">\n<div class="y" aria-hidden="true">{_labels(y, "bottom")}</div>'
    yield (
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" '
        f'aria-label="{text_of_page(f"{heading}: {y.title} by {x.title}; lines: {names}. The table has the same.")}">'
    )
    yield from (_grid(1000 * x.part(tick), upright=True) for tick in x.ticks())
    yield from (_grid(1000 * (1 - y.part(tick)), upright=False) for tick in y.ticks())
    yield from (_line(number, curve, x, y) for number, curve in enumerate(curves))
    yield from _bands(x, y, curves)
    yield f'</svg>\n<div class="x" aria-hidden="true">{_labels(x, "left")}</div>\n</div>'
    yield f'<p class="axis below">{text_of_page(x.title)}</p>'
    yield from _legend(curves)
    yield "<details><summary>As a table</summary>"
    yield from html_table(heading, [x.title, *(curve.name for curve in curves)], _rows(x, y, curves))
    yield "</details>\n</section>"


def _round_step(wanted: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least as large as `wanted`."""
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(power * times for times in (1, 2, 5, 10) if power * times >= wanted * (1 - 1e-9))


def _labels(axis: Axis, side: str) -> str:
    return "".join(
        f'<span style="{side}:{100 * axis.part(tick):.2f}%">{text_of_page(f"{_number(tick)}{axis.unit}")}</span>'
        for tick in axis.ticks()
    )


def _grid(at: float, *, upright: bool) -> str:
    place = (
        f'x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="1000"' if upright else f'x1="0" x2="1000" y1="{at:.1f}" y2="{at:.1f}"'
    )
    return f'<line class="grid" {place}/>'


def _line(number: int, curve: Curve, x: Axis, y: Axis) -> str:
    inside = [
        (at, value)
        for at, value in ((place, curve.at(place)) for place in _places(curve, x))
        if value is not None and (value >= y.low or curve.ideal)
    ]
    path = " ".join(f"{1000 * x.part(at):.1f},{1000 * (1 - y.part(value)):.1f}" for at, value in inside)
    return f'<polyline {_look(number, curve)} points="{path}"/>'


def _places(curve: Curve, x: Axis) -> list[float]:
    """Return where the line has points, and where it enters the chart."""
    return [x.low, *(at for at, _ in curve.points if x.low < at <= x.high)]


def _look(number: int, curve: Curve) -> str:
    if curve.ideal:
        return 'class="curve ideal"'
    dash = _DASHES[number % len(_DASHES)]
    return f'class="curve" style="stroke:var(--line-{number % _COLOURS});stroke-dasharray:{dash}"'


def _bands(x: Axis, y: Axis, curves: Sequence[Curve]) -> Iterator[str]:
    """Yield areas without a colour, whose titles a browser displays where the pointer rests."""
    wide = 1000 / _BANDS
    for band in range(_BANDS):
        at = x.low + (x.high - x.low) * (band + 0.5) / _BANDS
        read = [f"{curve.name} {_number(value)}{y.unit}" for curve in curves if (value := curve.at(at)) is not None]
        if read:
            title = text_of_page("\n".join((f"{_number(at)}{x.unit}", *read)))
            place = f'x="{band * wide:.2f}" y="0" width="{wide:.2f}" height="1000"'
            yield f'<rect class="band" {place}><title>{title}</title></rect>'


def _legend(curves: Sequence[Curve]) -> Iterator[str]:
    yield '<ul class="legend">'
    for number, curve in enumerate(curves):
        key = f'<svg class="key" aria-hidden="true"><line x1="0" x2="34" y1="5" y2="5" {_look(number, curve)}/></svg>'
        yield f"<li>{key}{text_of_page(curve.name)}</li>"
    yield "</ul>"


def _rows(x: Axis, y: Axis, curves: Sequence[Curve]) -> Iterator[list[str]]:
    """Yield the values where the lines have points; of many points as many as one reads, at equal distances."""
    places = sorted({at for curve in curves if not curve.ideal for at, _ in curve.points if x.low <= at <= x.high})
    every = -(-len(places) // _MOST_ROWS)
    for at in places[::-1][::every][::-1]:
        values = [curve.at(at) for curve in curves]
        yield [f"{_number(at)}{x.unit}", *("-" if value is None else f"{_number(value)}{y.unit}" for value in values)]


def _number(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".")
