"""A queue of keys for level-triggered controllers.

Invariants (hypothesis holds them in packages/kubekit/tests/kube/test_queue.py):

- A key waits at most once; adding it again while it waits changes nothing.
- A key is handed to one worker at a time; added while being worked on, it comes again after `done`, exactly once.
- No added key is lost.
- A key that fails waits 5 ms, 10 ms, 20 ms ... up to `cap`; one token bucket over all keys bounds the retries of a
  whole cluster gone wrong.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from kubekit.kube.clock import Clock, SystemClock, Timer, TokenBucket

_RETRIES_PER_SECOND: Final = 50.0
_RETRIES_BURST: Final = 500.0


class QueueClosed(Exception):
    """Raised by `get` once the queue is closed and empty."""


class WorkQueue:
    """Keys to work on.

    Args:
        base: seconds before the first retry of a key; doubled with every further failure.
        cap: seconds at most between two tries.
    """

    def __init__(self, *, clock: Clock | None = None, base: float = 0.005, cap: float = 300.0) -> None:
        self._clock = clock or SystemClock()
        self._base = base
        self._cap = cap
        self._bucket = TokenBucket(_RETRIES_PER_SECOND, _RETRIES_BURST, self._clock.now)
        self._order: deque[str] = deque()
        self._waiting: set[str] = set()  # in `_order`, or to be once `done`
        self._working: set[str] = set()
        self._later: dict[str, tuple[float, Timer]] = {}  # key -> when, its timer
        self._failures: dict[str, int] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self.added = 0
        self.retried = 0

    def add(self, key: str) -> None:
        """Wants `key` worked on, now."""
        if self._closed or key in self._waiting:
            return
        self.added += 1
        self._waiting.add(key)
        if key not in self._working:
            self._order.append(key)
            self._wake()

    def add_after(self, key: str, seconds: float) -> None:
        """Wants `key` worked on in `seconds`; of several such wishes the earliest counts."""
        if seconds <= 0:
            self.add(key)
            return
        if self._closed:
            return
        when = self._clock.now() + seconds
        planned = self._later.get(key)
        if planned is not None:
            if planned[0] <= when:
                return
            planned[1].cancel()
        self._later[key] = (when, self._clock.call_later(seconds, lambda: self._due(key)))

    def retry(self, key: str) -> float:
        """Wants `key` again after its back-off; returns the seconds until then."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.retried += 1
        seconds: float = min(self._cap, self._base * 2.0 ** min(failures, 60))
        seconds = max(seconds, self._bucket.reserve())
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: str) -> None:
        """`key` succeeded: its next failure waits the shortest time again."""
        self._failures.pop(key, None)

    async def get(self) -> str:
        """The next key; give it back with `done`. Raises QueueClosed."""
        while not self._order:
            if self._closed:
                raise QueueClosed
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                # NB: a turn given to a cancelled getter goes to the next one, or a key would lie there unseen.
                if turn.done() and not turn.cancelled():
                    self._wake()
                elif turn in self._getters:
                    self._getters.remove(turn)
                raise
        key = self._order.popleft()
        self._waiting.discard(key)
        self._working.add(key)
        return key

    def done(self, key: str) -> None:
        """The worker is through with `key`, well or not."""
        self._working.discard(key)
        if key in self._waiting:
            self._order.append(key)
            self._wake()

    def close(self) -> None:
        """Takes no more keys; getters drain what waits and then get QueueClosed."""
        self._closed = True
        for _, timer in self._later.values():
            timer.cancel()
        self._later.clear()
        while self._getters:
            self._wake()

    def __len__(self) -> int:
        """Keys that wait for a worker now; not those worked on or planned for later."""
        return len(self._order)

    @property
    def planned(self) -> int:
        return len(self._later)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is worked on (retries may be planned)."""
        return not self._order and not self._working

    def _due(self, key: str) -> None:
        self._later.pop(key, None)
        self.add(key)

    def _wake(self) -> None:
        while self._getters:
            turn = self._getters.popleft()
            if not turn.done():
                turn.set_result(None)
                return
