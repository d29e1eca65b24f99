"""Makes docs/demo.svg from a real run: `python docs/picture.py` runs `gpuplane demo` on a pseudo-terminal and draws it.

The picture is what stands on the terminal when the demo has ended. Nothing of it is invented, and nothing of the
machine is in it: the demo runs with a home directory of its own, which shows as ~. It is made by hand and not in tests.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

PICTURE: Final = Path(__file__).parent / "demo.svg"
COLUMNS, ROWS = 100, 50
FONTS: Final = "'Fira Code', 'DejaVu Sans Mono', Menlo, Consolas, monospace"
UP_AND_ERASE: Final = "\x1b[1A\x1b[2K"


def record(command: list[str], home: Path) -> str:
    """What `command` wrote to a terminal of COLUMNS x ROWS. Raises CalledProcessError when it fails."""
    ours, theirs = pty.openpty()
    os.set_inheritable(theirs, True)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GPUPLANE_", "NO_COLOR"))}
    env |= {"HOME": str(home), "COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        written = bytearray()
        while chunk := _read(ours):
            written += chunk
    os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, bytes(written))
    return written.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says EIO when the last writer has closed its side
        return b""


def settled(written: str) -> str:
    """What is left on the screen: a page drawn again takes the place of the one before."""
    lines = [""]
    for part in re.split(rf"({re.escape(UP_AND_ERASE)}|\r\x1b\[2K|\n)", written):
        if part == UP_AND_ERASE:
            lines.pop()
            lines[-1] = ""
        elif part == "\n":
            lines.append("")
        elif part.startswith("\r"):
            lines[-1] = ""
        else:
            lines[-1] += part
    return re.sub(r"\x1b\[\?25[lh]|\r", "", "\n".join(lines)).strip("\n")


def draw(screen: str) -> str:
    """The screen as SVG, without a font from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"\x1b[1m$ gpuplane demo\x1b[0m\n{screen}"), soft_wrap=True)
    form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.S)
    svg = console.export_svg(title="gpuplane demo", code_format=form, unique_id="demo")
    svg = re.sub(r"font-family: [^;]+;", f"font-family: {FONTS};", svg)
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "gpuplane", "demo", "--progress", "tty"]
        home = Path(directory)
        try:
            screen = settled(record(command, home))
        finally:
            env = {**os.environ, "HOME": directory}
            env.pop("GPUPLANE_HOME", None)
            subprocess.run([sys.executable, "-m", "gpuplane", "down", "demo", "-q"], env=env, check=False)
    PICTURE.write_text(draw(screen))
    sys.stdout.write(screen + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
