"""Time that passes only when told to."""

from __future__ import annotations

import asyncio
import datetime
import heapq
from collections.abc import Callable


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """Time that passes only in `advance` and `jump`; timers fire in order, sleepers wake in between."""

    def __init__(self, seconds: float = 1000.0) -> None:
        self.seconds = seconds
        self._timers: list[tuple[float, int, _Timer]] = []
        self._count = 0

    def now(self) -> float:
        return self.seconds

    time = now  # the kubelet's name for it

    def wall(self) -> str:
        return datetime.datetime.fromtimestamp(self.seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        self._count += 1
        heapq.heappush(self._timers, (self.seconds + seconds, self._count, timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.Event()
        timer = self.call_later(seconds, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()

    def timers(self) -> int:
        """Return how many timers and sleepers wait."""
        return sum(timer.callback is not None for _, _, timer in self._timers)

    def jump(self, seconds: float) -> None:
        """Fires what is due, without running the event loop."""
        end = self.seconds + seconds
        while self._timers and self._timers[0][0] <= end:
            self.seconds, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
        self.seconds = end

    async def advance(self, seconds: float) -> None:
        """Fires what is due, letting tasks run (and plan more) after each."""
        end = self.seconds + seconds
        await settle()
        while self._timers and self._timers[0][0] <= end:
            self.seconds, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
                await _idle()
        self.seconds = end
        await settle()


TURNS = 20  # of the event loop, in which tasks that only wait for each other come to rest


async def settle() -> None:
    """Lets every task run until it waits for something outside this process's memory."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def _idle() -> None:
    """As `settle`, but it ends as soon as no callback is ready: most timers wake one task, which sleeps again."""
    # NB: asyncio has no public test for ready callbacks; without the attribute all turns are taken.
    ready = getattr(asyncio.get_running_loop(), "_ready", None)
    for _ in range(TURNS):
        await asyncio.sleep(0)
        if ready is not None and not ready:
            return
