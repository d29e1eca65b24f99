"""Killed at any of its writing system calls: what is on the host is whole, and both ways lead on."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import pytest

from packages.gpuplane.tests.toolkit import mortal
from packages.gpuplane.tests.toolkit.machine import CASES, Machine, State, Tree, here
from packages.gpuplane.tests.toolkit.mortal import Call, Do

pytestmark = pytest.mark.skipif(not mortal.available(), reason="this kernel does not tell about system calls")


@pytest.fixture(autouse=True)
def quick_disk() -> None:
    """Flushes are calls like others here."""


def each_state(machine: Machine, work: str) -> dict[Any, tuple[str, State]]:
    """The host as a death before each call of `work`, and within each write, would leave it: each different state once.

    One life shows them all, since nothing changes while the child waits for our word.
    """
    states: dict[Any, tuple[str, State]] = {}

    def keep(when: str) -> None:
        state = machine.state()
        states.setdefault(state.key, (when, state))

    def judge(call: Call) -> None:
        keep(f"{call.number} {call.name} {call.path}")
        if call.name == "write":
            with call.half_way():
                keep(f"{call.number} half a write")

    status, said = machine.run(work, judge)
    assert status == 0, said
    keep("the end")
    return states


def whole_files(found: Tree, old: Tree, new: Tree) -> None:
    """Each file is as before or as after, and what else is there is one that never got its name."""
    for path, entry in found.items():
        if entry[0] == "file" and not path.endswith(".gpuplane") and not path.startswith(("var/lib/gpuplane", "run/")):
            assert entry in (old.get(path), new.get(path)), path
    assert old.keys() & new.keys() <= found.keys()


def differing(states: Iterable[tuple[str, State]], case: str) -> list[tuple[str, State]]:
    """Return the states from which another way leads on. A file that never got its name matters to cri-o's alone: where
    it should lie in the directory that is read whole, it would be read."""
    found: dict[Any, tuple[str, State]] = {}
    for when, state in states:
        same = tuple(
            (path, (path.endswith(".gpuplane") and case != "cri-o") or entry) for path, entry in state.files.items()
        )
        found.setdefault((same, state.key[1]), (when, state))
    return list(found.values())


@pytest.mark.parametrize("case", CASES)
def test_a_death_at_any_call_leaves_whole_files_and_both_ways_open(
    machine: Callable[[str], Machine], case: str
) -> None:
    first = machine(case)
    before = first.state()
    here(first, "configure")
    after = first.state()
    assert after.files != before.files
    assert first.loaded == first.readable()
    for work, begin in (("configure", before), ("unconfigure", after)):
        states = each_state(first.like(work, begin), work)
        assert len(states) > 20
        for _, state in states.values():
            whole_files(state.files, before.files, after.files)
        for number, (when, state) in enumerate(differing(states.values(), case)):
            for way, goal in (("configure", after), ("unconfigure", before)):
                found = first.like(f"{work} {number} {way}", state)
                here(found, way)
                assert found.state().files == goal.files, when
                assert found.loaded == found.readable(), when
                shutil.rmtree(found.root)


def test_a_killed_process_leaves_what_was_there_when_it_was_killed(machine: Callable[[str], Machine]) -> None:
    first = machine("docker, no file")  # what it shows is of the test above, so the shortest life will do
    before = first.state()
    here(first, "configure")
    for work, begin in (("configure", before), ("unconfigure", first.state())):
        states = each_state(first.like(work, begin), work)
        expected = {key for key, (when, _) in states.items() if "half" not in when}
        killed = set()
        for number in count():
            found = first.like(f"{work} killed {number}", begin)
            status, said = found.run(work, lambda call, last=number: Do.DIE if call.number == last else None)
            killed.add(found.state().key)
            shutil.rmtree(found.root)
            if status == 0:
                break
            assert status == -signal.SIGKILL, said
        assert killed == expected
        assert number > 20
