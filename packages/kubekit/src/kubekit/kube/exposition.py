"""Metrics as the text that Prometheus scrapes: families with HELP and TYPE, escaped labels, formatted values.

Source: Prometheus, "Exposition formats", text format 0.0.4. Pure functions: a component turns its facts into families
when it is scraped, and no registry holds a second copy of them.

Invariants: a family stands once in a text, and so do its HELP and TYPE; whatever a label's value, the line parses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple, NewType, cast

import msgspec

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Series = NewType("Series", str)
"""Suffix and labels, which follow the family's name in a line. A caller may write them once for many families,
since escaping labels takes most of the time of a scrape."""


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(msgspec.Struct, frozen=True):
    """A metric as it is documented.

    Args:
        decimals: digits after the point of a float. None writes the shortest text that a parser reads back equal.

    Raises ValueError for a name that Prometheus does not accept.
    """

    name: str
    type: MetricType
    help: str
    decimals: int | None = None

    def __post_init__(self) -> None:
        if not (self.name.replace(":", "_").isidentifier() and self.name.isascii()):
            raise ValueError(f"{self.name!r} is not the name of a metric")


class MetricFamily(NamedTuple):
    """A metric with its values.

    Args:
        shared: a value that several series have. It is formatted once, which halves the time of a large family.
        at: the time of the values in milliseconds since the epoch; None for that of the scrape.
    """

    metric: Metric
    values: Sequence[tuple[Series, float]] = ()
    shared: Sequence[tuple[Sequence[Series], float]] = ()
    at: int | None = None


class MetricSample(NamedTuple):
    """One line of a text: `at` is its time in milliseconds since the epoch, None where it has none."""

    name: str
    labels: dict[str, str]
    value: float
    at: int | None


def series(labels: Mapping[str, str], suffix: str = "") -> Series:
    """Escape labels for use in families; `suffix` extends the family's name. Raises ValueError for an invalid name."""
    return extend(Series(suffix), labels)


def extend(which: Series, labels: Mapping[str, str]) -> Series:
    """Add labels that the series does not have yet. Raises ValueError for an invalid name."""
    return extend_all((which,), labels)[0]


def extend_all(several: Sequence[Series], labels: Mapping[str, str]) -> list[Series]:
    """Add the same labels to several series. Raises ValueError for an invalid name."""
    if not labels:
        return [*several]
    text = ",".join([f'{_label(name)}="{_escape(value)}"' for name, value in labels.items()])
    lines = [f"{which[:-1]},{text}}}" if which[-1:] == "}" else f"{which}{{{text}}}" for which in several]
    return cast(list[Series], lines)


def gauge(name: str, about: str, value: float) -> MetricFamily:
    """Return a gauge without labels."""
    return MetricFamily(Metric(name, MetricType.GAUGE, about), [(Series(""), value)])


def counter(name: str, about: str, value: float) -> MetricFamily:
    """Return a counter without labels."""
    return MetricFamily(Metric(name, MetricType.COUNTER, about), [(Series(""), value)])


def histogram_values(
    labels: Mapping[str, str], bounds: Sequence[float], counts: Sequence[int], total: float
) -> Iterator[tuple[Series, float]]:
    """Yield the lines of one histogram.

    Args:
        bounds: upper bounds of the buckets, ascending, without infinity.
        counts: observations in each bucket alone, the last of them above all bounds.
        total: sum of all observations.
    """
    counted = 0
    for bound, counted in zip((*bounds, math.inf), accumulate(counts), strict=True):
        # NB: a bound is part of the series' identity. 1.0 keeps its point, as Prometheus 3 itself stores it.
        yield series({**labels, "le": "+Inf" if bound == math.inf else str(float(bound))}, "_bucket"), counted
    yield series(labels, "_sum"), total
    yield series(labels, "_count"), counted


def exposition(families: Iterable[MetricFamily]) -> bytes:
    """Return the body of a scrape. Raises ValueError when a family comes twice."""
    lines: list[str] = []
    names: set[str] = set()
    for metric, values, shared, at in families:
        name, decimals = metric.name, metric.decimals
        if name in names:
            raise ValueError(f"metric {name} comes twice")
        names.add(name)
        about = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"# HELP {name} {about}\n# TYPE {name} {metric.type.value}\n")
        # NB: most values are whole; a call for each would take as long as all else here.
        stop = "\n" if at is None else f" {at}\n"
        lines += [
            f"{name}{which} {value if type(value) is int else _format(value, decimals)}{stop}"
            for which, value in values
        ]
        for several, value in shared:
            if several:  # joined, not formatted line by line: that takes half of the time
                end = f" {_format(value, decimals)}{stop}"
                lines.append(f"{name}{f'{end}{name}'.join(several)}{end}")
    return "".join(lines).encode()


@lru_cache(1000)  # a tenant may name labels
def _label(name: str) -> str:
    if not (name.isidentifier() and name.isascii()):
        raise ValueError(f"{name!r} is not the name of a label")
    return name


_SAMPLE: Final = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)(?: (-?[0-9]+))?")
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")


def metric_lines(text: str, names: Container[str]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield name, labels and value of the lines with labels whose metric is in `names`, from a text of `exposition`."""
    for name, labels, value, _ in metric_samples(text, names):
        if labels:
            yield name, labels, value


def metric_samples(text: str, names: Container[str]) -> Iterator[MetricSample]:
    """Yield the lines whose metric is in `names`, of any exporter. Raises ValueError for an invalid value."""
    for line in text.splitlines():
        # Most lines are of other metrics, and are not parsed.
        if line.partition("{")[0].partition(" ")[0] in names and (found := _SAMPLE.fullmatch(line)) is not None:
            labels = {name: _ESCAPED.sub(_plain_escape, value) for name, value in _LABEL.findall(found[2] or "")}
            yield MetricSample(found[1], labels, float(found[3]), int(found[4]) if found[4] else None)


def _plain_escape(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _format(value: float, decimals: int | None) -> str:
    """Format a value as Go's ParseFloat reads it."""
    if isinstance(value, int):
        return str(int(value))  # a bool
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return repr(value).removesuffix(".0") if decimals is None else f"{value:.{decimals}f}"
