"""A terminal's whole window: the alternate screen, keys as they are pressed, and everything back as it was."""

from __future__ import annotations

import contextlib
import os
import re
import termios
import tty
from collections.abc import Iterator
from typing import Final, TextIO

_OPEN: Final = "\x1b[?1049h\x1b[?25l"
_CLOSE: Final = "\x1b[?25h\x1b[?1049l"
_KEY: Final = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Z])|.", re.DOTALL)
_NAMES: Final = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
    "\x1b[5~": "pageup", "\x1b[6~": "pagedown", "\x1b[H": "home", "\x1b[F": "end", "\x1b[1~": "home", "\x1b[4~": "end",
    "\r": "enter", "\n": "enter", "\x1b": "escape", "\x7f": "backspace", "\x08": "backspace",
    "\x03": "ctrl-c", "\x04": "ctrl-d",
}  # fmt: skip


@contextlib.contextmanager
def whole_window(out: TextIO, keys: int) -> Iterator[None]:
    """Take the window of `out`, and the keys of the terminal `keys` one by one; give both back in the end."""
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys, termios.TCSANOW)
        out.write(_OPEN)
        out.flush()
        yield
    finally:
        out.write(_CLOSE)
        out.flush()
        termios.tcsetattr(keys, termios.TCSANOW, before)


def draw(out: TextIO, lines: list[str]) -> None:
    """Draw the lines over those before, in one write."""
    out.write("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
    out.flush()


def pressed_keys(keys: int) -> list[str]:
    """Return the keys that were pressed, by their names; `ctrl-d` at the end of the input."""
    data = os.read(keys, 1024)
    if not data:
        return ["ctrl-d"]
    return [_NAMES.get(found, found) for found in _KEY.findall(data.decode(errors="replace"))]
