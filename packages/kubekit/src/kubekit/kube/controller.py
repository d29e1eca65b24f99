"""The loop of a level-triggered controller: changes become keys, workers reconcile keys, errors come again later.

Invariants:

- `reconcile(key)` runs for one key once at a time, after all informers have synced.
- It reads the current state and corrects it; it gets a key, not an event, so missed and repeated changes do no harm.
- Retryable errors come again with back-off, Terminal ones at the slowest pace (a user may have repaired what no watch
  reports, such as permissions), unknown exceptions like Retryable ones but with their trace in the log.
- The same error is logged once until the key succeeds or says something else.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from kubekit.api.meta import key
from kubekit.errors import KubekitError, Terminal
from kubekit.kube.clock import Clock, SystemClock
from kubekit.kube.informer import Informer
from kubekit.kube.queue import QueueClosed, WorkQueue
from kubekit.kube.tasks import first_of

log = logging.getLogger("kubekit.kube")

Reconcile = Callable[[str], Awaitable[float | None]]
"""Makes one key right; returns None, or the seconds after which to look again in any case."""

_TERMINAL_SECONDS: Final = 300.0


class Source(msgspec.Struct, frozen=True):
    """An informer and the keys that a change of one of its objects concerns (old and new are both asked)."""

    informer: Informer[Any]
    keys: Callable[[Any], Iterable[str]]


class ControllerStats(msgspec.Struct, frozen=True):
    """Counters since the start; `seconds` is the time spent inside `reconcile`."""

    reconciled: int
    succeeded: int
    retryable: int
    terminal: int
    crashed: int
    seconds: float
    added: int
    retried: int
    waiting: int
    planned: int


class Controller:
    """
    Args:
        informers: whose objects' own keys are worked on; a Source maps to other keys.
        workers: how many keys at once.
    """

    def __init__(
        self,
        name: str,
        informers: Sequence[Informer[Any] | Source],
        reconcile: Reconcile,
        *,
        workers: int = 1,
        clock: Clock | None = None,
        queue: WorkQueue | None = None,
    ) -> None:
        self.name = name
        self._clock = clock or SystemClock()
        self._queue = queue or WorkQueue(clock=self._clock)
        self._sources = [s if isinstance(s, Source) else Source(s, lambda obj: (key(obj),)) for s in informers]
        self._reconcile = reconcile
        self._workers = workers
        self._said: dict[str, str] = {}
        self._reconciled = self._succeeded = self._retryable = self._terminal = self._crashed = 0
        self._seconds = 0.0

    def enqueue(self, name: str) -> None:
        """Wants `name` reconciled, for a reason that no informer sees."""
        self._queue.add(name)

    @property
    def idle(self) -> bool:
        """Nothing to do now; retries and later looks may be planned."""
        return self._queue.idle

    @property
    def failing(self) -> bool:
        """Return whether the last try of some key ended with an error."""
        return bool(self._said)

    def stats(self) -> ControllerStats:
        return ControllerStats(
            reconciled=self._reconciled,
            succeeded=self._succeeded,
            retryable=self._retryable,
            terminal=self._terminal,
            crashed=self._crashed,
            seconds=self._seconds,
            added=self._queue.added,
            retried=self._queue.retried,
            waiting=len(self._queue),
            planned=self._queue.planned,
        )

    async def run(self) -> None:
        """Starts the informers, waits for them, and works until cancelled. Raises what ended an informer."""
        tasks = [source.informer.start() for source in self._sources]
        for source in self._sources:
            await source.informer.synced()
            self._listen(source)
        try:
            await first_of(*tasks, *(self._work() for _ in range(self._workers)))
        finally:
            self._queue.close()

    def _listen(self, source: Source) -> None:
        def changed(old: Any, new: Any) -> None:
            for obj in (old, new):
                if obj is not None:
                    for name in source.keys(obj):
                        self._queue.add(name)

        source.informer.add_handler(changed)

    async def _work(self) -> None:
        while True:
            try:
                name = await self._queue.get()
            except QueueClosed:
                return
            try:
                await self._one(name)
            finally:
                self._queue.done(name)

    async def _one(self, name: str) -> None:
        started = self._clock.now()
        self._reconciled += 1
        try:
            again = await self._reconcile(name)
        except Terminal as error:
            self._terminal += 1
            self._say(name, f"{error}")
            self._queue.forget(name)
            self._queue.add_after(name, _TERMINAL_SECONDS)
        except KubekitError as error:
            self._retryable += 1
            self._say(name, f"{error}")
            self._queue.retry(name)
        except Exception as error:
            self._crashed += 1
            self._say(name, f"{type(error).__name__}: {error}", trace=True)
            self._queue.retry(name)
        else:
            self._succeeded += 1
            self._queue.forget(name)
            if self._said.pop(name, None):
                log.info("%s: %s is well again", self.name, name)
            if again is not None:
                self._queue.add_after(name, again)
        finally:
            self._seconds += self._clock.now() - started

    def _say(self, name: str, what: str, *, trace: bool = False) -> None:
        if self._said.get(name) != what:
            self._said[name] = what
            log.warning("%s: %s: %s", self.name, name, what, exc_info=trace)
