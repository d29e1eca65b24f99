"""The names of GPU models as people say them."""

from __future__ import annotations


def short_model(model: str) -> str:
    """`NVIDIA H100 80GB HBM3` as people say it: `H100 80GB HBM3`."""
    return model.removeprefix("NVIDIA ").removeprefix("Tesla ")
