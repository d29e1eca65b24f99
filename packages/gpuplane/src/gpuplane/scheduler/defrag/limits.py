"""The budgets of moves: how many at once, and how many in an hour. Pure.

The moves of earlier leaders are read from their `records`, so a change of the leader frees no budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

HOUR: Final = 3600.0
EVICTION_SECONDS: Final = 30.0  # after which the API server gives an eviction up that has had no answer


class MoveLimits(msgspec.Struct, frozen=True):
    """The moves that an administrator allows.

    Args:
        automatic: the scheduler moves pods by itself, where pods wait for room.
        per_hour, at_once: moves in any hour, and under way.
        after_seconds: a pod has to wait so long before others are moved for it.
        cool_down_seconds: until a pod that was moved may be moved again, and until the next try for a pod that waits
            after moves for it have failed.
        most_moves: for one pod that waits.
        hold_seconds: the longest time from the reservation of a place until the replacement is bound to it.
    """

    automatic: bool = False
    per_hour: int = 12
    at_once: int = 1
    after_seconds: float = 60.0
    cool_down_seconds: float = 3600.0
    most_moves: int = 4
    hold_seconds: float = 300.0


class MoveBudget:
    """Counts moves by the wall clock, in Unix seconds."""

    def __init__(self, limits: MoveLimits) -> None:
        self._limits = limits
        self._times: list[float] = []
        self.under_way = 0

    def recover(self, times: Iterable[float]) -> None:
        """Count the moves of earlier leaders that have ended."""
        self._times += times

    def left(self, now: float) -> int:
        """Return how many moves may begin now, without those that have to wait for others to end."""
        # NB: a clock that was set back must not free the budget, so times ahead of it count too.
        self._times = [time for time in self._times if time > now - HOUR - EVICTION_SECONDS]
        return max(0, self._limits.per_hour - len(self._times))

    def may_begin(self, now: float) -> bool:
        """Return whether a move may begin now."""
        return self.under_way < self._limits.at_once and self.left(now) > 0

    def begin(self, now: float) -> None:
        """Count a move; it is under way."""
        self._times.append(now)
        self.under_way += 1

    def sent(self, counted: float, now: float) -> float:
        """Count a move from now on, since its eviction is sent now; return the new time of the move."""
        if counted in self._times:
            self._times.remove(counted)
        self._times.append(now)
        return now

    def end(self, counted: float, *, evicted: bool) -> None:
        """Count a move as ended that is counted at that time; one whose pod was not evicted is no move of the hour."""
        self.under_way -= 1
        if not evicted and counted in self._times:
            self._times.remove(counted)

    def next_free(self, now: float) -> float:
        """Return in how many seconds the hour's budget has a move left; 0.0 for now."""
        if self.left(now):
            return 0.0
        if not self._limits.per_hour:
            return HOUR
        return max(0.0, sorted(self._times)[-self._limits.per_hour] + HOUR + EVICTION_SECONDS - now)
