"""Work in steps, so that a live scheduler can do it between two pods."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")


def finish(steps: Generator[None, None, Result]) -> Result:
    """Do all steps at once; return the generator's value."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
