"""Container logs: the runtime's format on disk, `TIME STREAM F|P TEXT`, and reading it as `kubectl logs` asks.

A log of more than 10 MiB is renamed, and the container goes on in a new file. As on a real node, the lines before that
are not read any more; a reader that follows goes on in the new file.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

_CHUNK: Final = 1 << 16


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The query of /containerLogs. `since` is in seconds since the epoch."""

    follow: bool = False
    tail: int | None = None
    timestamps: bool = False
    since: float | None = None
    limit_bytes: int | None = None


def split_line(line: bytes) -> tuple[bytes, bytes, bool]:
    """(time, text, ends) of one line of a log file; `ends` is False for a part of a longer line."""
    time, _, rest = line.partition(b" ")
    _, _, rest = rest.partition(b" ")
    tag, _, text = rest.partition(b" ")
    return time, text, tag != b"P"


def _epoch(time: bytes) -> float:
    try:
        return datetime.strptime(time[:19].decode(), "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp() + float(
            b"0" + time[19:-1]
        )
    except ValueError:
        return 0.0


def render(line: bytes, options: Options) -> bytes:
    """One line as the client gets it; empty when it is too old."""
    time, text, ends = split_line(line)
    if options.since is not None and _epoch(time) < options.since:
        return b""
    return (time + b" " if options.timestamps else b"") + text + (b"\n" if ends else b"")


def tail_offset(path: Path, lines: int) -> int:
    """Return where the last `lines` whole lines of a file begin, read from its end."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        at, wanted, have = end, lines + 1, 0
        while at > 0:
            size = min(_CHUNK, at)
            at -= size
            file.seek(at)
            block = file.read(size)
            position = len(block)
            while (position := block.rfind(b"\n", 0, position)) >= 0:
                have += 1
                if have == wanted:
                    return at + position + 1
        return 0


async def read_log(
    path: Path, options: Options, *, running: Callable[[], bool], changed: Callable[[], AsyncIterator[None]]
) -> AsyncIterator[bytes]:
    """The log in chunks. With `follow` it goes on, a step at each `changed`, until the container has ended."""
    left = options.limit_bytes
    try:
        offset = tail_offset(path, options.tail) if options.tail is not None else 0
        file: BinaryIO = await asyncio.to_thread(path.open, "rb")
    except FileNotFoundError:
        return
    rest = b""
    ticks = changed() if options.follow else None
    try:
        file.seek(offset)
        while True:
            alive, fresh = running(), _reopened(path, file) if options.follow else None
            while block := file.read(_CHUNK):
                *lines, rest = (rest + block).split(b"\n")
                chunk = b"".join(render(line, options) for line in lines)
                if left is not None:
                    chunk = chunk[:left]
                    left -= len(chunk)
                if chunk:
                    yield chunk
                if left is not None and left <= 0:
                    return
            if fresh is not None:
                file.close()
                file = fresh
                continue
            if ticks is None or not alive:
                return
            await anext(ticks, None)
    finally:
        file.close()


def _reopened(path: Path, file: BinaryIO) -> BinaryIO | None:
    """Return the log that has taken the place of an open one; None where there is none.

    The caller reads the rest of the old one after this.
    """
    try:
        if path.stat().st_ino != os.fstat(file.fileno()).st_ino:
            return path.open("rb")
    except FileNotFoundError:
        pass  # between two files
    return None


def last_lines(path: str, characters: int) -> str:
    """The end of a log, for a termination message."""
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4 * characters))
            data = file.read()
    except OSError:
        return ""
    text = b"".join(render(line, Options()) for line in data.split(b"\n") if line.count(b" ") >= 3)
    return text.decode(errors="replace")[-characters:]
