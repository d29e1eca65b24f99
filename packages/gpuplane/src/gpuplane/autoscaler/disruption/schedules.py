"""Cron schedules of disruption budgets: when a schedule last hit, in UTC. Pure.

Five fields: minute, hour, day of month, month, day of week (0 and 7 are Sunday). A field is `*`, numbers, ranges, steps
or names, with commas. `@hourly`, `@daily` (`@midnight`), `@weekly`, `@monthly` and `@yearly` (`@annually`) are short
forms. If both days are restricted, either may match, as in cron.

Source: crontab(5).
"""

from __future__ import annotations

import datetime
from functools import lru_cache
from typing import Final

import msgspec

from kubekit.errors import InvalidInput

_SHORT: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class _Bounds(msgspec.Struct, frozen=True):
    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()


_FIELDS: Final = (
    _Bounds("minute", 0, 59),
    _Bounds("hour", 0, 23),
    _Bounds("day of month", 1, 31),
    _Bounds("month", 1, 12, _MONTHS),
    _Bounds("day of week", 0, 7, _DAYS),
)


class CronSchedule(msgspec.Struct, frozen=True):
    """The values of each field. `any_day`: the day of month is not restricted; `any_weekday` likewise."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday
    any_day: bool
    any_weekday: bool

    def last_hit(self, now: float, within: float) -> float | None:
        """Return the last hit at or before `now`, if it is less than `within` seconds ago (times since 1970)."""
        moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
        for back in range(int(within // 86400) + 2):
            day = (moment - datetime.timedelta(days=back)).date()
            if not self._has_day(day):
                continue
            last = self._last_minute(moment.hour * 60 + moment.minute if back == 0 else 24 * 60 - 1)
            if last is not None:
                start = datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC).timestamp()
                hit = start + 60.0 * last
                return hit if now - hit < within else None
        return None

    def _has_day(self, day: datetime.date) -> bool:
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return of_month and of_week
        return of_month or of_week

    def _last_minute(self, most: int) -> int | None:
        """Return the last hit of a day as minutes from midnight, at most `most`."""
        for hour in sorted((one for one in self.hours if one * 60 <= most), reverse=True):
            minutes = [one for one in self.minutes if hour * 60 + one <= most]
            if minutes:
                return hour * 60 + max(minutes)
        return None


@lru_cache(maxsize=256)
def parse_schedule(text: str) -> CronSchedule:
    """Read a schedule. Raises InvalidInput for an invalid one."""
    parts = _SHORT.get(text.strip().lower(), text).split()
    if len(parts) != len(_FIELDS):
        raise InvalidInput(f"{text!r} has {len(parts)} fields, a schedule has five", cure="write as 0 9 * * mon-fri")
    values = [_values(part, bounds, text) for part, bounds in zip(parts, _FIELDS, strict=True)]
    return CronSchedule(
        minutes=values[0],
        hours=values[1],
        days=values[2],
        months=values[3],
        weekdays=frozenset(one % 7 for one in values[4]),
        any_day=parts[2].startswith(("*", "?")),
        any_weekday=parts[4].startswith(("*", "?")),
    )


def _values(text: str, bounds: _Bounds, schedule: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        if span in ("*", "?"):
            first, last = bounds.least, 6 if bounds.most == 7 else bounds.most
        else:
            low, dash, high = span.partition("-")
            first = _number(low, bounds, schedule)
            last = _number(high, bounds, schedule) if dash else bounds.most if step else first
        width = _number(step, _Bounds("step", 1, bounds.most), schedule) if step else 1
        if last < first or (not step and part.endswith("/")):
            raise InvalidInput(f"{schedule!r}: {part!r} is no range of the {bounds.name}", cure="correct the schedule")
        found.update(range(first, last + 1, width))
    return frozenset(found)


def _number(text: str, bounds: _Bounds, schedule: str) -> int:
    if text.lower() in bounds.names:
        return bounds.names.index(text.lower()) + bounds.least
    if not (text.isascii() and text.isdigit()) or not bounds.least <= int(text) <= bounds.most:
        what = f"{schedule!r}: {text!r} is not from {bounds.least} to {bounds.most}, of the {bounds.name}"
        raise InvalidInput(what, cure="correct the schedule")
    return int(text)


def is_active(schedule: str, seconds: float, now: float) -> bool:
    """Return whether a hit is less than `seconds` ago. Raises InvalidInput for an invalid schedule."""
    return parse_schedule(schedule).last_hit(now, seconds) is not None
