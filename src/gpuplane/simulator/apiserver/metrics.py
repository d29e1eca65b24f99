"""How many requests came, of which verb, for which resource, by whom: `/metrics` of the embedded API server.

`apiserver_request_total` is the real server's name; the label `user` is ours, so that a benchmark can say who writes.
"""

from __future__ import annotations

from collections import Counter

from gpuplane.simulator.apiserver.hooks import Attributes


class Requests:
    """Counts authorized requests."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str, str]] = Counter()

    def count(self, user: str, attributes: Attributes) -> None:
        self._counts[attributes.verb, attributes.resource, attributes.subresource, user] += 1

    def exposition(self) -> bytes:
        """Prometheus' text format."""
        name = "apiserver_request_total"
        lines = [f"# HELP {name} Requests by verb, resource, subresource and user.", f"# TYPE {name} counter"]
        for (verb, resource, subresource, user), number in sorted(self._counts.items()):
            labels = f'verb="{verb}",resource="{resource}",subresource="{subresource}",user="{user}"'
            lines.append(f"{name}{{{labels}}} {number}")
        return ("\n".join(lines) + "\n").encode()
