"""LabelledCounts and durations by labels, as metrics are made of them."""

from __future__ import annotations

import bisect
from typing import Final

from kubekit.kube.exposition import Metric, MetricFamily, Series, histogram_values, series

SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
DAYS: Final = tuple(86400.0 * part for part in (1 / 24, 0.25, 1.0, 3.0, 7.0, 14.0, 30.0))

_Labels = tuple[tuple[str, str], ...]


class LabelledCounts:
    """A number for each set of labels."""

    def __init__(self) -> None:
        self.found: dict[_Labels, int] = {}

    def add(self, number: int = 1, **labels: str) -> None:
        """Count."""
        key = tuple(labels.items())
        self.found[key] = self.found.get(key, 0) + number

    def family(self, metric: Metric) -> MetricFamily:
        """Return the metric with these values."""
        return MetricFamily(metric, [(series(dict(labels)), number) for labels, number in sorted(self.found.items())])


class Durations:
    """A histogram for each set of labels.

    Args:
        bounds: upper bounds of the buckets in seconds, ascending.
    """

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self._bounds = bounds
        self._found: dict[_Labels, tuple[list[int], float]] = {}

    def observe(self, seconds: float, **labels: str) -> None:
        """Count a duration; one of a clock that went back counts as nothing."""
        key, seconds = tuple(labels.items()), max(0.0, seconds)
        counts, total = self._found.get(key) or ([0] * (len(self._bounds) + 1), 0.0)
        counts[bisect.bisect_left(self._bounds, seconds)] += 1
        self._found[key] = (counts, total + seconds)

    def family(self, metric: Metric) -> MetricFamily:
        """Return the metric with these values."""
        values: list[tuple[Series, float]] = []
        for labels, (counts, total) in sorted(self._found.items()):
            values += histogram_values(dict(labels), self._bounds, counts, total)
        return MetricFamily(metric, values)


def sample_counts(*labels: str) -> LabelledCounts:
    """Return one count with labels, for documents that list the labels of metrics."""
    found = LabelledCounts()
    found.add(0, **dict.fromkeys(labels, ""))
    return found
