"""Limit how fast an autoscaler changes its target: bounds, rates and stabilization. Pure.

Without `spec.behavior` a target at most doubles (or grows to 4) in one step, and shrinks to the highest number that was
recommended in the last five minutes. With it, each direction has its own window and policies.

Source: the documentation "Horizontal Pod Autoscaling", configurable scaling behaviour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

Object = Mapping[str, Any]
Condition = tuple[str, str, str, str]  # type, status, reason, message
_WINDOW_S: Final = 300.0  # --horizontal-pod-autoscaler-downscale-stabilization
_REMEMBERED_S: Final = 3600.0  # the longest window that the API accepts; policies look back at most 1800 s
_FACTOR: Final = 2.0
_LEAST_LIMIT: Final = 4.0
_IN_RANGE: Final = ("DesiredWithinRange", "the desired count is within the acceptable range")
_TOO_MANY: Final = ("TooManyReplicas", "the desired replica count is more than the maximum replica count")
_TOO_FEW: Final = ("TooFewReplicas", "the desired replica count is less than the minimum replica count")
_TOO_FAST: Final = ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate")
_TOO_FAST_DOWN: Final = (
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
)
_READY: Final = ("ReadyForNewScale", "recommended size matches current size")
_HELD_UP: Final = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
)
_HELD_DOWN: Final = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
)


class Moment(msgspec.Struct, frozen=True):
    """A number at a time, in seconds since the epoch: a recommendation, or a change of replicas."""

    number: int
    time: float


class History(msgspec.Struct, frozen=True):
    """The past of one autoscaler: what it recommended, and what it added and removed. It lives in the controller only,
    as in a real one: a restarted controller begins without."""

    recommended: tuple[Moment, ...] = ()
    added: tuple[Moment, ...] = ()
    removed: tuple[Moment, ...] = ()

    def begun(self, current: int, now: float) -> History:
        """Return the history with the standing replicas as the first recommendation."""
        return self if self.recommended else msgspec.structs.replace(self, recommended=(Moment(current, now),))

    def recommending(self, replicas: int, now: float) -> History:
        return msgspec.structs.replace(self, recommended=_with(self.recommended, replicas, now))

    def scaled(self, before: int, after: int, now: float) -> History:
        if after > before:
            return msgspec.structs.replace(self, added=_with(self.added, after - before, now))
        return msgspec.structs.replace(self, removed=_with(self.removed, before - after, now))


def _with(moments: Iterable[Moment], number: int, now: float) -> tuple[Moment, ...]:
    return (*(one for one in moments if one.time >= now - _REMEMBERED_S), Moment(number, now))


class Limited(msgspec.Struct, frozen=True):
    """Replicas within all limits, and the two conditions that say what held them."""

    replicas: int
    conditions: tuple[Condition, Condition]


def limit(
    wanted: int, current: int, least: int, most: int, behavior: Object | None, history: History, now: float
) -> Limited:
    """Return the replicas of one step. `history` is that before this step's recommendation."""
    if behavior is None:
        stable = _highest(history, wanted, now - _WINDOW_S)
        return _limited(stable, wanted, _HELD_DOWN, _bounded(stable, current, least, most))
    up, down = behavior["scaleUp"], behavior["scaleDown"]
    stable = _stable(history, wanted, current, up, down, now)
    held = _HELD_UP if wanted >= current else _HELD_DOWN
    return _limited(stable, wanted, held, _rated(stable, current, (least, most), up, down, history, now))


def _limited(stable: int, wanted: int, held: tuple[str, str], result: tuple[int, tuple[str, str]]) -> Limited:
    replicas, why = result
    able = ("AbleToScale", "True", *(_READY if stable == wanted else held))
    return Limited(replicas, (able, ("ScalingLimited", "False" if replicas == stable else "True", *why)))


def _highest(history: History, wanted: int, since: float) -> int:
    return max([wanted, *(one.number for one in history.recommended if one.time >= since)])


def _stable(history: History, wanted: int, current: int, up: Object, down: Object, now: float) -> int:
    """Return the replicas nearest to the current ones between the lowest and the highest recent recommendation."""
    window = down.get("stabilizationWindowSeconds")
    down_since = now - (_WINDOW_S if window is None else window)
    up_since = now - up["stabilizationWindowSeconds"]
    low = min([wanted, *(one.number for one in history.recommended if one.time > up_since)])
    high = max([wanted, *(one.number for one in history.recommended if one.time > down_since)])
    return min(max(current, low), high)


def _bounded(wanted: int, current: int, least: int, most: int) -> tuple[int, tuple[str, str]]:
    fastest = int(max(_FACTOR * current, _LEAST_LIMIT))
    if wanted < least:
        return least, _TOO_FEW
    if wanted > min(most, fastest):
        return min(most, fastest), _TOO_FAST if most > fastest else _TOO_MANY
    return wanted, _IN_RANGE


def _rated(
    wanted: int, current: int, bounds: tuple[int, int], up: Object, down: Object, history: History, now: float
) -> tuple[int, tuple[str, str]]:
    least, most = bounds
    if wanted > current:
        fastest = max(current, _by_policies(current, up, history, now, 1))
        if wanted > min(most, fastest):
            return min(most, fastest), _TOO_FAST if most > fastest else _TOO_MANY
    elif wanted < current:
        slowest = min(current, _by_policies(current, down, history, now, -1))
        if wanted < max(least, slowest):
            return max(least, slowest), _TOO_FAST_DOWN if least < slowest else _TOO_FEW
    return wanted, _IN_RANGE


def _by_policies(current: int, rules: Object, history: History, now: float, sign: int) -> int:
    """Return the replicas to which the policies of one direction (`sign`) let a target change."""
    select = rules["selectPolicy"]
    if select == "Disabled":
        return current
    allowed = [_allowed(policy, current, history, now, sign) for policy in rules["policies"]]
    # The largest change is the highest number on the way up and the lowest on the way down.
    return max(allowed) if (select == "Min") == (sign < 0) else min(allowed)


def _allowed(policy: Object, current: int, history: History, now: float, sign: int) -> int:
    since = now - policy["periodSeconds"]
    begun = current - _sum(history.added, since) + _sum(history.removed, since)
    if policy["type"] == "Pods":
        return int(begun + sign * policy["value"])
    share = begun * (1 + sign * policy["value"] / 100)
    return math.ceil(share) if sign > 0 else int(share)


def _sum(moments: Sequence[Moment], since: float) -> int:
    return sum(one.number for one in moments if one.time > since)
