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
    def time(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
