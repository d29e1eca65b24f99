"""A test run leaves no process behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.until import until
from tinykube.cluster import processes

ROOT = Path(__file__).parents[2]
# A process as those of a cluster: in a session of its own, and its parent is gone.
TEST = """
import os, subprocess, sys, threading
from pathlib import Path
def test_it():
    detached = "import os, time; from pathlib import Path; os.fork() and os._exit(0); os.setsid();" \\
        "Path('pid.tmp').write_text(str(os.getpid())); os.rename('pid.tmp', 'pid'); time.sleep(3600)"
    subprocess.run([sys.executable, "-c", detached], check=True)
    Path("worker").write_text(str(os.getpid()))
    if "HANG" in os.environ: threading.Event().wait()
"""
WORKER = ("-p", "xdist", "-n", "1")
NOHUP = """
import os, signal, subprocess, sys
def test_it():
    os.kill(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGHUP)
    child = "import os, signal; os.kill(os.getpid(), signal.SIGHUP)"
    assert subprocess.run([sys.executable, "-c", child]).returncode == -signal.SIGHUP
"""


def start(
    directory: Path, *options: str, test: str = TEST, hang: bool = False, ignored: tuple[signal.Signals, ...] = ()
) -> subprocess.Popen[bytes]:
    (directory / "pytest.ini").write_text("[pytest]\naddopts = -p tests.support.leftovers -p no:cacheprovider\n")
    (directory / "test_it.py").write_text(test)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    # To import plugins that are not needed takes half of such a run's time.
    environment = {**ours, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if hang:
        environment["HANG"] = "1"
    arguments = [sys.executable, "-m", "pytest", "-q", f"--basetemp={directory}/run", *options, "test_it.py"]

    def ignore() -> None:
        for number in (signal.SIGINT, *ignored):
            signal.signal(number, signal.SIG_IGN)

    return subprocess.Popen(arguments, cwd=directory, env=environment, stdout=subprocess.DEVNULL, preexec_fn=ignore)


def is_gone(file: Path) -> Callable[[], bool]:
    pid = int(file.read_text())
    return lambda: processes.started(pid) is None


async def test_what_a_test_forgot_is_gone_when_the_run_ends(tmp_path: Path) -> None:
    assert start(tmp_path).wait(60) == 0
    assert is_gone(tmp_path / "pid")()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
async def test_what_a_killed_run_started_goes_with_it(tmp_path: Path, number: signal.Signals) -> None:
    run = start(tmp_path, *WORKER, hang=True)
    await until((tmp_path / "worker").exists, seconds=60)
    run.send_signal(number)
    run.wait(60)
    await until(is_gone(tmp_path / "pid"))
    await until(is_gone(tmp_path / "worker"))


@pytest.mark.parametrize("options", [(), WORKER], ids=["one process", "a worker"])
def test_under_nohup_a_run_goes_on_and_its_children_know_nothing_of_it(tmp_path: Path, options: tuple[str]) -> None:
    assert start(tmp_path, *options, test=NOHUP, ignored=(signal.SIGHUP,)).wait(60) == 0
