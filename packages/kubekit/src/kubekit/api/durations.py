"""Times as Kubernetes writes them: RFC 3339 in objects, `5m12s` in the AGE column.

The AGE form follows `HumanDuration` of k8s.io/apimachinery: two units while the value is young, one when it is old.
"""

from __future__ import annotations

from datetime import UTC, datetime

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400
UNKNOWN = "<unknown>"


def parse_time(text: str) -> datetime:
    """An RFC 3339 time, with or without fractions. Raises ValueError."""
    if len(text) < 20 or text[10] not in "Tt":
        raise ValueError(f"{text!r} is not an RFC 3339 time")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment.astimezone(UTC)


def format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def human_duration(seconds: float) -> str:
    """`119s`, `2m5s`, `15m`, `3h20m`, `20h`, `2d3h`, `30d`, `2y40d`."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    whole = max(whole, 0)
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    if whole < 10 * _MINUTE:
        return _pair(whole // _MINUTE, "m", whole % _MINUTE, "s")
    if whole < 3 * _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < 8 * _HOUR:
        return _pair(whole // _HOUR, "h", whole // _MINUTE % 60, "m")
    if whole < 2 * _DAY:
        return f"{whole // _HOUR}h"
    if whole < 8 * _DAY:
        return _pair(whole // _DAY, "d", whole // _HOUR % 24, "h")
    if whole < 2 * _YEAR:
        return f"{whole // _DAY}d"
    if whole < 8 * _YEAR:
        return _pair(whole // _YEAR, "y", whole // _DAY % 365, "d")
    return f"{whole // _YEAR}y"


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def age(since: object, now: datetime) -> str:
    """Return the age of an RFC 3339 time; `<unknown>` when there is none."""
    if not isinstance(since, str) or not since:
        return UNKNOWN
    try:
        return human_duration((now - parse_time(since)).total_seconds())
    except ValueError:
        return "<invalid>"
