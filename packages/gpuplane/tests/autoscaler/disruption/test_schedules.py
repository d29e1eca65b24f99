"""Cron schedules of budgets, against moments that were worked out by hand and against a scan of every minute."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.autoscaler.disruption.schedules import is_active, parse_schedule
from kubekit.errors import InvalidInput


def at(text: str) -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp()


@pytest.mark.parametrize(
    ("schedule", "now", "hit"),
    [
        ("0 9 * * mon-fri", "2026-11-23T10:00", "2026-11-23T09:00"),  # a Monday
        ("0 9 * * mon-fri", "2026-11-23T08:59", "2026-11-20T09:00"),
        ("*/15 * * * *", "2026-11-23T10:14:59", "2026-11-23T10:00"),
        ("5/20 * * * *", "2026-11-23T10:50", "2026-11-23T10:45"),
        ("@daily", "2026-11-23T00:00", "2026-11-23T00:00"),
        ("@hourly", "2026-11-23T13:30", "2026-11-23T13:00"),
        ("@weekly", "2026-11-23T13:30", "2026-11-22T00:00"),
        ("0 0 * * 7", "2026-11-23T13:30", "2026-11-22T00:00"),
        ("0 12 1,15 * sun", "2026-11-23T00:00", "2026-11-22T12:00"),  # either day
        ("30 23 31 DEC *", "2026-01-01T00:00", "2025-12-31T23:30"),
    ],
)
def test_the_last_hit(schedule: str, now: str, hit: str) -> None:
    assert parse_schedule(schedule).last_hit(at(now), 86400.0 * 8) == at(hit)


def test_a_budget_is_active_from_its_hit_until_its_duration_is_over() -> None:
    assert not is_active("0 9 * * *", 3600, at("2026-11-23T08:59:59"))
    assert is_active("0 9 * * *", 3600, at("2026-11-23T09:00"))
    assert is_active("0 9 * * *", 3600, at("2026-11-23T09:59:59"))
    assert not is_active("0 9 * * *", 3600, at("2026-11-23T10:00"))


@pytest.mark.parametrize(
    "schedule",
    ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * foo *", "5-1 * * * *", "*/0 * * * *", "@never"],
)
def test_an_invalid_schedule_is_refused(schedule: str) -> None:
    with pytest.raises(InvalidInput):
        parse_schedule(schedule)


fields = st.tuples(
    st.sampled_from(["*", "0", "*/7", "10-20", "59"]),
    st.sampled_from(["*", "0", "23", "8-17/3"]),
    st.sampled_from(["*", "1", "15,29", "31"]),
    st.sampled_from(["*", "2", "1-6"]),
    st.sampled_from(["*", "0", "sat", "1-5"]),
)


@given(fields, st.integers(0, 4 * 365 * 1440), st.integers(1, 3 * 1440))
def test_the_last_hit_is_that_of_a_scan_of_every_minute(parts: tuple[str, ...], minute: int, within: int) -> None:
    schedule = parse_schedule(" ".join(parts))
    start = at("2026-01-01T00:00")
    now = start + 60.0 * minute
    scanned = None
    for back in range(within):
        when = datetime.datetime.fromtimestamp(now - 60 * back, datetime.UTC)
        days = (when.day in schedule.days, when.isoweekday() % 7 in schedule.weekdays)
        right = all(days) if schedule.any_day or schedule.any_weekday else any(days)
        if right and when.month in schedule.months and when.hour in schedule.hours and when.minute in schedule.minutes:
            scanned = when.timestamp()
            break

    assert schedule.last_hit(now, 60.0 * within) == scanned
