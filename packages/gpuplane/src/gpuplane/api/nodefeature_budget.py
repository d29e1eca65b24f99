"""Limits the work of one expansion of a NodeFeatureRule's template: the master evaluates all rules in one process.

Two nested ranges of ten lines of YAML count to four thousand millions, and a variable that is joined to itself doubles
its memory with each turn. Steps are counted instead of seconds, so that the same features always make the same labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

MOST_STEPS: Final = 100_000  # turns of ranges, calls and texts, and one more for each `_STEP` of them
MOST_VALUE: Final = 4 << 20  # bytes of the arguments of a call, and of its result
MOST_OUTPUT: Final = 1 << 20  # characters of the whole text
_STEP: Final = 4096  # bytes
_LARGEST: Final = 1 << 63  # Go's numbers have 64 bits
_ENTRY: Final = 16  # bytes that an entry of a list or map counts besides its content


class TemplateBudget:
    """The steps and the text that are left for one expansion."""

    def __init__(self) -> None:
        self._steps = MOST_STEPS
        self._output = MOST_OUTPUT

    def spend(self, values: Iterable[Any] = (), *, steps: int = 1) -> None:
        """Count the steps and the size of the values. Raises ValueError when the budget or a value is too large."""
        self._steps -= steps + size_of(values) // _STEP
        if self._steps < 0:
            raise ValueError(f"takes more than {MOST_STEPS} steps")

    def write(self, text: str) -> None:
        """Count a text of the output. Raises ValueError."""
        self._output -= len(text)
        if self._output < 0:
            raise ValueError("makes too much text")
        self.spend(steps=1 + len(text) // _STEP)


def size_of(values: Iterable[Any]) -> int:
    """Return the size of the values with all that they contain, in bytes. Raises ValueError above `MOST_VALUE`."""
    size = 0
    rest = list(values)
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise ValueError("makes a number of more than 64 bits")
        elif isinstance(value, (list, tuple)):
            size += _ENTRY * len(value)
            rest += value if size <= MOST_VALUE else ()
        elif isinstance(value, Mapping):
            size += 2 * _ENTRY * len(value)
            rest += (*value.keys(), *value.values()) if size <= MOST_VALUE else ()
        if size > MOST_VALUE:
            raise ValueError("makes too much text")
    return size
