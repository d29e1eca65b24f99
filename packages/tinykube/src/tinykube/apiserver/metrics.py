"""Counts requests by verb, resource and user: `/metrics` of the embedded API server.

`apiserver_request_total` is the real server's name; the label `user` is ours, so that a benchmark can say who writes.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from kubekit.kube.exposition import Metric, MetricFamily, MetricType, series
from tinykube.apiserver.hooks import Attributes

REQUESTS: Final = Metric(
    "apiserver_request_total", MetricType.COUNTER, "Requests by verb, resource, subresource and user."
)
_LABELS: Final = ("verb", "resource", "subresource", "user")


class Requests:
    """Counts authorized requests."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str, str]] = Counter()

    def count(self, user: str, attributes: Attributes) -> None:
        self._counts[attributes.verb, attributes.resource, attributes.subresource, user] += 1

    def family(self) -> MetricFamily:
        """Return the counts as a metric."""
        counts = sorted(self._counts.items())
        return MetricFamily(
            REQUESTS, [(series(dict(zip(_LABELS, key, strict=True))), number) for key, number in counts]
        )
