"""Boards of the cluster's dashboard: one for each set of rights that viewers have, made of one overview.

Invariants:

- The cluster is judged once for each change, however many viewers there are. Viewers with the same rights share
  a board, and boards have the documents of nodes in common of which they show the same.
- There are at most `MOST_BOARDS`. A board that has not been read for a while is closed for a new one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

from gpuplane.cli.status_views import NodeView, Overview
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.dashboard.board import BEAT_SECONDS, Board, Followed
from gpuplane.dashboard.hiding import NamelessNodes, spaces_of, use_without_hidden, without_hidden
from gpuplane.dashboard.snapshot import node_cells
from gpuplane.dashboard.today import HeldToday
from gpuplane.dashboard.viewer_rights import ViewerRights
from kubekit.errors import NoAnswer

MOST_BOARDS: Final = 128
UNREAD_SECONDS: Final = 10 * BEAT_SECONDS  # after which no viewer has the board: a stream reads at each beat
NOT_YOURS: Final = HeldToday(why="only with the right to list the pods of all namespaces")
_PAUSE: Final = 0.1
_NAMES: Final = ("pods", "nodes")  # of rights whose absence the page mentions


class TooManyViews(NoAnswer):
    """All boards are in use."""


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
        self._changed = asyncio.Event()
        self._nodes = _CommonNodes()
        self.take(follower.seen())

    @property
    def hindrance(self) -> str:
        """Return the reason why no news come from the API server; empty when there is none."""
        return self._follower.hindrance

    def of(self, rights: ViewerRights) -> Board:
        """Return the board of viewers with these rights. Raises TooManyViews."""
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
                document=self._nodes.document,
            )
        return board

    def changed(self) -> None:
        """Have all boards take what is measured now."""
        self._changed.set()

    async def changes(self, rights: ViewerRights, after: int) -> AsyncIterator[bytes]:
        """Yield the changes of the board after a number, as `Board.changes` does."""
        async for event in self.of(rights).changes(after):
            self._read[rights] = self._monotonic()
            yield event

    async def run(self) -> None:
        """Follow the cluster for ever."""
        following = asyncio.create_task(self._follow())
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                began = self._monotonic()
                self.take(self._follower.seen())
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
        self.nameless = NamelessNodes(seen)
        self._nodes.begin((*seen.nodes, *self.nameless.with_names, *self.nameless.with_numbers))

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
        if len(self._boards) < MOST_BOARDS:
            return
        oldest = min(self._boards, key=lambda rights: self._read[rights])
        if self._monotonic() - self._read[oldest] < UNREAD_SECONDS:
            raise TooManyViews(
                f"{MOST_BOARDS} viewers with different rights have the dashboard open",
                cure="gpuplane dashboard --local serves it from your machine",
            )
        self._boards.pop(oldest).close()
        del self._read[oldest]


class _CommonNodes:
    """Documents of the nodes that boards have in common: made once, the same objects as before where they are equal."""

    def __init__(self) -> None:
        self._common: frozenset[int] = frozenset()
        self._now: dict[int, tuple[NodeView, MeasuredUse, dict[str, Any]]] = {}
        self._before: dict[str, dict[str, Any]] = {}

    def begin(self, common: Iterable[NodeView]) -> None:
        """Forget the nodes of the moment before. The caller holds the common ones until the next moment."""
        self._common = frozenset(id(node) for node in common)
        self._before = {node.name: document for node, _, document in self._now.values()}
        self._now = {}

    def document(self, node: NodeView, use: MeasuredUse) -> dict[str, Any]:
        """Return the document of a node, as `node_cells` makes it."""
        if id(node) not in self._common:
            return node_cells(node, use)
        found = self._now.get(id(node))
        if found is None or found[1] is not use:
            made = node_cells(node, use)
            before = self._before.get(node.name)
            found = self._now[id(node)] = node, use, before if before == made else made
        return found[2]


class _View:
    """The cluster as viewers with certain rights may have it."""

    def __init__(self, boards: ViewerBoards, rights: ViewerRights) -> None:
        self._boards = boards
        self._rights = rights

    @property
    def hindrance(self) -> str:
        return self._boards.hindrance

    def seen(self) -> Overview:
        return without_hidden(self._boards.seen, self._rights, self._boards.nameless)

    def use(self) -> MeasuredUse:
        return use_without_hidden(self._boards.use(), self._rights)

    def measured(self) -> tuple[MeasuredUse, HeldToday]:
        """Return what a board needs: of the use none of its parts by pod."""
        return self._boards.use(), self._boards.today() if self._rights.pods else NOT_YOURS

    async def changed(self) -> None:
        """Never return: the boards are brought up to date together."""
        await asyncio.Event().wait()
