"""The one tree of exceptions.

Whether an error is worth another try is its type, not a flag that callers have to remember. A message says what was
wrong, where, and what to do; `where` and `cure` are kept apart so that every output format can show them.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers read it: the vectorAdd's start would be twice as long with typing
if TYPE_CHECKING:
    from typing import ClassVar


class KubekitError(Exception):
    """Base of all errors that are raised on purpose.

    Args:
        what: what is wrong, in one sentence without a full stop.
        where: the place: a file with line, an object, a node, a field path.
        cure: the next thing to do, as a command or a value.

    `exit_code` is what a command that fails with it ends with: 1 the answer is no, 2 wrong usage, 3 could not ask.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", cure: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.cure = cure

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}; {self.cure}" if self.cure else text


class Retryable(KubekitError):
    """May succeed when tried again, without a repair: a server that is down, a conflict, a time-out."""


class Terminal(KubekitError):
    """Fails again until a user or another program changes something."""


class InvalidInput(Terminal):
    """A manifest, configuration file or flag that cannot be accepted; carries every finding, not only the first."""

    def __init__(self, what: str, *, where: str = "", cure: str = "", findings: tuple[str, ...] = ()) -> None:
        super().__init__(what, where=where, cure=cure)
        self.findings = findings


class UsageError(Terminal):
    """The command line was wrong."""

    exit_code = 2


class NoAnswer(Retryable):
    """The cluster, a node or a socket could not be asked."""

    exit_code = 3
