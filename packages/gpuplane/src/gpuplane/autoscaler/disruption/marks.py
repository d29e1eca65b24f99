"""The marks of disruption on one claim and its node: stamps, conditions, the end by age. Pure.

A node is stamped as empty the moment that it is, so `ttlSecondsAfterEmpty` counts from there whatever restarts. A claim
is Consolidatable when its pods have been left alone for `consolidateAfter`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuplane.api import nodeclaim
from gpuplane.api.karpenter import PoolDisruption

NOMINATION_LOOK_SECONDS: Final = 5.0  # no watch reports the end of a nomination


class MarkedClaim(msgspec.Struct, frozen=True):
    """A claim with its node. Times are seconds since 1970, None for never.

    `workloads`: pods run there that are not of a DaemonSet. `nominated`: waiting pods are expected there. `stamped` is
    the node's time stamp of emptiness. `last_event` is when a pod came or went last. `expire_after` counts from the
    creation. `drift` is the reason of its drift, empty for none.
    """

    created: float
    initialized: float | None
    workloads: bool
    nominated: bool
    stamped: float | None
    last_event: float | None
    expire_after: float | None
    drift: str = ""


class ClaimMarks(msgspec.Struct, frozen=True):
    """The marks to write. `stamp`: True to stamp the node, False to take the stamp off, None to leave it.

    `conditions` maps types to (holds, reason), or None for one to take off. `again` is in seconds.
    """

    expired: bool = False
    stamp: bool | None = None
    conditions: dict[str, tuple[bool, str] | None] = {}
    again: float | None = None


def decide_marks(claim: MarkedClaim, pool: PoolDisruption | None, now: float) -> ClaimMarks:
    """Return what is written about a claim; `pool` is None for a claim whose pool is gone."""
    if claim.expire_after is not None and now >= claim.created + claim.expire_after:
        return ClaimMarks(expired=True)
    times = [claim.created + claim.expire_after] if claim.expire_after is not None else []
    conditions: dict[str, tuple[bool, str] | None] = {nodeclaim.DRIFTED: (True, claim.drift) if claim.drift else None}
    if claim.initialized is None or pool is None:
        conditions[nodeclaim.CONSOLIDATABLE] = None
        stamp = False if claim.stamped is not None else None
        return ClaimMarks(stamp=stamp, conditions=conditions, again=_until(times, now))
    conditions[nodeclaim.CONSOLIDATABLE] = None
    if pool.consolidate_after is not None and pool.policy:
        due = max(claim.last_event or 0.0, claim.initialized) + pool.consolidate_after
        if now >= due:
            conditions[nodeclaim.CONSOLIDATABLE] = (True, nodeclaim.CONSOLIDATABLE)
        else:
            times.append(due)
    wanted = pool.empty_after is not None and not claim.workloads and not claim.nominated
    stamp = None if wanted == (claim.stamped is not None) else wanted
    if pool.empty_after is not None and claim.nominated and not claim.workloads:
        times.append(now + NOMINATION_LOOK_SECONDS)
    return ClaimMarks(stamp=stamp, conditions=conditions, again=_until(times, now))


def _until(times: list[float], now: float) -> float | None:
    return max(0.0, min(times) - now) if times else None
