"""Runs command lines of gpuplane, each in a process of its own with bounded memory and time.

Reads a JSON list of (words, text) from standard input and writes a JSON list of (exit code, output), both streams
together. The code of a process that ended by a signal is the signal's number, negative. A component, which runs on,
is ended once its output has the text: its code is 0.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import resource
import signal
import sys
import tempfile
import time
import traceback
from typing import IO, NoReturn

import gpulab
import gpuplane
from gpuplane.cli.main import main

MEMORY_BYTES = 4 << 30  # of addresses: a reader without a bound takes all of it
SECONDS = 60
GRACE_SECONDS = 1.0  # a component that ends by itself does so in this time, mostly


def run(words: list[str], text: str) -> tuple[int, str]:
    """Run a command line; return its exit code and its output."""
    with tempfile.TemporaryFile() as out:
        pid = os.fork()
        if pid == 0:
            _child(words, out)
        seen = 0.0
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status), _written(out)
            if words[0] == "run" and not seen and text in _written(out):
                seen = time.monotonic()
            if seen and time.monotonic() - seen > GRACE_SECONDS:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return 0, _written(out)
            time.sleep(0.02)


def _child(words: list[str], out: IO[bytes]) -> NoReturn:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.alarm(SECONDS)
    for stream in (1, 2):
        os.dup2(out.fileno(), stream)
    code: object = 1
    try:
        code = main(words)
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _written(out: IO[bytes]) -> str:
    return os.pread(out.fileno(), 1 << 20, 0).decode(errors="replace")


def _import_all() -> None:
    """Import what commands import when they run, once for all."""
    for package in (gpuplane, gpulab):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


if __name__ == "__main__":
    _import_all()
    json.dump([run(words, text) for words, text in json.load(sys.stdin)], sys.stdout)
