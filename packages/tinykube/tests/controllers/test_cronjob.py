"""Jobs by the clock."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfoNotFoundError, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.errors import InvalidInput
from tinykube.controllers.cronjob import controller
from tinykube.controllers.cronjob.controller import due
from tinykube.cron import parse


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("*/15 * * * *", "2026-01-01T10:07:30", "2026-01-01T10:15:00"),
        ("0 0 * * *", "2026-01-01T00:00:00", "2026-01-02T00:00:00"),
        ("@hourly", "2026-01-01T23:30:00", "2026-01-02T00:00:00"),
        ("30 9 * * mon-fri", "2026-01-02T09:30:00", "2026-01-05T09:30:00"),
        ("0 0 29 feb *", "2026-01-01T00:00:00", "2028-02-29T00:00:00"),
        ("0 12 13 * fri", "2026-01-01T00:00:00", "2026-01-02T12:00:00"),
        ("5,10-12 3/6 * * *", "2026-01-01T04:00:00", "2026-01-01T09:05:00"),
        ("0 0 * * 7", "2026-01-01T00:00:00", "2026-01-04T00:00:00"),
    ],
)
def test_when_a_schedule_is_next_due(schedule, after, expected):
    assert parse(schedule).after(at(after)) == at(expected)


def test_a_day_that_never_comes_is_never_due():
    assert parse("0 0 30 2 *").after(at("2026-01-01T00:00:00")) is None


@pytest.mark.parametrize(
    "text", ["", "* * * *", "60 * * * *", "* * 0 * *", "5-1 * * * *", "*/0 * * * *", "x * * * *", "@never"]
)
def test_what_is_no_schedule_is_refused(text):
    with pytest.raises(InvalidInput):
        parse(text)


@given(
    st.sets(st.integers(0, 59), min_size=1),
    st.sets(st.integers(0, 23), min_size=1),
    st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 1)),
)
def test_the_next_time_is_the_first_that_matches(minutes, hours, moment):
    found = parse(f"{','.join(map(str, minutes))} {','.join(map(str, hours))} * * *").after(moment)
    assert found > moment
    assert (found.minute in minutes, found.hour in hours) == (True, True)
    later = [h * 60 + m for h in hours for m in minutes if h * 60 + m > moment.hour * 60 + moment.minute]
    expected = min(later) if later else min(hours) * 60 + min(minutes)
    assert found.hour * 60 + found.minute == expected


def test_only_the_latest_missed_time_counts_and_only_within_the_deadline():
    spec = {"schedule": "*/10 * * * *"}
    since, now = at("2026-01-01T10:00:00"), at("2026-01-01T10:35:00")
    assert due(spec, since, now) == (at("2026-01-01T10:30:00"), 300.0)
    assert due({**spec, "startingDeadlineSeconds": 60}, since, now) == (None, 300.0)
    assert due(spec, at("2025-01-01T00:00:00"), now) == (None, 300.0)
    with pytest.raises(InvalidInput, match="time zone"):
        due({**spec, "timeZone": "Moon/Base"}, since, now)


# -- on the registry ---------------------------------------------------------------------------------------------------
async def made(cluster, schedule="* * * * *", **spec):
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "app"}]}}
    body = {"schedule": schedule, "jobTemplate": {"spec": {"template": template}}, **spec}
    await cluster.create("cronjobs", {"metadata": {"name": "tick"}, "spec": body})


def jobs(cluster):
    return cluster.registry.list("jobs", "default")


def tick(cluster):
    return cluster.registry.get("cronjobs", "default", "tick")


async def succeed(cluster):
    for pod in cluster.pods():
        await cluster.set_status("pods", pod, phase="Succeeded")
    await cluster.settle()


async def test_a_job_is_made_at_its_time_and_history_is_kept_short(cluster):
    await made(cluster, successfulJobsHistoryLimit=2)
    await cluster.settle(1)
    assert jobs(cluster) == []
    for _ in range(4):
        await cluster.settle(60)
        await succeed(cluster)
    assert len(jobs(cluster)) == 2
    assert tick(cluster)["status"]["lastSuccessfulTime"]
    assert jobs(cluster)[0]["metadata"]["ownerReferences"][0]["kind"] == "CronJob"
    assert len(cluster.events("SuccessfulCreate")) >= 4


@pytest.mark.parametrize(("policy", "count"), [("Allow", 3), ("Forbid", 1), ("Replace", 1)])
async def test_what_happens_when_the_last_one_still_runs(cluster, policy, count):
    await made(cluster, concurrencyPolicy=policy)
    await cluster.settle(62)
    first = jobs(cluster)[0]["metadata"]["name"]
    await cluster.settle(120)
    assert len(jobs(cluster)) == count
    assert len(tick(cluster)["status"]["active"]) == count
    assert (jobs(cluster)[0]["metadata"]["name"] == first) is (policy != "Replace")


async def test_a_suspended_one_waits(cluster):
    await made(cluster, suspend=True)
    await cluster.settle(200)
    assert jobs(cluster) == []


@pytest.mark.skipif(not available_timezones(), reason="this machine has no time zones")
async def test_a_cron_job_whose_time_zone_is_lost_gets_an_event(cluster, monkeypatch):
    await made(cluster, schedule="1 * * * *", timeZone="Europe/Berlin")
    monkeypatch.setattr(controller, "ZoneInfo", lost)
    await cluster.settle(200)
    [event] = cluster.events("UnparseableSchedule")
    assert "Europe/Berlin" in event["message"]


def lost(name):
    raise ZoneInfoNotFoundError(name)
