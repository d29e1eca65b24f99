"""The time that the API server writes into objects: RFC 3339 in UTC, whole seconds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime


class ServerTime:
    """Reads `clock` (seconds since 1970). The text of a second is made once: thousands of writes fall into one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._second = -1
        self._text = ""

    def now(self) -> str:
        return self.later(0)

    def later(self, seconds: int) -> str:
        """The time in some seconds."""
        second = int(self._clock()) + seconds
        if second != self._second:
            self._second = second
            self._text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self._text
