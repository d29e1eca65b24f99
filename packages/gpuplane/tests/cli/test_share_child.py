"""The command of `gpuplane share run`: exit codes, signals, the environment of a process."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gpuplane.cli import share_child
from kubekit.errors import Terminal


def follow(*argv: str) -> int:
    return share_child.start(argv, os.environ).follow(lambda: None, every=0.05)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_commands_exit_code_is_ours(script: str, code: int) -> None:
    assert follow("sh", "-c", script) == code


def test_a_command_that_is_not_there_is_127_and_one_that_cannot_run_is_126(tmp_path: Path) -> None:
    with pytest.raises(Terminal) as missing:
        share_child.start(["no-such-command-at-all"], os.environ)
    assert missing.value.exit_code == 127
    data = tmp_path / "data"
    data.write_text("no program")
    with pytest.raises(Terminal) as refused:
        share_child.start([str(data)], os.environ)
    assert refused.value.exit_code == 126
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGTERM}


def test_the_command_has_the_signals_that_we_were_started_with(capfd: pytest.CaptureFixture[str]) -> None:
    assert follow("sh", "-c", "grep -E '^Sig(Blk|Ign)' /proc/self/status") == 0
    states = dict(line.split(":\t") for line in capfd.readouterr().out.splitlines())
    assert int(states["SigBlk"], 16) == 0
    assert not int(states["SigIgn"], 16) & (1 << (signal.SIGPIPE - 1))


RUNNER = """
import os, sys
from gpuplane.cli import share_child
child = share_child.start(["sh", "-c", sys.argv[1]], os.environ)
sys.exit(child.follow(lambda: print("tick", flush=True), every=0.02))
"""


def runner(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(RUNNER), script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2"])
def test_a_signal_that_somebody_sends_us_reaches_the_command(name: str) -> None:
    with runner(f"trap 'echo got; exit 9' {name}; echo ready; while :; do sleep 0.05; done") as process:
        assert process.stdout is not None
        while "ready" not in process.stdout.readline():
            pass
        process.send_signal(getattr(signal, f"SIG{name}"))
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 9
        assert output.count("got") == 1


def test_what_the_terminal_sends_arrives_once() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        script = "trap 'echo got' INT; echo ready; while :; do sleep 0.05; done"
        os.execv(sys.executable, [sys.executable, "-c", RUNNER, script])
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    while b"got" not in seen:
        seen += os.read(terminal, 1024)
    os.kill(pid, signal.SIGTERM)
    with contextlib.suppress(OSError):  # a terminal without processes reads as broken
        while part := os.read(terminal, 1024):
            seen += part
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM
    assert seen.count(b"got") == 1


def test_the_limits_are_looked_after_while_the_command_runs() -> None:
    with runner("read line; exit 3") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["tick\n"] * 3
        process.communicate("go\n", timeout=20)
        assert process.returncode == 3
