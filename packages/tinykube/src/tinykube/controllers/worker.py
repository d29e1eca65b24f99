"""The loop of every controller here: keys that need a look, looked at one after the other.

Level-triggered: a key says where to look, never what happened, so adding one twice costs nothing and a lost reason does
no harm. A key is looked at by one task at a time. Time is that of the running event loop, which tests make virtual.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from tinykube.apiserver.failure import ApiFailure

K = TypeVar("K", bound=Hashable)
FIRST_RETRY_S: Final = 0.005
LAST_RETRY_S: Final = 60.0
_log = logging.getLogger("tinykube.controllers")


class KeyWorker(Generic[K]):
    """Calls `reconcile(key)` for every key added; it may return seconds after which to look again.

    An exception is logged (a Conflict, which only means that another writer was faster, is not) and the key tried again
    with exponential backoff.
    """

    def __init__(self, name: str, reconcile: Callable[[K], Awaitable[float | None]]) -> None:
        self.name = name
        self._reconcile = reconcile
        self._ready: dict[K, None] = {}
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._turn = 0
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, key: K) -> None:
        """Look at this key soon."""
        if key not in self._ready:
            self._ready[key] = None
            self._wake.set()

    def later(self, key: K, seconds: float) -> None:
        """Look at this key after a while; the earlier of two times counts."""
        due = asyncio.get_running_loop().time() + seconds
        if self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        self._turn += 1
        heapq.heappush(self._later, (due, self._turn, key))
        self._wake.set()

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            self._promote()
            if self._ready:
                key = next(iter(self._ready))
                del self._ready[key]
                await self._look(key)
                # Others on this loop (the API server) get their turn between any two keys.
                await asyncio.sleep(0)
                continue
            self._wake.clear()
            try:
                async with asyncio.timeout_at(self._later[0][0] if self._later else None):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _look(self, key: K) -> None:
        try:
            again = await self._reconcile(key)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            if not (isinstance(error, ApiFailure) and error.status == 409):
                # NB: an unexpected error keeps its trace; a refusal by the API server is its own explanation.
                trace = None if isinstance(error, ApiFailure) else error
                _log.warning("%s: %s: %s", self.name, key, error, exc_info=trace)
            self.later(key, min(FIRST_RETRY_S * 2.0 ** (failures - 1), LAST_RETRY_S))
        else:
            self._failures.pop(key, None)
            if again is not None:
                self.later(key, again)

    def _promote(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key)
