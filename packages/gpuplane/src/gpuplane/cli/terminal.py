"""The abilities of the user's terminal, and the few ways in which gpuplane writes to it.

The answer goes to stdout; progress, hints and errors go to stderr. Colour marks verdicts only, and a glyph says the
same without it. Honours NO_COLOR, TERM=dumb, COLUMNS and GPUPLANE_ASCII=1.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import textwrap
from argparse import Namespace
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

from kubekit.errors import KubekitError

COLOURS: Final = {"good": "32", "bad": "31", "warn": "33", "dim": "2", "bold": "1"}
GLYPHS: Final = {
    "good": ("✓", "+"),
    "bad": ("✗", "x"),
    "warn": ("!", "!"),
    "same": ("=", "="),
    "wait": ("-", "-"),
    "full": ("█", "#"),
    "empty": ("░", "."),
    "times": ("×", "x"),
    "half": ("½", "1/2"),
}
SPINNER: Final = ("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\")
_COLOURED: Final = re.compile(r"(\x1b\[\d*m)")
# All but tab, end of line and our own colours.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CONTROL_BUT_COLOURS: Final = re.compile(rf"(?!\x1b\[(?:0|{'|'.join(COLOURS.values())})m){_CONTROL.pattern}")
_CONTROL_IN_JSON: Final = re.compile(r"[\x7f-\x9f]")  # those that may stand in a string of JSON
EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def tilde(path: Path) -> str:
    """A path as people write it in a shell, with ~ for the home directory."""
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and a user without a name
        return shlex.quote(str(path))
    return f"~/{shlex.quote(str(path.relative_to(home)))}" if path.is_relative_to(home) else shlex.quote(str(path))


def harmless(text: str, *, coloured: bool = True) -> str:
    """Return a text for a terminal: control characters are written out, as `^[` for the one that begins commands.

    The texts of annotations and events are written by users of the cluster, also of other namespaces. A terminal may
    later display a pipe or a log with these texts.

    Args:
        coloured: whether the text may have colours, which stay.
    """
    control = _CONTROL_BUT_COLOURS if coloured else _CONTROL
    return control.sub(lambda found: _written_out(ord(found[0])), text)


def _written_out(code: int) -> str:
    return f"^{chr(code ^ 64)}" if code < 128 else f"\\x{code:02x}"


def count(number: int, thing: str) -> str:
    """`1 GPU`, `8 GPUs`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


