"""`gpuplane up` that is interrupted or killed at any moment, and what the next commands make of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpulab.distribution import GPUPLANE
from tinykube.cluster import processes
from tinykube.cluster.directory import ClusterDirectory

# Sends this process a signal at the first event of the interpreter whose words have both texts.
COMMAND = """
import os, sys
number, event, text = int(sys.argv.pop(1)), sys.argv.pop(1), sys.argv.pop(1)
waits = True
def hook(name, given):
    global waits
    if waits and name == event and any(text in str(one) for one in given):
        waits = False
        os.kill(os.getpid(), number)
sys.addaudithook(hook)
from gpuplane.cli.main import run
run()
"""
UP = ("up", "--detach", "--name", "c", "--node", "cpu-ubuntu24")


class Shell:
    """A user's shell with a directory of clusters of its own."""

    def __init__(self, home: Path) -> None:
        self.directory = ClusterDirectory(GPUPLANE, "c", home)
        self._environment = os.environ | {"GPUPLANE_HOME": str(home), "COLUMNS": "80"}

    def gpuplane(self, *words: str, code: int = 0) -> str:
        return self._run("-m", "gpuplane", *words, code=code)

    def signalled(self, number: signal.Signals, event: str, text: str, *words: str, code: int) -> str:
        """Run a command that gets a signal at an event of the interpreter."""
        return self._run("-c", COMMAND, str(int(number)), event, text, *words, code=code)

    def left(self) -> list[str]:
        """Return the files of the home, and the processes of its cluster."""
        files = [str(path) for path in sorted(self.directory.base.rglob("*")) if path.name != "clusters"]
        return files + [str(pid) for pid in processes.family_of_directory(self.directory.path)]

    def _run(self, *words: str, code: int) -> str:
        done = subprocess.run(
            [sys.executable, *words], env=self._environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "home")


@pytest.mark.parametrize(
    ("number", "event", "text"),
    [
        (signal.SIGINT, "os.rename", "cluster.json"),
        (signal.SIGINT, "subprocess.Popen", "cluster-supervisor"),
        (signal.SIGINT, "socket.connect", "127.0.0.1"),
        (signal.SIGTERM, "socket.connect", "127.0.0.1"),
    ],
)
def test_after_an_interruption_nothing_is_left(shell: Shell, number: signal.Signals, event: str, text: str) -> None:
    said = shell.signalled(number, event, text, *UP, code=130)
    assert "interrupted: cluster c is stopped, nothing of it is left" in said
    assert shell.left() == []
    assert "no embedded cluster" in shell.gpuplane("ls")


def test_an_interruption_keeps_the_files_of_an_earlier_run(shell: Shell) -> None:
    shell.gpuplane(*UP)
    shell.gpuplane("down", "--keep-files")
    said = shell.signalled(signal.SIGINT, "socket.connect", "127.0.0.1", *UP, code=130)
    assert "gpuplane down c removes its files" in said
    assert shell.directory.spec_file.exists() and not processes.family_of_directory(shell.directory.path)
    shell.gpuplane("down", "c")
    assert shell.left() == []


@pytest.mark.parametrize(
    ("event", "text"),
    [("open", ".cluster.json"), ("os.mkdir", "/logs"), ("subprocess.Popen", "cluster-supervisor")],
)
def test_after_a_kill_the_next_up_starts_the_cluster_and_down_clears_it(shell: Shell, event: str, text: str) -> None:
    shell.signalled(signal.SIGKILL, event, text, *UP, code=-signal.SIGKILL)
    assert "cluster c answers" in shell.gpuplane(*UP)
    assert " running " in shell.gpuplane("ls")
    shell.gpuplane("down", "c")
    assert shell.left() == []


def test_a_killed_up_is_listed_with_what_to_do_and_down_clears_it(shell: Shell) -> None:
    shell.signalled(signal.SIGKILL, "open", "supervisor.log", *UP, code=-signal.SIGKILL)
    said = shell.gpuplane("ls")
    assert "stopped" in said and "gpuplane up --name c, or down c" in said
    shell.gpuplane("down")
    assert shell.left() == []


def test_a_cluster_whose_up_was_killed_late_runs_and_is_told_so(shell: Shell) -> None:
    shell.signalled(signal.SIGKILL, "os.rename", "c.kubeconfig", *UP, code=-signal.SIGKILL)
    assert "cluster c runs already" in shell.gpuplane(*UP, code=1)
    assert " running " in shell.gpuplane("ls")
    shell.gpuplane("down")
    assert shell.left() == []
