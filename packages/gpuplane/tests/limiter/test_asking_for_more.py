"""When a process asks the arbiter whether its turn goes on: early enough that launches wait for no answer."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuplane.limits.facts import GpuLimit, Limits, Owner
from packages.gpuplane.tests.limiter.arbiterclient import (
    DONE,
    GRANT,
    HELLO,
    MORE,
    OVER,
    PATIENCE_SECONDS,
    VERSION,
    WANT,
    WELCOME,
    WORD,
    Word,
)

TURN_NS = 20_000_000
LAUNCHES = """
context()
function = kernel(50)
while True:
    assert launch(function) == 0
    call("cuCtxSynchronize")
"""


class Arbiter:
    """An arbiter of one process, by the test: it grants every turn at once."""

    def __init__(self, machine: Any) -> None:
        limits = Limits((GpuLimit(uuid=machine.uuids[0], core=50),))
        self.share = Path(machine.store.write("a", limits, Owner(name="a")))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.settimeout(PATIENCE_SECONDS)
        folder = os.open(self.share, os.O_PATH)
        try:
            self._listener.bind(f"/proc/self/fd/{folder}/turns")
        finally:
            os.close(folder)
        self._listener.listen()
        self._process = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turn = 0

    def words(self, *, goes_on: bool) -> Iterator[Word]:
        """Each word of the process, answered: a turn goes on, or is over."""
        self._process.close()
        self._process, _ = self._listener.accept()
        self._process.settimeout(PATIENCE_SECONDS)
        while data := self._process.recv(WORD.size):
            word = Word._make(WORD.unpack(data))
            yield word
            if word.kind == HELLO:
                self._say(WELCOME)
            elif word.kind == WANT:
                self._turn += 1
                self._say(GRANT)
            elif word.kind == MORE:
                self._say(GRANT if goes_on else OVER)

    def _say(self, kind: int) -> None:
        self._process.send(WORD.pack(kind, VERSION, self._turn, TURN_NS, 0, 0))

    def close(self) -> None:
        self._process.close()
        self._listener.close()


@pytest.fixture
def arbiter(machine: Any) -> Iterator[Arbiter]:
    made = Arbiter(machine)
    yield made
    made.close()


def started(machine: Any, arbiter: Arbiter) -> subprocess.Popen[str]:
    variables = {"GPUPLANE_LIMITS": str(arbiter.share), "LD_LIBRARY_PATH": str(machine.libraries)}
    child: subprocess.Popen[str] = machine.start(LAUNCHES, variables)
    return child


def test_more_is_asked_for_before_a_turn_is_over(machine: Any, arbiter: Arbiter) -> None:
    started(machine, arbiter)
    # By the process's own clock. On a busy machine a question may be late, but not all of them.
    ends, left = TURN_NS, []
    for word in arbiter.words(goes_on=True):
        if word.kind == WANT:
            ends = TURN_NS
        elif word.kind == MORE:
            left.append(ends - word.time_ns)
            ends = word.time_ns + TURN_NS
        if len(left) == 100:
            break
    assert 0 < max(left) < TURN_NS // 2


def test_a_turn_that_will_not_go_on_is_used_to_its_end(machine: Any, arbiter: Arbiter) -> None:
    started(machine, arbiter)
    used, asked = [], False
    for word in arbiter.words(goes_on=False):
        # A turn in which the GPU was idle for a while has ended before.
        used += [word.time_ns] if word.kind == DONE and asked else []
        asked = word.kind == MORE
        if len(used) == 10:
            break
    assert min(used) >= TURN_NS
