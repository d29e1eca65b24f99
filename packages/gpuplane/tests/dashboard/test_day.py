"""The last 24 hours of the first page: from a real Prometheus, from the store, or why they are unknown."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpuplane.cli.cost_source import url_reader
from gpuplane.dashboard.day import (
    NOTHING,
    DayFacts,
    DayHour,
    DayUse,
    day_of_prometheus,
    day_of_store,
    hours_of_sums,
    without_names,
)
from gpuplane.metering.growth import Amounts, CounterReading
from gpuplane.metering.store import HistoryStore, HourSums
from kubekit.errors import NoAnswer, Terminal
from kubekit.kube import Forbidden
from packages.gpuplane.tests.cli.test_cost import client, history, prometheus, prometheus_installed

HOUR = 3600
START = 1_790_000_000 // HOUR * HOUR
ABSENT = {"/api/v1/services?operated-prometheus=true": Forbidden("no", where="services")}


@prometheus_installed
@pytest.mark.deadline(120)
async def test_hours_from_a_real_prometheus(tmp_path: Path) -> None:
    now = time.time() - 600
    pods = [(at, 4 if at > 8 * HOUR else 0) for at in range(0, 10 * HOUR, 60)]
    waiting = [
        f'gpuplane_scheduler_waiting_pods{{pod="leader-{at > 5 * HOUR}"}} {number} {now - 10 * HOUR + at:.0f}'
        for at, number in pods
    ]
    text = history(now).replace(
        "# EOF\n", "# TYPE gpuplane_scheduler_waiting_pods gauge\n" + "\n".join(waiting) + "\n# EOF\n"
    )
    with prometheus(tmp_path, text) as url:
        found = await day_of_prometheus(url_reader(url), url, now)
    assert found.source == url and 9 <= len(found.hours) <= 12
    held = [hour.held for hour in found.hours]
    # ml/train holds a GPU all the time, web/a and web/b 0.8 of one from the third to the sixth hour.
    assert max(held) == pytest.approx(1.8, abs=0.05) and held[-1] == pytest.approx(1.0, abs=0.05)
    assert found.hours[-1].busy == pytest.approx(0.5, abs=0.05)
    assert found.hours[-1].waiting == pytest.approx(4, abs=0.1)
    assert found.hours[-4].waiting == pytest.approx(0, abs=0.1)


async def test_a_prometheus_without_our_metrics_says_so() -> None:
    async def get(path: str, parameters: object) -> bytes:
        return b'{"status":"success","data":{"resultType":"matrix","result":[]}}'

    assert await day_of_prometheus(get, "P", START) == DayUse(why="P has no metrics of GPUs")


WRONG = b'{"status":"success","data":{"result":[{"values":[[0,"x"]]}]}}'


@pytest.mark.parametrize("body", [b"<html>", b'{"status":"error","error":"x"}', WRONG])
async def test_what_is_no_answer_of_prometheus_is_an_error(body: bytes) -> None:
    async def get(path: str, parameters: object) -> bytes:
        return body

    with pytest.raises(Terminal):
        await day_of_prometheus(get, "P", START)


async def test_hours_of_the_store_are_averages_of_the_time_that_was_recorded(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "history.sqlite", START + HOUR / 2)
    pod, rest = (("UUID", "G"), ("pod", "a")), (("UUID", "G"),)
    for seconds in (0, HOUR / 2, 5 * HOUR / 4):
        counters = {pod: Amounts(0.5 * seconds, 0.25 * seconds, None), rest: Amounts(1.5 * seconds, None, None)}
        reading = CounterReading("n1", "a", seconds, counters)
        store.add([reading], START + HOUR / 2 + seconds, waiting=(60, 180))
    found = await day_of_store(store, START + 7 * HOUR / 4)
    store.close()
    assert [(hour.held, hour.busy, hour.free, hour.waiting) for hour in found.hours] == [(0.5, 0.25, 1.5, 3)] * 2
    assert (found.source, found.why) == ("the dashboard's store", "")


def test_an_hour_before_the_store_began_is_a_whole_one() -> None:
    [found] = hours_of_sums([HourSums(START // HOUR, HOUR, 0, None, None)], START + 10 * HOUR, START + 5 * HOUR)
    assert (found.held, found.busy, found.waiting) == (1, None, None)


async def test_without_any_source_the_page_says_so_and_asks_again_later() -> None:
    now, asked = [0.0], [0]

    async def stored() -> DayUse | None:
        asked[0] += 1
        return DayUse((DayHour("2026-11-26T10:00:00Z", held=2.0),), "store") if asked[0] > 1 else None

    facts = DayFacts(client(ABSENT), lambda: 0.0, lambda: now[0], stored)
    assert await facts.day() == {"hours": (), "source": "", "why": NOTHING}
    await facts.day()
    assert asked[0] == 1, "the answer serves all viewers for a while"
    now[0] = 1000.0
    assert (await facts.day())["hours"] == ({"at": "2026-11-26T10:00:00Z", "held": 2.0},)


async def test_an_api_server_that_does_not_answer_is_the_reason() -> None:
    gone = {"/api/v1/services?operated-prometheus=true": NoAnswer("gone")}
    assert (await DayFacts(client(gone), lambda: 0.0, lambda: 0.0).day())["why"] == "gone"


def test_a_tenant_learns_no_name_of_the_monitoring() -> None:
    found = without_names({"hours": (), "source": "Prometheus secret/prometheus", "why": ""})
    assert (found["source"], found["why"]) == ("Prometheus", "")
    found = without_names({"hours": (), "source": "", "why": "Prometheus secret/p has no metrics of GPUs"})
    assert (found["source"], found["why"]) == ("", "nothing remembers them")
