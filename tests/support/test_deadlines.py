"""A test that hangs is ended: in every phase, in a rerun, with signals ignored, and in C code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIGURATION = """
[pytest]
addopts = -p tests.support.deadlines -p no:cacheprovider --tb=short
deadline = 1
deadline_grace = 30
"""


def outcome(directory: Path, test: str, *options: str) -> str:
    """Return the output of a pytest run that must end by itself, as a process that ignores what can be ignored."""
    (directory / "pytest.ini").write_text(CONFIGURATION)
    (directory / "test_it.py").write_text(test)

    def deaf() -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_it.py"],
        cwd=directory,
        # To import plugins that are not needed takes half of such a run's time.
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        preexec_fn=deaf,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_a_hang_is_ended_in_each_phase_and_the_other_tests_run(tmp_path: Path) -> None:
    said = outcome(
        tmp_path,
        """
import asyncio, threading, pytest
@pytest.fixture
def slow_setup(): threading.Event().wait()
@pytest.fixture
def slow_teardown():
    yield
    threading.Event().wait()
def test_setup(slow_setup): pass
def test_teardown(slow_teardown): pass
async def test_call():
    async def waits_for_godot(): await asyncio.Event().wait()
    await asyncio.create_task(waits_for_godot())
def test_quick(): pass
@pytest.mark.deadline(30)
def test_with_more_time(): threading.Event().wait(1.5)
""",
        *(
            "-p",
            "pytest_asyncio.plugin",
            "-o",
            "asyncio_mode=auto",
            "-o",
            "asyncio_default_fixture_loop_scope=function",
        ),
    )
    for phase in ("setup", "call", "teardown"):
        assert f"{phase} did not end within 1 s" in said
    assert "in waits_for_godot" in said
    assert "1 failed, 3 passed, 2 errors" in said


def test_a_rerun_has_a_deadline_too(tmp_path: Path) -> None:
    said = outcome(
        tmp_path, "import threading\ndef test_it(): threading.Event().wait()\n", "-p", "rerunfailures", "--reruns", "2"
    )
    assert "1 failed, 2 rerun" in said


@pytest.mark.parametrize("where", ["in C", "in a callback that catches everything"])
def test_what_no_exception_reaches_ends_with_its_process_and_is_named(tmp_path: Path, where: str) -> None:
    stuck = {
        "in C": """
import ctypes
def test_stuck():
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    while True: libc.pthread_mutex_lock(mutex)
""",
        "in a callback that catches everything": """
import threading
def test_stuck():
    while True:
        try: threading.Event().wait()
        except BaseException: pass
""",
    }[where]
    said = outcome(tmp_path, stuck + "def test_other(): pass\n", "-o", "deadline_grace=0.5", "-p", "xdist", "-n", "1")
    assert "crashed while running 'test_it.py::test_stuck'" in said
    assert "in test_stuck" in said, "the stack of the thread"
    assert "1 failed, 1 passed" in said
