"""Runs a credential plugin: bounded in time and output, and ended when its caller no longer waits.

NB: not by asyncio's subprocesses. With CPython 3.11 a task that is cancelled while one starts may wait for ever, and a
command of several requests cancels the others as soon as the plugin failed for the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, Final, NamedTuple

_LONGEST_MESSAGES: Final = 1 << 16  # bytes of stderr that are retained, from its end
_PIECE: Final = 1 << 16


class PluginOutput(NamedTuple):
    """The exit status of a plugin, its whole output, and the end of its messages."""

    status: int
    output: bytes
    messages: bytes


class PluginOutputTooLong(Exception):
    """The plugin wrote more than it may."""


async def run_plugin(
    words: Sequence[str], environ: Mapping[str, str], *, interactive: bool, seconds: float, longest: int
) -> PluginOutput:
    """Run a program to its end.

    Args:
        interactive: the program shares the terminal of this one.
        longest: bytes that it may write to stdout.

    Raises OSError when it cannot be started, TimeoutError after `seconds`, PluginOutputTooLong.
    """
    process = subprocess.Popen(  # noqa: ASYNC220 - it starts in a millisecond, and the wait is in a thread
        words,
        env=dict(environ),
        stdin=None if interactive else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if interactive else subprocess.PIPE,
        # A group of its own, so that its children end with it; the terminal is for the group of this program.
        process_group=None if interactive else 0,
    )
    try:
        return await asyncio.to_thread(_read, process, time.monotonic() + seconds, longest)
    finally:
        if process.poll() is None:
            _kill(process, group=not interactive)


def _read(process: subprocess.Popen[bytes], deadline: float, longest: int) -> PluginOutput:
    found = {stream: b"" for stream in (process.stdout, process.stderr) if stream is not None}
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as streams:
        for stream in found:
            selector.register(streams.enter_context(stream), selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                stream = _stream(key)
                piece = os.read(key.fd, _PIECE)
                if not piece:
                    selector.unregister(stream)
                found[stream] += piece
                if stream is process.stderr:
                    found[stream] = found[stream][-_LONGEST_MESSAGES:]
                elif len(found[stream]) > longest:
                    raise PluginOutputTooLong
    try:
        status = process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    output, *messages = found.values()
    return PluginOutput(status, output, b"".join(messages))


def _stream(key: selectors.SelectorKey) -> IO[bytes]:
    assert not isinstance(key.fileobj, int), "streams are registered"
    return key.fileobj  # type: ignore[return-value]


def _kill(process: subprocess.Popen[bytes], *, group: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
