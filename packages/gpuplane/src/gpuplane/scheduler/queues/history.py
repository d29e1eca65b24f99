"""The amounts that a queue held over time: an average in which a moment counts half after each half-life. Pure.

Time is passed in. The average of a queue that always held the same is that; at its start it is nearly nothing.
"""

from __future__ import annotations

import msgspec

from gpuplane.scheduler.queues.tree import RESOURCES

Average = tuple[float, float, float, float]
"""As Amounts."""
NO_HISTORY: Average = (0.0, 0.0, 0.0, 0.0)


class QueueHistory(msgspec.Struct, frozen=True):
    """The average at a time, in seconds of any clock."""

    average: Average = NO_HISTORY
    at: float = 0.0


def after(history: QueueHistory, held: tuple[float, ...], now: float, half_life_s: float) -> QueueHistory:
    """Return the history at `now`, of a queue that has held the same amounts since `history.at`.

    A time before `history.at` changes nothing. With a half-life of 0 the past does not count.
    """
    if now <= history.at:
        return history
    part = 0.5 ** ((now - history.at) / half_life_s) if half_life_s > 0 else 0.0
    average = [held[at] + (history.average[at] - held[at]) * part for at in range(len(RESOURCES))]
    return QueueHistory(tuple(average), now)  # type: ignore[arg-type]  # as long as RESOURCES
