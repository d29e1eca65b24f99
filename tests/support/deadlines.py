"""End a test that hangs: a pytest plugin. Each phase of each attempt has its own deadline.

Setup, call and teardown of a test may take the seconds of the ini option `deadline`, or of the marker
`@pytest.mark.deadline(seconds)`. A rerun starts with all of its time. Two timers watch a phase:

- SIGALRM raises in the main thread, again every REPEAT_SECONDS, because an event loop catches what its callbacks raise.
  The failure has the stacks of asyncio's tasks. It works where signals are ignored or blocked, as under `nohup`.
- A thread of faulthandler ends the process where SIGALRM did not help: a call into C that never returns. It prints the
  stacks of all threads. pytest-xdist reports the test as failed and goes on with another worker.
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import pytest

REPEAT_SECONDS: Final = 10.0
GRACE_SECONDS: Final = 60.0
_STDERR: Final = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("deadline", "seconds that each phase of a test may take", default="120")
    parser.addini("deadline_grace", "seconds after which a phase ends with its process", default=str(GRACE_SECONDS))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "deadline(seconds): what each phase of this test may take")
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # what a dying process prints into a captured file is lost
        config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_STDERR])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _deadline(item, "setup"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _deadline(item, "call"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with _deadline(item, "teardown"):
        return (yield)


@contextmanager
def _deadline(item: pytest.Item, phase: str) -> Iterator[None]:
    marker = item.get_closest_marker("deadline")
    seconds = float(marker.args[0] if marker else item.config.getini("deadline"))
    grace = float(item.config.getini("deadline_grace"))

    def passed(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"{phase} did not end within {seconds:g} s\n{_tasks()}")

    before = signal.signal(signal.SIGALRM, passed)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    faulthandler.dump_traceback_later(seconds + grace, exit=True, file=item.config.stash[_STDERR])
    signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def _tasks() -> str:
    """Return the stacks of the tasks of the loop that the signal interrupted."""
    text = io.StringIO()
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no loop runs
        return ""
    for task in tasks:
        task.print_stack(file=text)
    return text.getvalue()
