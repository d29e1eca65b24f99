"""Garbage collection of commands that print one answer and end."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from typing import NoReturn

_answered = False  # a command of this process collected no garbage


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: searching for it takes longer than what one answer leaves is worth."""
    global _answered
    _answered = True
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def end_process(code: int) -> NoReturn:
    """End the process. The objects of an answer are not freed one by one, which would be a tenth of its time."""
    if _answered:
        with contextlib.suppress(BrokenPipeError):  # the reader (head, less) has what it wanted
            for stream in (sys.stdout, sys.stderr):
                if not stream.closed:
                    stream.flush()
        os._exit(code)
    sys.exit(code)
