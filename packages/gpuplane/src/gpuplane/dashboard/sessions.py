"""Sessions of browsers with the cluster's dashboard: the token that a user pasted, found by a random number.

The browser has the number alone, in a cookie that no script reads; the token stays in this process's memory. A restart
ends all sessions.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

MOST_SESSIONS: Final = 1000
MOST_OF_USER: Final = 20
SESSION_SECONDS: Final = 12 * 3600.0
COOKIE: Final = "__Host-gpuplane"  # browsers take it from this host alone, by HTTPS, for all paths


class Sessions:
    """Sessions that end after a while; of too many the oldest one ends, at first of those of the same user."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._open: dict[str, tuple[float, str, str]] = {}

    def open(self, token: str, user: str) -> str:
        """Return the number of a new session of a user."""
        number = secrets.token_urlsafe(32)
        own = [one for one, (_, _, name) in self._open.items() if name == user]
        for one in own[: max(0, len(own) - MOST_OF_USER + 1)]:
            del self._open[one]
        self._open[number] = self._monotonic(), token, user
        while len(self._open) > MOST_SESSIONS:
            del self._open[next(iter(self._open))]
        return number

    def token(self, number: str) -> str:
        """Return the token of a session; empty for one that has ended."""
        began, token, _ = self._open.get(number, (float("-inf"), "", ""))
        if self._monotonic() - began < SESSION_SECONDS:
            return token
        self._open.pop(number, None)
        return ""

    def close(self, number: str) -> None:
        """End a session."""
        self._open.pop(number, None)
