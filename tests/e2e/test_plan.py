"""Every spec is judged, whatever the attempts end in, and a measurement that was broken off goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.e2e import rung
from tests.e2e.judging import judge
from tests.e2e.ledger import Ledger
from tests.e2e.plan import TURNS, Batch, Kind, Rules, kind, next_batch
from tests.e2e.reports import Outcome, Spec

QUICK = [f"[sig-node] Pods should be quick {number} [Conformance]" for number in range(7)]
LONG = [
    "[sig-apps] CronJob should replace jobs when ReplaceConcurrent [Conformance]",
    "[sig-node] A [Slow] [Conformance]",
]
ALONE = ["[sig-apps] Daemon set [Serial] should run [Conformance]", "[sig-node] Taints [Disruptive] [Conformance]"]
NAMES = [*QUICK, *LONG, *ALONE]
LISTED = {QUICK[0], LONG[1]}
RULES = Rules(piece=3, processes=2)
OUTCOMES = st.sampled_from(Outcome)


def add(attempts: dict[str, list[Outcome]], batch: Batch, outcome: Outcome) -> None:
    for name in batch.names:
        attempts.setdefault(name, []).append(outcome)


def test_kinds() -> None:
    assert [{kind(name) for name in names} for names in (QUICK, LONG, ALONE)] == [{one} for one in Kind]


def test_specs_that_pass_run_once_those_alone_without_neighbours_and_the_listed_ones_last() -> None:
    attempts: dict[str, list[Outcome]] = {}
    batches = []
    while batch := next_batch(NAMES, attempts, LISTED, RULES):
        batches.append((batch.names, batch.processes))
        add(attempts, batch, Outcome.PASSED)
    assert batches == [
        (tuple(QUICK[1:4]), 2),
        (tuple(QUICK[4:7]), 2),
        (tuple(LONG[:1]), 2),
        (tuple(ALONE), 1),
        ((QUICK[0], LONG[1]), 2),
    ]


def test_what_was_cut_off_gets_time_and_what_failed_solitude() -> None:
    first, second, third = QUICK[:3]
    attempts = {first: [Outcome.PASSED], second: [Outcome.FAILED], third: [Outcome.CUT_OFF]}
    batch = next_batch(QUICK[:3], attempts, (), RULES)
    assert batch is not None and (batch.names, batch.processes) == ((third,), 2)
    add(attempts, batch, Outcome.FAILED)
    batch = next_batch(QUICK[:3], attempts, (), RULES)
    assert batch is not None and (batch.names, batch.processes) == ((second,), 1)
    add(attempts, batch, Outcome.FAILED)
    assert next_batch(QUICK[:3], attempts, (), RULES) is None


@given(st.data())
def test_a_measurement_ends_and_no_spec_is_begun_a_third_time(data: st.DataObject) -> None:
    """This holds for all outcomes of specs, and for any number of batches that the end of the time cuts off."""
    rules = Rules(
        piece=data.draw(st.integers(1, 12)), processes=data.draw(st.integers(1, 4)), again=data.draw(st.booleans())
    )
    listed = data.draw(st.sets(st.sampled_from(NAMES)))
    attempts: dict[str, list[Outcome]] = {}
    for _ in range(len(NAMES) * (TURNS + 2)):
        batch = next_batch(NAMES, attempts, listed, rules)
        if batch is None:
            break
        assert batch.names and len(set(batch.names)) == len(batch.names)
        assert batch.processes == 1 or not any(kind(name) is Kind.ALONE for name in batch.names if name not in listed)
        for name in batch.names:
            attempts.setdefault(name, []).append(data.draw(OUTCOMES))
    assert next_batch(NAMES, attempts, listed, rules) is None
    for name in NAMES:
        begun = [outcome for outcome in attempts[name] if outcome is not Outcome.NOT_BEGUN]
        assert len(begun) <= (1 if name in listed or not rules.again else 2)
        assert begun or len(attempts[name]) == (1 if name in listed else TURNS)
        assert Outcome.PASSED not in begun[:-1]


class Broken(Exception):
    pass


def test_a_broken_off_measurement_goes_on_with_the_specs_that_are_left(tmp_path: Path) -> None:
    runs: list[tuple[str, ...]] = []

    def run(batch: Batch, kubeconfig: Path, folder: Path) -> Sequence[Spec]:
        if len(runs) == 1:
            raise Broken
        runs.append(batch.names)
        return [Spec(name, Outcome.PASSED, 1.0) for name in batch.names]

    def measure(ledger: Ledger) -> None:
        rung.measure(QUICK, tmp_path, ledger, (), RULES, say=lambda _: None, run=run)

    with pytest.raises(Broken):
        measure(Ledger(tmp_path))
    runs.append(())
    resumed = Ledger(tmp_path, resume=True)
    measure(resumed)
    assert [name for names in runs for name in names] == QUICK
    assert {spec.outcome for spec in judge(QUICK, resumed.specs)} == {Outcome.PASSED}
    assert Ledger(tmp_path).specs == []


def test_a_measurement_ends_when_its_time_is_over(tmp_path: Path) -> None:
    lines: list[str] = []
    ledger = Ledger(tmp_path)
    rung.measure(QUICK, tmp_path, ledger, (), RULES, seconds=-1, say=lines.append)
    assert ledger.specs == [] and lines == ["stopped after 0 s; --resume goes on"]


def test_a_file_of_something_else_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "specs.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="has no attempts"):
        Ledger(tmp_path, resume=True)
