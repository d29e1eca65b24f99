"""End what a test run leaves running, however the run ends: a pytest plugin.

Clusters are detached from their starter, so they survive a run that is killed. Therefore a process of its own
waits for the end of the run (`python -m tests.support.leftovers DIRECTORY`): its standard input is a pipe that only
the run holds open. Then it kills every process of the run, which it finds by the run's directory in the process's
environment or mounts. It has a session of its own, so that Ctrl-C and a closed terminal do not reach it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tinykube.cluster import processes
from tinykube.kubelet.containers import MARK

PATIENCE_SECONDS: Final = 20.0
_WATCH: Final = pytest.StashKey["subprocess.Popen[bytes]"]()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the process that waits; before pytest-xdist starts its workers, which are a part of the run."""
    worker = hasattr(session.config, "workerinput")
    _take_signals(worker)
    if worker:
        return
    factory: Any = session.config._tmp_path_factory  # type: ignore[attr-defined]
    directory = factory.getbasetemp()
    os.environ[MARK] = f"{directory}/"
    session.config.stash[_WATCH] = subprocess.Popen(
        [sys.executable, "-m", __name__, str(directory)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    watch = config.stash.get(_WATCH, None)
    if watch is not None:
        watch.communicate(timeout=2 * PATIENCE_SECONDS)


def _take_signals(worker: bool) -> None:
    """Have SIGTERM and SIGHUP end the run. A signal that was ignored, as under `nohup`, does nothing to the run.

    But tests and their children start with the defaults: an ignored signal would be ignored by every child too, and a
    shell cannot trap it. A terminal that closes sends SIGHUP to workers too: the run decides for them.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN or (worker and number == signal.SIGHUP):
            signal.signal(number, _nothing)
        elif number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, _terminated)


def _nothing(*_: object) -> None:
    """Handle a signal that is to have no effect."""


def _terminated(*_: object) -> None:
    """End the run as Ctrl-C does, also where SIGINT is ignored, as in the background of a script."""
    raise KeyboardInterrupt


def end(directory: Path) -> None:
    """Kill the processes of a run until there is none."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        found = processes.of_directory(directory)
        found = (found | processes.descendants(found)) - {os.getpid()}
        if not processes.kill(found):
            return
        time.sleep(0.02)


if __name__ == "__main__":
    for ignored in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end(Path(sys.argv[1]))
