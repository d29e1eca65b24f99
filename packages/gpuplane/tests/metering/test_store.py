"""The store of hourly sums: nothing is lost and nothing counted twice, whatever meters, readings and clocks do."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.metering import GPUReading, Hold, Meter, MeterNames, NodeReading, PodContainer, families
from gpuplane.metering.growth import HOUR, READ_METRICS, Amounts, CounterReading, Labels, read_counters, spread
from gpuplane.metering.store import KEPT_DAYS, HistoryStore
from kubekit.errors import Retryable, Terminal
from kubekit.kube.exposition import exposition, metric_lines

START = 1_790_000_000.0 // HOUR * HOUR  # the beginning of an hour
EVER = (0.0, 8e9)
DAY = 24 * HOUR


def pod(name: str, node: str = "n1") -> Labels:
    return (("Hostname", node), ("UUID", f"GPU-{node}"), ("namespace", "ml"), ("pod", name))


def reading(
    seconds: float, held: float, *, life: str = "a", name: str = "train", node: str = "n1", used: float | None = None
) -> CounterReading:
    return CounterReading(node, life, seconds, {pod(name, node): Amounts(held, used, 2 * held)})


def total(store: HistoryStore, begin: float = EVER[0], end: float = EVER[1]) -> dict[str, float]:
    """Seconds held by pod."""
    found: dict[str, float] = {}
    for labels, amounts in store.sums(begin, end):
        name = dict(labels)["pod"]
        found[name] = found.get(name, 0.0) + amounts.held
    return {name: pytest.approx(held) for name, held in found.items()}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HistoryStore]:
    made = HistoryStore(tmp_path / "history.sqlite", START)
    yield made
    made.close()


# -- what a reading adds -----------------------------------------------------------------------------------------------


def test_what_a_meter_counted_before_the_store_began_is_not_of_its_time(store: HistoryStore) -> None:
    store.add([reading(5000, 1000)], START + 60)
    assert total(store) == {}
    store.add([reading(5060, 1030)], START + 120)
    assert total(store) == {"train": 30}


def test_a_node_that_came_after_the_store_counts_from_its_beginning(store: HistoryStore) -> None:
    store.add([reading(40, 40)], START + 600)
    assert total(store) == {"train": 40}


def test_a_reading_that_comes_twice_or_late_adds_nothing(store: HistoryStore) -> None:
    for one in (reading(0, 0), reading(60, 60), reading(60, 60), reading(30, 30), reading(90, 90), reading(0, 0)):
        store.add([one], START + 60)
    assert total(store) == {"train": 90}


def test_counters_of_a_new_process_begin_at_0_also_where_they_are_larger(store: HistoryStore) -> None:
    store.add([reading(0, 0)], START)
    store.add([reading(100, 100)], START + 100)
    store.add([reading(500, 500, life="b")], START + 700)
    assert total(store) == {"train": 600}
    # The old process's last reading comes late.
    store.add([reading(110, 110)], START + 710)
    assert total(store) == {"train": 600}


def test_a_pod_that_is_there_again_after_it_was_forgotten_begins_at_0(store: HistoryStore) -> None:
    store.add([reading(0, 0)], START)
    store.add([reading(100, 100)], START + 100)
    store.add([CounterReading("n1", "a", 800, {})], START + 800)
    store.add([reading(1000, 150)], START + 1000)
    assert total(store) == {"train": 250}


def test_growth_after_hours_without_a_reading_is_spread_over_them(store: HistoryStore) -> None:
    store.add([reading(0, 0)], START)
    store.add([reading(5 * HOUR, 5 * HOUR, used=HOUR)], START + 5.5 * HOUR)
    hours = [(round(one.hour - START // HOUR), one.held, one.used) for one in store.hours(START, START + 6 * HOUR)]
    half = pytest.approx(HOUR / 2), pytest.approx(HOUR / 10)
    whole = pytest.approx(HOUR), pytest.approx(HOUR / 5)
    assert hours == [(0, *half), (1, *whole), (2, *whole), (3, *whole), (4, *whole), (5, *half)]


def test_what_is_not_measured_stays_unknown(store: HistoryStore) -> None:
    store.add([reading(0, 0)], START)
    store.add([reading(60, 60)], START + 60)
    [(_, amounts)] = store.sums(*EVER)
    assert amounts == Amounts(60, None, 120)
    store.add([reading(120, 120, used=7)], START + 120)
    [(_, amounts)] = store.sums(*EVER)
    assert amounts == Amounts(120, 7, 240)


def test_hours_have_what_was_free_and_how_many_pods_waited(store: HistoryStore) -> None:
    rest: Labels = (("Hostname", "n1"), ("UUID", "GPU-n1"))
    counters = {pod("a"): Amounts(0.0, 0.0, None), rest: Amounts(0.0, 0.0, None)}
    store.add([CounterReading("n1", "a", 0, counters)], START, waiting=(60, 60))
    counters = {pod("a"): Amounts(90.0, 45.0, None), rest: Amounts(210.0, 5.0, None)}
    store.add([CounterReading("n1", "a", 300, counters)], START + 300, waiting=(60, 180))
    store.add([], START + HOUR, waiting=(60, 0))
    [first, second] = store.hours(START, START + HOUR)
    assert (first.held, first.free, first.used, first.waiting) == (90, 210, 45, 2)
    assert (second.held, second.free, second.used, second.waiting) == (0, 0, None, 0)


@given(st.floats(1e9, 4e9), st.floats(0, 1e6))
def test_the_parts_of_hours_add_up_to_1(now: float, seconds: float) -> None:
    parts = dict(spread(now, seconds))
    assert sum(parts.values()) == pytest.approx(1)
    assert max(parts) in (int(now // HOUR), int(now // HOUR) - 1) and min(parts) >= (now - seconds) // HOUR


# -- whole histories ---------------------------------------------------------------------------------------------------


class FakeMeter:
    """A node's meter: counters that grow, vanish, and begin again; `expected` is what readings should have added."""

    def __init__(self, node: str) -> None:
        self.node, self.life, self.seconds = node, 0, 0.0
        self.counters: dict[str, float] = {}
        self.unread: dict[str, float] = {}
        self.expected: dict[str, float] = {}

    def hold(self, name: str, seconds: float) -> None:
        self.seconds += seconds
        self.counters[name] = self.counters.get(name, 0.0) + seconds
        self.unread[name] = self.unread.get(name, 0.0) + seconds

    def restart(self) -> None:
        self.life, self.seconds = self.life + 1, 0.0
        self.counters, self.unread = {}, {}

    def forget(self, name: str) -> None:
        self.seconds += 600
        self.counters.pop(name, None)
        self.unread.pop(name, None)

    def reading(self) -> CounterReading:
        counters = {pod(name, self.node): Amounts(held, None, None) for name, held in self.counters.items()}
        return CounterReading(self.node, f"{self.node}-{self.life}", self.seconds, counters)

    def read(self) -> None:
        for name, seconds in self.unread.items():
            self.expected[name] = self.expected.get(name, 0.0) + seconds
        self.unread = {}


