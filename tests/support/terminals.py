"""Programs on a terminal of this process, as a person sees them."""

from __future__ import annotations

import asyncio
import codecs
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

PATIENCE_SECONDS: Final = 120.0
_CODES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A program on a terminal. `text` is all that it wrote."""

    def __init__(self, process: asyncio.subprocess.Process, handle: int) -> None:
        self.process = process
        self.text = ""
        self._handle = handle
        # NB: one read may end within a character, or between the two that end a line.
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._more = asyncio.Event()
        asyncio.get_running_loop().add_reader(handle, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._handle, 65536)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._handle)
        self.text = (self.text + self._decode(data, final=not data)).replace("\r\n", "\n")
        self._more.set()

    def type(self, text: str) -> None:
        """Press keys; `\\t` is the tab, `\\r` the end of a line."""
        os.write(self._handle, text.encode())

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that the program writes."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():
                await self._more.wait()
                self._more.clear()

    def frames(self) -> list[list[str]]:
        """The pages that were drawn over each other, each as lines without codes."""
        return [plain(frame).splitlines() for frame in self.text.split("\x1b[H")[1:]]


def plain(text: str) -> str:
    """The text without the terminal's codes."""
    return _CODES.sub("", text)


def _lead() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@asynccontextmanager
async def on_terminal(
    *arguments: str, columns: int = 80, lines: int = 24, **environment: str
) -> AsyncIterator[Terminal]:
    """`gpuplane` with these arguments on a terminal of that size; interrupted at the end if it still runs."""
    command = (sys.executable, "-m", "gpuplane", *arguments)
    async with program_on_terminal(*command, columns=columns, lines=lines, environment=environment) as terminal:
        yield terminal


@asynccontextmanager
async def program_on_terminal(
    *command: str,
    columns: int = 80,
    lines: int = 24,
    directory: Path | None = None,
    environment: Mapping[str, str],
    shell: bool = False,
) -> AsyncIterator[Terminal]:
    """Any program on a terminal of that size; interrupted at the end if it still runs.

    A `shell` leads the terminal's session, as after a login, and is killed.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**inherited, "TERM": "xterm", **environment},
        cwd=directory,
        start_new_session=True,
        preexec_fn=_lead if shell else None,
    )
    os.close(slave)
    terminal = Terminal(process, master)
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL if shell else signal.SIGINT)
        await asyncio.wait_for(process.wait(), PATIENCE_SECONDS)
        asyncio.get_running_loop().remove_reader(master)
        os.close(master)
