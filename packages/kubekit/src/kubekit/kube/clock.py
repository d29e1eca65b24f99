"""Time as queues, elections and recorders see it, so that their tests run in virtual time."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """`now` is monotonic, in seconds; `wall` is UTC as RFC 3339 with microseconds."""

    def now(self) -> float: ...

    def wall(self) -> str: ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The real time, of the running event loop."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> str:
        return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class TokenBucket:
    """At most `burst` at once and `rate` a second in the long run.

    `take` answers whether there is a token now; `reserve` always takes one and answers how many seconds to wait for it.
    """

    def __init__(self, rate: float, burst: float, now: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._now = now
        self._tokens = burst
        self._at = now()

    def _refill(self) -> None:
        now = self._now()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now

    def take(self) -> bool:
        self._refill()
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def reserve(self) -> float:
        self._refill()
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)
