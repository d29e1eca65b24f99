"""A file system that refuses: full from any call on, or read-only. One error with its cure, and nothing half done."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from gpuplane.host.errors import NotPermitted
from packages.gpuplane.tests.toolkit import mortal
from packages.gpuplane.tests.toolkit.machine import CASES, Machine, State, here
from packages.gpuplane.tests.toolkit.mortal import Call, Verdict

pytestmark = pytest.mark.skipif(not mortal.available(), reason="this kernel does not tell about system calls")


@pytest.fixture(autouse=True)
def quick_disk() -> None:
    """Flushes are calls like others here."""


def full(call: Call) -> Verdict | None:
    """A disk on which there is no room."""
    return errno.ENOSPC if call.name in mortal.ROOM else None


@pytest.mark.parametrize("case", ["containerd 2", "docker", "cri-o"])
def test_a_disk_that_is_full_from_any_call_on(machine: Callable[[str], Machine], case: str) -> None:
    first = machine(case)
    before = first.state()
    readable = first.readable()
    here(first, "configure")
    after = first.state()
    for work, begin in (("configure", before), ("unconfigure", after)):
        asks: list[int] = []
        first.like(f"{work} with room", begin).run(
            work, lambda call, asks=asks: asks.append(call.number) if call.name in mortal.ROOM else None
        )
        left: dict[Any, State] = {}
        for number in asks:
            found = first.like(f"{work} {number}", begin)
            _, said = found.run(work, lambda call, first=number: full(call) if call.number >= first else None)
            assert said.startswith("HostError: ")
            assert "no space left on device; free space on the file system" in said
            if work == "configure":  # the runtime has loaded each file that it may read
                assert found.readable() == found.loaded
                assert found.loaded in (readable, first.readable())
            state = found.state()
            left[state.key] = state
            shutil.rmtree(found.root)
        assert len(left) > 1
        for number, state in enumerate(left.values()):
            for way, end in (("configure", after), ("unconfigure", before)):
                again = first.like(f"{work} again {number} {way}", state)
                here(again, way)
                assert again.state().files == end.files
                assert again.loaded == again.readable()
                shutil.rmtree(again.root)


def read_only(machine: Machine) -> Callable[[Call], Verdict | None]:
    """All but /run is mounted read-only."""

    def judge(call: Call) -> Verdict | None:
        if call.name in ("kill", "fsync") or call.file.startswith(f"{machine.root}/run"):
            return None
        return errno.EROFS

    return judge


@pytest.mark.parametrize("case", CASES)
def test_a_read_only_file_system(machine: Callable[[str], Machine], case: str) -> None:
    found = machine(case)
    before = found.state()
    _, said = found.run("configure", read_only(found))
    assert said.startswith("HostError: ")
    assert "read-only file system; remount the file system read-write" in said
    assert found.state() == before
    here(found, "configure")
    after = found.state()
    _, said = found.run("unconfigure", read_only(found))
    assert "read-only file system; remount the file system read-write" in said
    assert found.readable() == after.loaded
    here(found, "unconfigure")
    assert found.state().files == before.files


def test_one_who_may_not_could_not_ask(machine: Callable[[str], Machine]) -> None:
    found = machine("docker")
    before = found.state()
    _, said = found.run("configure", lambda call: errno.EACCES if call.name in mortal.ROOM else None)
    assert said.startswith("NotPermitted: ")
    assert said.endswith("permission denied; run as root, in a privileged container on a node")
    assert NotPermitted.exit_code == 3
    assert found.state() == before
