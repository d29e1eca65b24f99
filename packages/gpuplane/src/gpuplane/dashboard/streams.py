"""Streams of changes that viewers of the cluster's dashboard have open: bounded, and shared out between users.

There are fewer streams than connections, so that connections stay free for all else: no user's streams can keep away
the kubelet's probes or another user. Where all are taken, the user with most of them loses the oldest to another user.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from kubekit.errors import NoAnswer

MOST_STREAMS: Final = 150


class TooManyStreams(NoAnswer):
    """All streams are taken, and no other user has more of them."""


class OpenStream:
    """One stream; `ended` is True once another user has its place."""

    def __init__(self) -> None:
        self.ended = False


class ViewerStreams:
    """
    Args:
        most: how many there are at most. A stream that has to end is not counted any more.
    """

    def __init__(self, most: int = MOST_STREAMS) -> None:
        self._most = most
        self._open: dict[str, list[OpenStream]] = {}  # by user, the oldest first

    def check(self, user: str) -> None:
        """Raise TooManyStreams where the user gets no further stream."""
        if self._is_full() and self._greediest(user) == user:
            raise TooManyStreams(
                f"{self._most} pages of the dashboard are open, and no user has more of them than you",
                cure="close some of them; the others go on without live changes",
            )

    @contextlib.contextmanager
    def one(self, user: str) -> Iterator[OpenStream]:
        """A stream of a user, for the block; one that has ended where `check` raises."""
        mine = OpenStream()
        if self._is_full():
            greediest = self._greediest(user)
            if greediest == user:
                mine.ended = True
                yield mine
                return
            self._end(greediest)
        self._open.setdefault(user, []).append(mine)
        try:
            yield mine
        finally:
            if not mine.ended:
                self._remove(user, mine)

    def _is_full(self) -> bool:
        return sum(map(len, self._open.values())) >= self._most

    def _greediest(self, user: str) -> str:
        """Return the user with the most streams, were `user` to have one more."""
        return max({*self._open, user}, key=lambda one: (len(self._open.get(one, ())) + (one == user), one == user))

    def _end(self, user: str) -> None:
        oldest = self._open[user][0]
        oldest.ended = True
        self._remove(user, oldest)

    def _remove(self, user: str, stream: OpenStream) -> None:
        self._open[user].remove(stream)
        if not self._open[user]:
            del self._open[user]
