"""The faults of the simulated cloud that happen a number of times. The command line needs no more than their names."""

from __future__ import annotations

from typing import Final

LOST_ANSWERS: Final = "lost-answers"
THROTTLED: Final = "throttled"
DEAD_BOOTS: Final = "dead-boots"
COUNTED: Final = {
    LOST_ANSWERS: "launches that happen, but whose answer is lost",
    THROTTLED: "requests that are refused with RequestLimitExceeded",
    DEAD_BOOTS: "instances that run, but never join the cluster",
}
