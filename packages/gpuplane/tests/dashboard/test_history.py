"""The recorder of sums: what it writes of the exporters, and the answers of `gpuplane cost` from its store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.cli.cost_source import SumsKind, from_exporters, grouping, read_sums
from gpuplane.dashboard.history import READ_SECONDS, HistoryRecorder, StoreSums
from gpuplane.metering.store import HistoryStore
from kubekit.api.core import Pod
from kubekit.api.meta import ObjectMeta
from kubekit.errors import KubekitError, NoAnswer, Retryable
from packages.gpuplane.tests.dashboard.exporters import BETWEEN_SECONDS, FakeExporter, Holding

START = 1_790_000_000.0
HOUR = 3600.0


class Exported:
    """A cluster without Prometheus whose exporters answer; `error` in place of an answer."""

    def __init__(self) -> None:
        gpus = {("n1", 0): [Holding("ml/tune-1", 0.3, 0.2, 2.0)], ("n1", 1): [Holding("ci/build-1", 1.0, 0.5, 2.0)]}
        self.exporter = FakeExporter(gpus)
        self.error: KubekitError | None = None

    async def list(self, kind: type, **selection: str) -> list[Pod]:
        return [Pod(metadata=ObjectMeta(name="one", namespace="gpu-operator"))]

    async def request(self, method: str, path: str, params: dict[str, str] | None = None) -> bytes:
        if path == "/api/v1/services":
            return b'{"items": []}'
        if self.error is not None:
            raise self.error
        body = (await self.exporter.metrics()).body
        return body if isinstance(body, bytes) else str(body).encode()


class Recording:
    """A recorder in a time that the test sets."""

    def __init__(self, store: Any) -> None:
        self.cluster: Any = Exported()
        self.now, self.waiting = START, 0
        self.store = store
        self.recorder = HistoryRecorder(
            self.cluster, store, lambda: self.waiting, lambda: self.now, lambda: self.now - START
        )
        self.sums = StoreSums(store, lambda: self.now)

    async def read(self, seconds: float = BETWEEN_SECONDS) -> None:
        self.now += seconds
        await self.recorder.read()


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    store = HistoryStore(tmp_path / "history.sqlite", START)
    yield Recording(store)
    store.close()


async def test_what_the_exporters_count_from_reading_to_reading_is_the_answer(recording: Recording) -> None:
    await recording.read()
    for _ in range(9):
        await recording.read()
    found = await recording.sums(grouping("pod"), "", HOUR)
    held = {use.names: use.held_seconds for use in found.uses}
    # The first reading finds a meter that is as old as the store, and counts from its beginning.
    seconds = 9 * BETWEEN_SECONDS
    assert held == {
        ("ml", "tune-1"): pytest.approx(0.3 * seconds, abs=0.3 * BETWEEN_SECONDS),
        ("ci", "build-1"): pytest.approx(seconds, abs=BETWEEN_SECONDS),
        (): pytest.approx(0.7 * seconds, abs=0.7 * BETWEEN_SECONDS),
    }
    assert held["ml", "tune-1"] == pytest.approx(0.3 * held["ci", "build-1"])
    assert recording.recorder.why == ""


@pytest.mark.parametrize("by", ["namespace", "owner", "pod", "gpu", "label=team"])
async def test_rows_are_those_of_the_exporters(recording: Recording, by: str) -> None:
    for _ in range(4):
        await recording.read()
    stored = await recording.sums(grouping(by), "", HOUR)
    read = await from_exporters(recording.cluster, grouping(by), "")
    assert {(use.names, use.node) for use in stored.uses} == {(use.names, use.node) for use in read.uses}
    own = await recording.sums(grouping(by), "ml", HOUR)
    theirs = await from_exporters(recording.cluster, grouping(by), "ml")
    assert {use.names for use in own.uses} == {use.names for use in theirs.uses}


async def test_the_store_goes_before_the_exporters_and_says_since_when(recording: Recording) -> None:
    for _ in range(4):
        await recording.read()
    found = await read_sums(recording.cluster, grouping("namespace"), "", 30 * 24 * HOUR, recording.sums)
    assert (found.kind, found.complete, found.since) == (SumsKind.STORE, False, START)
    recording.now += 40 * 24 * HOUR
    found = await read_sums(recording.cluster, grouping("namespace"), "", 30 * 24 * HOUR, recording.sums)
    assert (found.complete, found.since) == (True, recording.now - 30 * 24 * HOUR)


async def test_a_reading_that_failed_is_made_up_for_by_the_next(recording: Recording) -> None:
    await recording.read()
    recording.cluster.error = NoAnswer("refused")
    for _ in range(3):
        await recording.read()
    assert "no exporter of gpuplane answers" in recording.recorder.why
    recording.cluster.error = None
    await recording.read()
    assert recording.recorder.why == ""
    before = {use.names: use.held_seconds for use in (await recording.sums(grouping("pod"), "", HOUR)).uses}
    assert before["ci", "build-1"] >= BETWEEN_SECONDS


async def test_pods_that_wait_are_counted_for_the_time_between_readings(recording: Recording) -> None:
    recording.waiting = 4
    await recording.read()
    assert all(one.waiting is None for one in recording.store.hours(START, recording.now)), "no time has passed yet"
    await recording.read(60)
    recording.waiting = 0
    await recording.read(60)
    assert sum(one.waiting or 0 for one in recording.store.hours(START, recording.now)) == 2
    # After a pause of the process, the number of waiting pods is unknown.
    recording.waiting = 10
    await recording.read(10 * HOUR)
    [last] = recording.store.hours(recording.now, recording.now)
    assert last.waiting == 10
    counted = [one for one in recording.store.hours(START, recording.now) if one.waiting is not None]
    assert len(counted) == 2, "two readings' time at most, in the hour of the reading"
    assert READ_SECONDS < 10 * HOUR


class Full:
    """A store on a full disk."""

    began = START

    def __init__(self) -> None:
        self.tries = 0

    def add(self, *given: object, **more: object) -> None:
        self.tries += 1
        raise Retryable("the store of sums does not work: disk full", where="history.sqlite")


async def test_a_store_that_does_not_work_is_said_and_tried_again() -> None:
    store = Full()
    recording = Recording(store)
    for _ in range(2):
        await recording.read()
    assert store.tries == 2 and "disk full" in recording.recorder.why
