"""When pods came to a node or left it last: from there `consolidateAfter` counts.

The time that a pod was bound stands in its status. That a pod left is seen only once, so it is remembered here and
written to the claim, at most every 10 s.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuplane.api.upgrade import unix_time
from kubekit.api.core import Pod

WRITE_SECONDS: Final = 10.0


class PodEvents:
    """The pods of each claim's node as they were seen last, and when one of them left."""

    def __init__(self) -> None:
        self._seen: dict[str, frozenset[str]] = {}
        self._left: dict[str, float] = {}

    def last(self, claim: str, pods: Iterable[Pod], written: float | None, now: float) -> float | None:
        """Return when a pod came or left last; None for never.

        Args:
            pods: the workloads that run on the node now.
            written: what the claim's status says.
        """
        pods = list(pods)
        here = frozenset(pod.metadata.uid for pod in pods if not pod.metadata.deletion_timestamp)
        before = self._seen.get(claim)
        self._seen[claim] = here
        if before is not None and before - here:
            self._left[claim] = now
        times = [written, self._left.get(claim), *map(bound_at, pods)]
        return max((time for time in times if time is not None), default=None)

    def forget(self, claim: str) -> None:
        """Forget a claim that is gone."""
        self._seen.pop(claim, None)
        self._left.pop(claim, None)


def bound_at(pod: Pod) -> float | None:
    """Return when a pod was bound to its node; None for unknown."""
    times = (one.last_transition_time for one in pod.status.conditions if one.type == "PodScheduled")
    return next((unix_time(time) for time in times if time), None)
