"""Time as a kubelet takes it, so that tests can give it another."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class KubeletClock(Protocol):
    def time(self) -> float:
        """Seconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class RealClock:
    """The wall clock as it was at the start, and the time since then.

    As in Go, a wall clock that is set does not change how long a backoff or a limit of calls lasts.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def time(self) -> float:
        return self._offset + time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