NODES, PODS = ("n1", "n2"), ("p", "q")
STEPS = st.one_of(
    st.tuples(st.just("hold"), st.sampled_from(NODES), st.sampled_from(PODS), st.integers(1, 5000)),
    st.tuples(st.sampled_from(("read", "read", "read", "again", "die")), st.sampled_from(NODES)),
    st.tuples(st.just("late"), st.integers(0, 50)),
    st.tuples(st.just("restart"), st.sampled_from(NODES)),
    st.tuples(st.just("forget"), st.sampled_from(NODES), st.sampled_from(PODS)),
    st.tuples(st.just("clock"), st.sampled_from((-9 * DAY, -HOUR, -1, 1, HOUR, 9 * DAY))),
    st.tuples(st.just("reopen")),
)


class Died(Exception):
    """A process that is killed within a transaction."""


def dying(one: CounterReading) -> Iterator[CounterReading]:
    yield one
    raise Died


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_sums_are_what_the_meters_counted(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.sqlite"
        store, now = HistoryStore(path, START), START + DAY
        meters = {node: FakeMeter(node) for node in NODES}
        store.add([meter.reading() for meter in meters.values()], now)
        sent: list[CounterReading] = [meter.reading() for meter in meters.values()]

        def read(meter: FakeMeter) -> None:
            sent.append(meter.reading())
            store.add([meter.reading()], now)
            meter.read()

        for step in steps:
            match step:
                case ("hold", str(node), str(name), int(seconds)):
                    meters[node].hold(name, seconds)
                    now += seconds
                case ("read", str(node)):
                    read(meters[node])
                case ("again", str(node)):
                    store.add([one for one in sent if one.node == node][-1:] * 2, now)
                case ("late", int(number)):
                    store.add([sent[number % len(sent)]], now)
                case ("die", str(node)):
                    with pytest.raises(Died):
                        store.add(dying(meters[node].reading()), now)
                case ("restart", str(node)):
                    meters[node].restart()
                case ("forget", str(node), str(name)):
                    meters[node].forget(name)
                    read(meters[node])
                case ("clock", int(jump)):
                    now += jump
                case ("reopen",):
                    store.close()
                    store = HistoryStore(path, now)
        for meter in meters.values():
            read(meter)
        expected = {
            (node, name): pytest.approx(held)
            for node, meter in meters.items()
            for name, held in meter.expected.items()
            if held
        }
        found = {(dict(labels)["Hostname"], dict(labels)["pod"]): one.held for labels, one in store.sums(*EVER)}
        store.close()
    assert found == expected


CHILD = """
import sys
from pathlib import Path
from gpuplane.metering.growth import Amounts, CounterReading
from gpuplane.metering.store import HistoryStore

path, step, start = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
store = HistoryStore(path, start)
while True:
    step += 1
    counters = {(("pod", f"p{at}"),): Amounts(step, step / 2, None) for at in range(50)}
    print(step, flush=True)
    store.add([CounterReading("n1", "a", step, counters)], start + 40 * step, waiting=(1, 1))
"""


@pytest.mark.deadline(120)
def test_a_process_that_is_killed_at_any_moment_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    path, chosen, step = tmp_path / "history.sqlite", random.Random(7), 0
    first = HistoryStore(path, START)
    nothing = {(("pod", f"p{at}"),): Amounts(0, 0, None) for at in range(50)}
    first.add([CounterReading("n1", "a", 0, nothing)], START)
    first.close()
    for _ in range(12):
        command = [sys.executable, "-c", CHILD, str(path), str(step), str(START)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _ in range(chosen.randint(1, 150)):
                step = int(child.stdout.readline())
            child.kill()
            # Lines that the child printed and the test has not read yet.
            step = max([step, *(int(line) for line in child.stdout.read().split("\n")[:-1])])
    step += 1
    store = HistoryStore(path, START)
    counters = {(("pod", f"p{at}"),): Amounts(step, step / 2, None) for at in range(50)}
    store.add([CounterReading("n1", "a", step, counters)], START + 40 * step)
    sums = store.sums(*EVER)
    hours = store.hours(*EVER)
    store.close()
    assert len(sums) == 50 and len(hours) > 1
    assert {round(amounts.held, 6) for _, amounts in sums} == {step}
    assert {round(amounts.used or 0, 6) for _, amounts in sums} == {step / 2}
    assert sum(one.held for one in hours) == pytest.approx(50 * step)


# -- days, and what is deleted -----------------------------------------------------------------------------------------


@given(st.integers(0, 100), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_days_and_hours_give_the_same_sums(first: int, more: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = HistoryStore(Path(folder) / "history.sqlite", START)
        store.add([reading(0, 0)], START)
        store.add([reading(101 * HOUR, 101 * HOUR)], START + 101 * HOUR)
        begin, end = START + first * HOUR, START + min(100, first + more) * HOUR
        found = total(store, begin, end)
        store.close()
    assert found == {"train": (min(100, first + more) - first + 1) * HOUR}


growth = st.dictionaries(
    st.sampled_from("abcd"),
    st.tuples(st.integers(0, 999), st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)),
)


@given(st.lists(st.tuples(st.integers(0, 30), growth), max_size=8), st.integers(0, 250), st.integers(0, 250))
@settings(max_examples=60, deadline=None)
def test_sums_are_exactly_the_plain_sums(steps: list[tuple[int, dict[str, Any]]], begin: int, more: int) -> None:
    counted: dict[str, list[float | None]] = {name: [0, None, None] for name in "abcd"}
    expected: dict[str, list[float | None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        store, hour = HistoryStore(Path(folder) / "history.sqlite", START), 0

        def add(step: int) -> None:
            held = {pod(name): Amounts(*amounts) for name, amounts in counted.items()}  # type: ignore[arg-type]
            store.add([CounterReading("n1", "a", 60.0 * step, held)], START + hour * HOUR + HOUR / 2)

        add(0)
        for step, (later, grown) in enumerate(steps, 1):
            hour += later
            for name, amounts in grown.items():
                counted[name] = [_plus(*two) for two in zip(counted[name], amounts, strict=True)]
                if begin <= hour <= begin + more:
                    before = expected.get(name, [None] * 3)
                    expected[name] = [_plus(*two) for two in zip(before, amounts, strict=True)]
            add(step)
        found = {
            dict(labels)["pod"]: amounts
            for labels, amounts in store.sums(*(START + at * HOUR for at in (begin, begin + more)))
        }
        store.close()
    # Amounts that did not grow in these hours have no row, or 0 of an earlier amount.
    for name, amounts in expected.items():
        assert [one or 0 for one in found.pop(name, Amounts(0, None, None))] == [one or 0 for one in amounts]
    assert not any(any(amounts) for amounts in found.values())


def _plus(before: float | None, more: float | None) -> float | None:
    return before if more is None else (before or 0) + more


def test_hours_are_deleted_after_400_days_and_names_with_them(store: HistoryStore) -> None:
    store.add([reading(0, 0, name="old")], START)
    store.add([reading(60, 60, name="old")], START + 60)
    store.add([reading(120, 60, name="new")], START + 120)
    for hour in range(1, KEPT_DAYS * 24 + 60):
        seconds = hour * HOUR
        store.add([reading(120 + seconds, 60 + seconds, name="new")], START + seconds, waiting=(60, 60))
    hours = store.hours(*EVER)
    # The hour in which it is now, and 400 days before it.
    assert (len(hours), hours[-1].hour - hours[0].hour) == (KEPT_DAYS * 24 + 1, KEPT_DAYS * 24)
    assert set(total(store)) == {"new"}
    with sqlite3.connect(store.path) as db:
        listed = [text for (text,) in db.execute("SELECT labels FROM series")]
        days = db.execute("SELECT count(*) FROM days").fetchone()[0]
    db.close()
    assert len(listed) == 1 and days <= KEPT_DAYS + 2


def test_a_clock_that_jumps_ahead_for_a_moment_deletes_two_hours_at_most(store: HistoryStore) -> None:
    for hour in range(50):
        store.add([reading(hour * HOUR, hour * HOUR)], START + hour * HOUR)
    before = len(store.hours(START, START + 50 * HOUR))
    for _ in range(5):
        store.add([], START + 900 * DAY)
    assert len(store.hours(START, START + 50 * HOUR)) == before - 2
    # The node's counters go on from where they were.
    store.add([reading(50 * HOUR, 50 * HOUR)], START + 50 * HOUR)
    [(_, amounts)] = store.sums(START + 10 * HOUR, EVER[1])
    assert amounts.held == 40 * HOUR


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_store_is_an_error_with_a_cure(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(Terminal, match="move the file away"):
        HistoryStore(path, START)
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(Terminal, match="format 99"):
        HistoryStore(path, START)


def test_a_folder_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Retryable):
        HistoryStore(tmp_path, START)


def test_two_processes_that_write_the_same_readings_count_them_once(tmp_path: Path) -> None:
    one, other = (HistoryStore(tmp_path / "history.sqlite", START + more) for more in (0, 5))
    for step in range(10):
        for each in (one, other):
            each.add([reading(60 * step, 60 * step)], START + 60 * step)
    assert (one.began, other.began) == (START, START)
    assert total(one) == total(other) == {"train": 540}
    one.close()
    other.close()


# -- the exporter's text -----------------------------------------------------------------------------------------------


def test_the_text_of_a_real_meter_is_read() -> None:
    meter = Meter()
    for second in (0, 100):
        gpu = GPUReading(uuid="GPU-0", active=0.25, energy_millijoules=second * 50_000)
        hold = Hold(who=PodContainer("ml", 'a"b\n', "main"), uuid="GPU-0", part=0.5)
        meter.read(NodeReading(at_ns=second * 10**9, gpus=(gpu,), holds=(hold,)))
    labels = {"gpu": "0", "UUID": "GPU-0"}
    names = MeterNames({"GPU-0": labels}, lambda who: {"team": "x"}, "sim-1", "f00", meter.seconds)
    text = exposition(families(meter.totals, names)).decode()
    [found] = read_counters(metric_lines(text, READ_METRICS))
    assert (found.node, found.life, found.seconds) == ("sim-1", "f00", 100)
    rest, own = sorted(found.counters, key=len)
    assert dict(own)["pod"] == 'a"b\n' and dict(own)["team"] == "x" and dict(rest) == labels
    assert found.counters[own] == Amounts(50, 25, 2500) and found.counters[rest] == Amounts(50, 0, 2500)


def test_a_text_without_the_meters_seconds_and_numbers_that_are_none_are_left_out() -> None:
    assert read_counters([("gpuplane_pod_gpu_held_seconds_total", {"pod": "a"}, 5.0)]) == []
    lines = [
        ("gpuplane_meter_seconds_total", {"node": "n", "life": "a"}, 5.0),
        ("gpuplane_pod_gpu_held_seconds_total", {"pod": "a"}, float("nan")),
        ("gpuplane_pod_gpu_held_seconds_total", {"pod": "b"}, float("inf")),
        ("gpuplane_pod_gpu_held_seconds_total", {"pod": "c"}, -1.0),
    ]
    assert read_counters(lines) == [CounterReading("n", "a", 5.0, {})]
