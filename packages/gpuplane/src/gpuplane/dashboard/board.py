"""The state of the cluster as viewers get it: one snapshot, packed once for all of them, and numbered changes.

Invariants:

- A viewer costs no memory here: it remembers the number of the last change it has, and reads on from there.
- A viewer whose number is too old, or of another process, is sent to the snapshot again.
- Bursts are gathered: a large cluster is judged again after a pause as long as judging it took.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from gpuplane.cli.status_views import Overview
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.merging import patch
from gpuplane.dashboard.node_parts import NodeParts
from gpuplane.dashboard.snapshot import NO_COST, NOT_MEASURED, snapshot
from gpuplane.dashboard.today import HeldToday

REMEMBERED: Final = 256  # changes
BEAT_SECONDS: Final = 2.0  # between two messages at most; the page says so when they stay away
_PAUSE: Final = 0.1


class Followed(Protocol):
    """A cluster's overview that is kept current, as `gpuplane.cli.status_reading.Follower` does."""

    @property
    def hindrance(self) -> str: ...
    def seen(self) -> Overview: ...
    async def changed(self) -> None: ...


class Board:
    """The snapshot of a cluster and its changes.

    Args:
        name: of the cluster.
        first: number of the first snapshot; of another process another one.
        measured: what is measured now, besides what is held; the reader of it calls `update`.
        hidden: what the viewers of this board may not list, for a notice on the page.
        parts: of boards that have nodes in common; who brings them up to date begins each moment.
    """

    def __init__(
        self,
        follower: Followed,
        name: str,
        *,
        first: int,
        measured: Callable[[], tuple[MeasuredUse, HeldToday]] = lambda: (NOT_MEASURED, NO_COST),
        monotonic: Callable[[], float] = time.monotonic,
        hidden: Sequence[str] = (),
        parts: NodeParts | None = None,
    ) -> None:
        self._follower = follower
        self._own = parts is None
        self._parts = parts or NodeParts()
        self._hidden = list(hidden)
        self._name = name
        self._monotonic = monotonic
        self._measured = measured
        self._current = self._fresh()
        self._version = first
        self._changes: deque[tuple[int, bytes]] = deque(maxlen=REMEMBERED)
        self._packed = b""
        self._news = asyncio.Event()
        self._hindered_since: float | None = None
        self._closed = False

    def packed(self) -> bytes:
        """Return the snapshot with its number, as gzipped JSON."""
        if not self._packed:
            document = {"version": self._version, "data": self._current}
            self._packed = gzip.compress(msgspec.json.encode(document), 6, mtime=0)
        return self._packed

    async def run(self) -> None:
        """Follow the cluster for ever."""
        while True:
            await self._follower.changed()
            began = self._monotonic()
            self.update()
            await asyncio.sleep(max(_PAUSE, self._monotonic() - began))

    def close(self) -> None:
        """End the streams of all viewers."""
        self._closed = True
        self._news.set()

    def update(self) -> None:
        """Take the overview as it is now; viewers get what is different."""
        fresh = self._fresh()
        if changes := patch(self._current, fresh):
            self._current = fresh
            self._version += 1
            self._packed = b""
            self._changes.append((self._version, msgspec.json.encode(changes)))
            self._news.set()
            self._news = asyncio.Event()

    def _fresh(self) -> dict[str, Any]:
        if self._own:
            self._parts.begin()
        found = snapshot(self._follower.seen(), self._name, *self._measured(), part=self._parts)
        return {**found, "hidden": self._hidden} if self._hidden else found

    async def changes(self, after: int) -> AsyncIterator[bytes]:
        """Yield the changes after a number, and signs of life, as server-sent events. Ends where the viewer has to get
        the snapshot again, and when the board is closed.
        """
        while not self._closed:
            oldest = self._changes[0][0] if self._changes else self._version + 1
            if not oldest - 1 <= after <= self._version:
                yield again()
                return
            for version, changes in [one for one in self._changes if one[0] > after]:
                yield _event("change", changes, version)
                after = version
            yield _event("state", msgspec.json.encode(self._state()))
            news = self._news
            if after == self._version:
                try:
                    async with asyncio.timeout(BEAT_SECONDS):
                        await news.wait()
                except TimeoutError:
                    pass

    def _state(self) -> dict[str, Any]:
        """Return the reason why no news come from the API server, and for how many seconds, by this process's clock."""
        why = self._follower.hindrance
        if not why:
            self._hindered_since = None
            return {"why": "", "seconds": 0}
        if self._hindered_since is None:
            self._hindered_since = self._monotonic()
        return {"why": why, "seconds": round(self._monotonic() - self._hindered_since)}


def again() -> bytes:
    """Return the event after which a viewer gets the snapshot again."""
    return _event("again", b"{}")


def _event(kind: str, data: bytes, version: int | None = None) -> bytes:
    number = f"id: {version}\n" if version is not None else ""
    return f"{number}event: {kind}\ndata: ".encode() + data + b"\n\n"
