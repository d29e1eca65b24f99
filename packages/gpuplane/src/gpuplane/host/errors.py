"""Errors of a host's file system, with what to do about each."""

from __future__ import annotations

import errno

from kubekit.errors import Retryable, Terminal

CURES = {
    errno.EROFS: "remount the file system read-write",
    errno.ENOSPC: "free space on the file system",
    errno.EDQUOT: "raise the quota",
    errno.EACCES: "run as root, in a privileged container on a node",
    errno.EPERM: "run as root, in a privileged container on a node",
    errno.EISDIR: "move it away",
    errno.EFBIG: "move it away",
    errno.ELOOP: "look for links in this path",
}
"""errno -> what a person does about it."""
ABSENT = (FileNotFoundError, NotADirectoryError)


class HostError(Terminal):
    """The host's file system refused; `code` is the errno."""

    def __init__(self, what: str, *, where: str = "", cure: str = "", code: int = 0) -> None:
        super().__init__(what, where=where, cure=cure)
        self.code = code


class NotPermitted(HostError):
    """We may not."""

    exit_code = 3


class Locked(Retryable):
    """Another process holds the lock."""
