"""Cron schedules: five fields with lists, ranges, steps and names, and the @ words. Pure.

As in cron(8) and Kubernetes: when both the day of the month and the day of the week are restricted, either suffices.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec

from kubekit.errors import InvalidInput

_WORDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_FIELDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
_SEARCHED: Final = timedelta(days=5 * 366)  # the 29th of February comes within


class Schedule(msgspec.Struct, frozen=True):
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday
    either_day: bool

    def after(self, moment: datetime) -> datetime | None:
        """The first time later than `moment`, in its time zone; None when there is none (the 30th of February)."""
        found = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        end = found + _SEARCHED
        while found < end:
            if found.month not in self.months or not self._day(found):
                found = (found + timedelta(days=1)).replace(hour=0, minute=0)
            elif found.hour not in self.hours:
                found = (found + timedelta(hours=1)).replace(minute=0)
            elif found.minute not in self.minutes:
                found += timedelta(minutes=1)
            else:
                return found
        return None

    def _day(self, moment: datetime) -> bool:
        by_date = moment.day in self.days
        by_week = moment.isoweekday() % 7 in self.weekdays
        return by_date or by_week if self.either_day else by_date and by_week


def parse(text: str) -> Schedule:
    """Raises InvalidInput, in the words of the API server's validation."""
    fields = _WORDS.get(text, text).split()
    if text.startswith("@") and text not in _WORDS:
        raise InvalidInput(f"unrecognized descriptor: {text}")
    if len(fields) != len(_FIELDS):
        raise InvalidInput(f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]")
    sets = [_field(field, *about) for field, about in zip(fields, _FIELDS, strict=True)]
    weekdays = frozenset(day % 7 for day in sets[4])
    free = [field.startswith(("*", "?")) for field in (fields[2], fields[4])]
    return Schedule(sets[0], sets[1], sets[2], sets[3], weekdays, either_day=not any(free))


def _field(text: str, name: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        if span in ("*", "?"):
            first, last = low, high
        else:
            start, _, end = span.partition("-")
            first = _number(start, name)
            last = _number(end, name) if end else high if step else first
        every = _number(step, "") if step else 1
        if first < low:
            raise InvalidInput(f"beginning of range ({first}) below minimum ({low}): {part}")
        if last > high:
            raise InvalidInput(f"end of range ({last}) above maximum ({high}): {part}")
        if first > last:
            raise InvalidInput(f"beginning of range ({first}) beyond end of range ({last}): {part}")
        if every < 1:
            raise InvalidInput(f"step of range should be a positive number: {part}")
        found.update(range(first, last + 1, every))
    return frozenset(found)


def _number(text: str, name: str) -> int:
    word = text.lower()
    if name == "month" and word in _MONTHS:
        return _MONTHS.index(word) + 1
    if name == "day of week" and word in _DAYS:
        return _DAYS.index(word)
    if not (text.isascii() and text.isdecimal()):
        raise InvalidInput(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": invalid syntax')
    return int(text)
