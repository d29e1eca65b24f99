"""The command of `gpuplane share run`: starts it, passes signals on to it, and hands its exit code back.

Invariants:

- Signals are waited for, not handled: no code of ours runs between two instructions, none is lost while we look after
  the limits.
- Signals of the terminal (Ctrl-C, a resize) reach the command by themselves, since it is in our process group. Only
  signals from another process to this process alone are passed on. So no signal arrives twice.
- The command gets the signal mask and the handlers that we were started with.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpuplane.cli.share_codes import CANNOT_RUN, NOT_FOUND
from kubekit.errors import Terminal

_PASSED_ON: Final = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
_WAITED_FOR: Final = frozenset({signal.SIGCHLD, *_PASSED_ON})
_BY_PROCESS: Final = 0  # siginfo's code: up to here a process sent it, above it the kernel did, for a terminal


class NoCommand(Terminal):
    """The command cannot be started."""

    exit_code = NOT_FOUND


class CannotRun(NoCommand):
    exit_code = CANNOT_RUN


class Child:
    """A command that runs; made by `start`."""

    def __init__(self, pid: int, mask: set[signal.Signals]) -> None:
        self.pid = pid
        self._mask = mask

    def follow(self, tick: Callable[[], None], every: float = 1.0) -> int:
        """Waits until the command has ended, calls `tick` about `every` seconds meanwhile; its exit code.

        A command that a signal ended has the code 128 + its number, as shells say it.
        """
        try:
            due = time.monotonic() + every
            while True:
                info = signal.sigtimedwait(_WAITED_FOR, max(0.0, due - time.monotonic()))
                if info is None or info.si_signo == signal.SIGCHLD:
                    # Looked at with each tick too: another thread of the process may have taken the signal.
                    code = self._ended()
                    if code is not None:
                        return code
                if info is None:
                    tick()
                    due = time.monotonic() + every
                elif info.si_signo != signal.SIGCHLD and info.si_code <= _BY_PROCESS:
                    self._send(info.si_signo)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _ended(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code

    def _send(self, number: int) -> None:
        # Not yet waited for, so the id is still its own, also when it has ended.
        os.kill(self.pid, number)


def start(argv: Sequence[str], environment: Mapping[str, str]) -> Child:
    """Starts the command, found by PATH. Raises NoCommand or CannotRun; from then on signals wait for `follow`."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    try:
        pid = os.posix_spawnp(
            argv[0],
            list(argv),
            dict(environment),
            setsigmask=mask,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores both
        )
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if isinstance(error, FileNotFoundError):
            raise NoCommand("no such command", where=argv[0], cure="look at its spelling and at PATH") from error
        raise CannotRun(
            f"it cannot be run: {(error.strerror or str(error)).lower()}", where=argv[0], cure="chmod +x, or a program"
        ) from error
    return Child(pid, {signal.Signals(number) for number in mask})
