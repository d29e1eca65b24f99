"""`gpuplane top` as a user gets it: in a pseudo-terminal of 80 columns, once in a pipe, and within its window."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cli.status_views import WaitingPod
from gpuplane.cli.terminal import Console
from gpuplane.cli.top.rows import gpu_rows, node_rows, pod_rows
from gpuplane.cli.top.text import top_lines
from gpuplane.cli.top.view import RowKind, TopView, shown_rows
from gpuplane.cli.use_reading import MeasuredUse
from gpuplane.metering.use import GPUUse
from packages.gpuplane.tests.cli.status_clusters import gpuplane
from packages.gpuplane.tests.cli.status_objects import gpunode, overview, share
from packages.gpuplane.tests.dashboard.scene import cluster

COLUMNS, LINES = 80, 24
COLOUR = re.compile(r"\x1b\[\d*m")
NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)


class Terminal:
    """A pseudo-terminal with a command in it."""

    def __init__(self, master: int, process: asyncio.subprocess.Process) -> None:
        self.master, self.process, self.written = master, process, b""
        asyncio.get_running_loop().add_reader(master, self._read)
        self._news = asyncio.Event()

    def _read(self) -> None:
        try:
            self.written += os.read(self.master, 1 << 16)
        except OSError:
            asyncio.get_running_loop().remove_reader(self.master)
        self._news.set()

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    @property
    def window(self) -> list[str]:
        """The lines of the last complete drawing, without colours."""
        frames = self.written.decode(errors="replace").split("\x1b[H")
        complete = [frame for frame in frames[1:] if "\x1b[J" in frame]
        text = complete[-1].partition("\x1b[J")[0] if complete else ""
        return [COLOUR.sub("", line).replace("\x1b[K", "") for line in text.split("\r\n")]

    async def until(self, wanted: Callable[[str], bool]) -> str:
        async with asyncio.timeout(100):
            while not wanted(text := "\n".join(self.window)):
                self._news.clear()
                await self._news.wait()
        return text


@contextlib.asynccontextmanager
async def started(tmp_path: Path, *arguments: str) -> AsyncIterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpuplane", "top", "--kubeconfig", str(tmp_path / "config"), *arguments),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        asyncio.get_running_loop().remove_reader(master)
        os.close(master)


@pytest.mark.deadline(300)
async def test_in_a_terminal_of_eighty_columns(tmp_path: Path) -> None:
    async with cluster(tmp_path), started(tmp_path) as terminal:
        text = await terminal.until(lambda text: "idle" in text and "0%!" in text)
        lines = terminal.window
        assert len(lines) == LINES and max(map(len, lines)) <= COLUMNS
        first = lines[0]
        assert first.startswith("prod 80 GPUs") and "held 49%" in first and "waiting 2" in first
        order = [line for line in lines if line.startswith(" gpu-")]
        assert order[0].startswith(" gpu-t-02/3") and "Xid 79" in order[0]
        assert order[1].startswith(" gpu-t-04/1")
        assert {line.split()[0] for line in order if "idle" in line} == {"gpu-h-02/0", "gpu-h-02/3", "gpu-h-06/1"}
        assert "healthy and hidden" in text and "0%!" in text and "waits" in text
        terminal.press("n")
        await terminal.until(lambda text: " NODE " in text and "gpu-h-08" in text)
        terminal.press("p/tune-42\r")
        await terminal.until(lambda text: " POD " in text and "default/tune-42" in text and "ml/" not in text)
        terminal.press("e")
        text = await terminal.until(lambda text: "can ever run: yes" in text)
        assert "cure" in text and max(map(len, terminal.window)) <= COLUMNS
        terminal.press("xq")
        assert await terminal.process.wait() == 0
        written = terminal.written.decode(errors="replace")
        assert written.startswith("\x1b[?1049h") and written.count("\x1b[?1049l") == 1


@pytest.mark.deadline(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_leaves_the_terminal_as_it_was(tmp_path: Path, number: signal.Signals) -> None:
    async with cluster(tmp_path), started(tmp_path) as terminal:
        await terminal.until(lambda text: "prod" in text)
        assert not termios.tcgetattr(terminal.master)[3] & termios.ECHO
        terminal.process.send_signal(number)
        assert await terminal.process.wait() == 0
        assert termios.tcgetattr(terminal.master)[3] & termios.ECHO
        assert b"\x1b[?1049l" in terminal.written


async def test_once_in_a_pipe_and_as_json(tmp_path: Path) -> None:
    async with cluster(tmp_path):
        code, out, err = await gpuplane(tmp_path, "top", "--once")
        assert (code, err) == (0, "") and "\x1b" not in out
        assert "gpu-t-02/3" in out and "gpu-h-01/0" not in out and "92%" not in out
        assert "hidden; --all lists all" in out and ": gpuplane explain " in out and " -n " in out
        code, out, _ = await gpuplane(tmp_path, "top", "-a", "--filter", "gpu-h-01/0", "-o", "json")
        [row] = json.loads(out)["rows"]
        assert (code, row["name"], row["busy"], row["matter"]) == (0, "gpu-h-01/0", 92, "none")
        code, out, _ = await gpuplane(tmp_path, "top", "-a", "--filter", "gpu-t-03/3", "-o", "json")
        [row] = json.loads(out)["rows"]
        assert (row["held"], row["busy"], row["holders"]) == (0, None, []), "each row has each field"
        code, out, _ = await gpuplane(tmp_path, "top", "pods", "--sort", "name", "--once")
        assert "default/tune-42" in out and "ml/serve-1-0-30" in out


EVIL = "a\x1b[2J\u202e<b>" + "x" * 200


@given(
    st.integers(20, 200), st.integers(3, 60), st.sampled_from(RowKind), st.booleans(), st.integers(0, 9), st.booleans()
)
def test_no_line_is_wider_than_the_window_and_no_control_character_passes(
    columns: int, lines: int, what: RowKind, colours: bool, at: int, explained: bool
) -> None:
    nodes = [gpunode(f"node-{number}-{'y' * 50 * number}", sick=number == 1) for number in range(4)]
    pods = [share("p" * 60 + str(number), nodes[number].metadata.name, 40, 1, 0) for number in range(4)]
    seen = overview(nodes, pods, {node.metadata.name: 2 for node in nodes})
    seen = msgspec.structs.replace(seen, waiting_pods=(WaitingPod(EVIL, "2026-11-20T10:00:00Z"),), waiting=1)
    use = MeasuredUse({nodes[0].status.gpus[0].uuid: GPUUse("n", 0, 0.0, 1, 1, 90, 5000)}, EVIL, "x", (EVIL,))
    rows = gpu_rows(seen, use)
    rows = {RowKind.GPUS: rows, RowKind.NODES: node_rows(rows, seen), RowKind.PODS: pod_rows(rows, seen)}[what]
    view = TopView(what, all=True, at=min(at, len(rows) - 1), text=(EVIL,) if explained else (), has_keys=explained)
    screen = Console(io.StringIO(), io.StringIO(), colour="always" if colours else "never")
    found = top_lines(EVIL, seen, use, shown_rows(rows, view), view, screen, (columns, lines), NOW)
    plain = [COLOUR.sub("", line) for line in found]
    assert len(found) == lines and all(len(line) <= max(40, columns) for line in plain)
    assert not any(ord(char) < 32 for line in plain for char in line)


def test_of_eight_thousand_gpus_a_key_draws_a_window() -> None:
    """benchmarks/top.py measures how long that takes."""
    nodes = [gpunode(f"gpu-node-{number:04}", gpus=8) for number in range(1000)]
    seen = overview(nodes, [], {node.metadata.name: 8 for node in nodes})
    view = TopView(all=True, at=7999)
    rows = shown_rows(gpu_rows(seen, MeasuredUse()), view)
    screen = Console(io.StringIO(), io.StringIO(), colour="never")
    found = top_lines("prod", seen, MeasuredUse(), rows, view, screen, (80, 24), NOW)
    assert len(found) == 24 and any("gpu-node-0999/7" in line for line in found)
