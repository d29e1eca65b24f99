"""Boards of the cluster's dashboard: one for each set of rights that viewers have, made of one overview.

Invariants:

- The cluster is judged once for each change, however many viewers there are. Viewers with the same rights share
  a board, and boards have the parts of nodes in common of which they show the same. A node that did not change costs
  a board nothing but a look.
- A viewer never lacks a board: there are as many as connections, and the board without a stream that has not been read
  for longest goes for a new one. A board that no viewer has read for a while goes at the next change.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final

from gpuplane.cli.status_views import Overview
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.board import Board, Followed
from gpuplane.dashboard.connections import MOST_CONNECTIONS
from gpuplane.dashboard.hiding import NamelessNodes, OwnNodes, spaces_of, use_without_hidden, without_hidden
from gpuplane.dashboard.node_parts import NodeParts
from gpuplane.dashboard.today import HeldToday
from gpuplane.dashboard.viewer_rights import ViewerRights

MOST_BOARDS: Final = MOST_CONNECTIONS
UNREAD_SECONDS: Final = 120.0  # for which a viewer who has read the snapshot may open a stream, on a busy machine too
NOT_YOURS: Final = HeldToday(why="only with the right to list the pods of all namespaces")
_PAUSE: Final = 0.1
_NAMES: Final = ("pods", "nodes")  # of rights whose absence the page mentions


class ViewerBoards:
    """
    Args:
        name: of the cluster.
        first: number of the first snapshot of each board; of another process another one.
        measured: what is measured now; the reader of it calls `changed`.
    """

    def __init__(
        self,
        follower: Followed,
        name: str,
        *,
        first: int,
        measured: Callable[[], tuple[MeasuredUse, HeldToday]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._follower = follower
        self._name = name
        self._first = first
        self._measured = measured
        self._monotonic = monotonic
        self._boards: dict[ViewerRights, Board] = {}
        self._read: dict[ViewerRights, float] = {}
        self._streams = Counter[ViewerRights]()
        self._changed = asyncio.Event()
        self._parts = NodeParts()
        self.nameless: NamelessNodes | None = None
        self.take(follower.seen())

    @property
    def hindrance(self) -> str:
        """Return the reason why no news come from the API server; empty when there is none."""
        return self._follower.hindrance

    def of(self, rights: ViewerRights) -> Board:
        """Return the board of viewers with these rights."""
        self._read[rights] = self._monotonic()
        board = self._boards.get(rights)
        if board is None:
            self._make_room()
            view = _View(self, rights)
            board = self._boards[rights] = Board(
                view,
                self._name,
                # A viewer whose rights changed has the number of another board, and must not read on here.
                first=self._next(),
                measured=view.measured,
                monotonic=self._monotonic,
                hidden=[name for name in _NAMES if not getattr(rights, name)],
                parts=self._parts,
            )
        return board

    def changed(self) -> None:
        """Have all boards take what is measured now."""
        self._changed.set()

    async def changes(self, rights: ViewerRights, after: int) -> AsyncIterator[bytes]:
        """Yield the changes of the board after a number, as `Board.changes` does."""
        board = self.of(rights)
        self._streams[rights] += 1
        try:
            async for event in board.changes(after):
                yield event
        finally:
            self._streams.subtract([rights])
            self._streams += Counter()  # without those that are 0
            if rights in self._boards:
                self._read[rights] = self._monotonic()

    async def run(self) -> None:
        """Follow the cluster for ever."""
        following = asyncio.create_task(self._follow())
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                began = self._monotonic()
                self.take(self._follower.seen())
                self._close_unread()
                for board in list(self._boards.values()):
                    board.update()
                    await asyncio.sleep(0)  # answers go out in between
                await asyncio.sleep(max(_PAUSE, self._monotonic() - began))
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    def take(self, seen: Overview) -> None:
        """Make the overview the one that boards and answers are made of."""
        self.seen = seen
        self.spaces = spaces_of(seen)
        self.nameless = NamelessNodes(seen, self.nameless)
        self._parts.begin()

    def close(self) -> None:
        """End the streams of all viewers."""
        for board in self._boards.values():
            board.close()

    def facts(self, rights: ViewerRights) -> _View:
        """Return the overview and the use as viewers with these rights may have them."""
        return _View(self, rights)

    def use(self) -> MeasuredUse:
        """Return what is measured now."""
        return self._measured()[0]

    def today(self) -> HeldToday:
        """Return what was held since midnight."""
        return self._measured()[1]

    async def _follow(self) -> None:
        while True:
            await self._follower.changed()
            self._changed.set()

    def _next(self) -> int:
        self._first += 1 << 20
        return self._first

    def _make_room(self) -> None:
        """Close the board without a stream, if there is one, that has not been read for longest."""
        if len(self._boards) >= MOST_BOARDS:
            self._close(min(self._boards, key=lambda rights: (self._streams[rights] > 0, self._read[rights])))

    def _close_unread(self) -> None:
        now = self._monotonic()
        for rights in [one for one in self._boards if not self._streams[one]]:
            if now - self._read[rights] >= UNREAD_SECONDS:
                self._close(rights)

    def _close(self, rights: ViewerRights) -> None:
        self._boards.pop(rights).close()
        del self._read[rights]


class _View:
    """The cluster as viewers with certain rights may have it."""

    def __init__(self, boards: ViewerBoards, rights: ViewerRights) -> None:
        self._boards = boards
        self._rights = rights
        self._own = OwnNodes(rights)

    @property
    def hindrance(self) -> str:
        return self._boards.hindrance

    def seen(self) -> Overview:
        return without_hidden(self._boards.seen, self._rights, self._boards.nameless, self._own)

    def use(self) -> MeasuredUse:
        return use_without_hidden(self._boards.use(), self._rights)

    def measured(self) -> tuple[MeasuredUse, HeldToday]:
        """Return what a board needs: of the use none of its parts by pod."""
        return self._boards.use(), self._boards.today() if self._rights.pods else NOT_YOURS

    async def changed(self) -> None:
        """Never return: the boards are brought up to date together."""
        await asyncio.Event().wait()
