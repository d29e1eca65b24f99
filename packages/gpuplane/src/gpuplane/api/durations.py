"""Durations as Go's programs write them: 1m30s."""

from __future__ import annotations

import re
from typing import Any, Final

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def duration(text: Any) -> float | None:
    """Return the seconds of a Go duration (1m30s), None for an invalid one."""
    if isinstance(text, bool) or not _DURATION.fullmatch(str(text)):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(str(text)))
