"""The process that says whose turn it is on each GPU of a store: started, kept alive, and ended with its owner.

It is a program in C (native/limiter/arbiter), because turns change within microseconds. It ends when its standard input
does, so it never outlives its owner, also after SIGKILL. Several owners may each have one for the same store, for
example several `gpuplane share run`: one works, and another takes its place within a tenth of a second.

Without any arbiter the processes of each container keep to its limit by themselves.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gpuplane.limits.files import make_dirs
from gpuplane.limits.injection import LIMITER
from gpuplane.limits.store import ShareStore
from kubekit.errors import Terminal

log = logging.getLogger("gpuplane.limits")

PROGRAM: Final = LIMITER / "arbiter"
_END_SECONDS: Final = 5.0


class Arbiter:
    """The arbiter of one store; a context manager."""

    def __init__(self, store: ShareStore, program: Path = PROGRAM) -> None:
        self._store = store
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._lock = threading.Lock()  # an agent looks after it in a thread of its own

    def keep(self) -> None:
        """Start it, or start it again where it has ended; nothing after `close`.

        Raises:
            Terminal: the program is missing or cannot be run.
        """
        with self._lock:
            if not self._closed:
                self._keep()

    def _keep(self) -> None:
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return
            log.warning("arbiter of GPU time ended, started again code=%d", code)
            self._end()
        make_dirs(self._store.base / "shares")
        try:
            self._process = subprocess.Popen(
                [self._program, self._store.base], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
            )
        except OSError as error:
            raise Terminal(
                f"the arbiter of GPU time cannot be run: {error.strerror}",
                where=str(self._program),
                cure="python native/build.py",
            ) from error

    @property
    def pid(self) -> int:
        """The process id; 0 while there is no process."""
        return 0 if self._process is None else self._process.pid

    def close(self) -> None:
        """End it and wait for its end."""
        with self._lock:
            self._closed = True
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it is stopped, or the machine is
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.keep()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
