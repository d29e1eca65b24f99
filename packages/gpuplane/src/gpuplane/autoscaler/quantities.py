"""LabelledCounts of the scheduler as quantities of the API."""

from __future__ import annotations

from kubekit.scheduling.podinfo import Requests


def as_quantities(counted: Requests) -> dict[str, str]:
    """Return amounts as quantities; `cpu` is in thousandths, everything else in its base unit."""
    return {name: _cpu(amount) if name == "cpu" else str(amount) for name, amount in counted.items()}


def _cpu(milli: int) -> str:
    return f"{milli}m" if milli % 1000 else str(milli // 1000)