class Console:
    """One command's way to its user."""

    def __init__(
        self, out: TextIO, err: TextIO, *, colour: str = "auto", ascii_only: bool = False, quiet: bool = False
    ) -> None:
        self.out = out
        self.err = err
        self.quiet = quiet
        self.ascii = ascii_only
        self._colour = colour

    @classmethod
    def of(cls, options: Namespace) -> Console:
        """The terminal as flags and environment describe it."""
        encoding = (sys.stdout.encoding or "ascii").lower()
        ascii_only = os.environ.get("GPUPLANE_ASCII", "") not in ("", "0") or not encoding.startswith("utf")
        colour = getattr(options, "color", "auto")
        if colour == "auto" and (os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"):
            colour = "never"
        quiet = bool(getattr(options, "quiet", False))
        return cls(sys.stdout, sys.stderr, colour=colour, ascii_only=ascii_only, quiet=quiet)

    @property
    def width(self) -> int:
        return shutil.get_terminal_size((100, 24)).columns

    @property
    def limit(self) -> int | None:
        """The width that lines keep to: that of the window where a person reads, None for programs."""
        return self.width if self._is_read_by_people(self.out) else None

    @staticmethod
    def _is_read_by_people(stream: TextIO) -> bool:
        return stream.isatty() or bool(os.environ.get("COLUMNS"))

    def elided(self, text: str, columns: int) -> str:
        """The text with its middle left out where a person reads and it is too long: `default/note..-x2x9p`."""
        if self.limit is None or len(text) <= columns:
            return text
        end = max(1, (columns - 2) // 2)
        return f"{text[: max(1, columns - 2 - end)]}..{text[-end:]}"

    def wrapped(self, text: str, indent: int, stream: TextIO | None = None) -> list[str]:
        """The lines of a text that begins `indent` columns from the left, broken between words where a person reads
        them at a known width; whole for programs, and so that a command can be copied where it fits.
        """
        lines = text.splitlines()
        if not self._is_read_by_people(stream or self.out):
            return lines
        width = max(20, self.width - indent)
        return [
            part
            for line in lines
            for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
        ]

    @property
    def redraws(self) -> bool:
        """Return whether the answer may be drawn over and over in place."""
        return self.out.isatty() and os.environ.get("TERM") not in ("dumb", None)

    def redraw(self, text: str) -> None:
        """Draw a page over the one before, as much of it as the window shows."""
        size = shutil.get_terminal_size((80, 24))
        lines = "\x1b[K\n".join(clipped(harmless(text).splitlines(), size.columns, size.lines - 1))
        self.out.write(f"\x1b[H{lines}\x1b[K\n\x1b[J")
        self.out.flush()

    @property
    def live(self) -> bool:
        """Return whether progress may redraw lines in place."""
        return self.err.isatty() and os.environ.get("TERM") != "dumb" and not self.quiet

    def glyph(self, name: str) -> str:
        return GLYPHS[name][1 if self.ascii else 0]

    def paint(self, text: str, colour: str, stream: TextIO | None = None) -> str:
        if not self._colours(stream or self.out):
            return text
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"

    def _colours(self, stream: TextIO) -> bool:
        return self._colour == "always" or (self._colour == "auto" and stream.isatty())

    def _harmless(self, text: str, stream: TextIO) -> str:
        return harmless(text, coloured=self._colours(stream))

    def bar(self, share: float, width: int) -> str:
        """A bar of `width` cells of which `share` (0..1) is filled, in eighths of a cell."""
        eighths = round(max(0.0, min(1.0, share)) * width * 8)
        full, rest = divmod(eighths, 8)
        if self.ascii:
            return GLYPHS["full"][1] * full + GLYPHS["empty"][1] * (width - full)
        part = EIGHTHS[rest] if rest else ""
        return GLYPHS["full"][0] * full + part + GLYPHS["empty"][0] * (width - full - len(part))

    def print(self, text: str = "") -> None:
        """A line of the answer."""
        self.out.write(self._harmless(text, self.out) + "\n")

    def say(self, text: str = "") -> None:
        """A line of progress or a hint; nothing with --quiet."""
        if not self.quiet:
            self.err.write(self._harmless(text, self.err) + "\n")
            self.err.flush()

    def error(self, error: KubekitError) -> None:
        """Print what is wrong, where, and what to do; the chain of causes below."""
        mark = self.paint(self.glyph("bad"), "bad", self.err)
        self._tell(f"{mark} ", error.what, 2)
        for name, text in (("where", error.where), ("cure", error.cure)):
            if text:
                self._tell(f"    {name:6} ", text, 11)
        findings = [str(finding) for finding in getattr(error, "findings", ())]
        for finding in findings if findings != [error.what] else ():
            self._tell("    - ", finding, 6)
        cause = error.__cause__
        while cause is not None:
            if str(cause):
                self._tell("    because ", str(cause), 12)
            cause = cause.__cause__
        self.err.flush()

    def _tell(self, head: str, text: str, indent: int) -> None:
        """Write a part of an error; lines after the first begin `indent` columns from the left."""
        text = self._harmless(text, self.err)
        self.err.write(head + f"\n{'':{indent}}".join(self.wrapped(text, indent, self.err) or [""]) + "\n")

    def json(self, kind: str, data: dict[str, Any]) -> None:
        """Versioned and sorted JSON on stdout."""
        self.print(self.as_json(kind, data))

    @staticmethod
    def as_json(kind: str, data: dict[str, Any]) -> str:
        """Versioned and sorted JSON."""
        import msgspec  # 50 ms that `--help` does without

        document = {"apiVersion": "cli.gpuplane.dev/v1", "kind": kind, **data}
        text = msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2).decode()
        return _CONTROL_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class LivePage:
    """Progress that is drawn over itself on a terminal and leaves nothing behind; elsewhere nothing."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._rows = 0

    def show(self, text: str) -> None:
        """Draw the text in place of the one before."""
        if not self._screen.live:
            return
        size = shutil.get_terminal_size((80, 24))
        lines = clipped(harmless(text).splitlines(), size.columns - 1, size.lines - 1)
        self._write("".join(f"{line}\n" for line in lines))
        self._rows = len(lines)

    def clear(self) -> None:
        """Take the text away."""
        if self._rows:
            self._write("")
            self._rows = 0

    def _write(self, text: str) -> None:
        back = f"\x1b[{self._rows}A\x1b[J" if self._rows else ""
        self._screen.err.write(back + text)
        self._screen.err.flush()


def clipped(lines: Sequence[str], columns: int, rows: int) -> list[str]:
    """The lines that a window shows: the first, and of the others the last, since the most important comes last."""
    shown = [clipped_line(line, columns) for line in lines]
    if len(shown) <= rows:
        return shown
    tail = shown[len(shown) - max(0, rows - 2) :]
    return [shown[0], clipped_line(f"    {len(lines) - 1 - len(tail)} lines more in a higher window", columns), *tail]


def clipped_line(line: str, columns: int) -> str:
    """The line up to the width of the window; colours count nothing."""
    parts, left = [], columns
    for part in _COLOURED.split(line):
        if part.startswith("\x1b["):
            parts.append(part)
        else:
            parts.append(part[:left])
            left -= len(parts[-1])
    return "".join(parts)


def age(since: str, now: datetime) -> str:
    """`4s`, `14m`, `3h`, `9d` from an RFC 3339 time; empty when there is none."""
    if not since:
        return ""
    return lasting((now - datetime.fromisoformat(since)).total_seconds())


def lasting(seconds: float) -> str:
    """`4s`, `14m`, `3h`, `9d`."""
    whole = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= 2 * size or (whole >= size and unit == "m"):
            return f"{whole // size}{unit}"
    return f"{whole}s"


def prefixed(prefix: str, text: str, screen: Console) -> Iterator[str]:
    """Yield a text behind a prefix, its further lines below its first."""
    indent = len(_COLOURED.sub("", prefix))
    for number, line in enumerate(screen.wrapped(text, indent) or [""]):
        yield (prefix if not number else " " * indent) + line
