"""Runs a command to whose processes the kernel refuses some system calls with EPERM, as seccomp and AppArmor do.

    python denied.py unshare,mount COMMAND...

Written for a program of its own: what is denied stays so for all descendants.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

NUMBERS = {
    "x86_64": {"mount": 165, "unshare": 272, "sethostname": 170},
    "aarch64": {"mount": 40, "unshare": 97, "sethostname": 161},
}
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # of the classic packet filter
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2


def deny(calls: list[str]) -> None:
    """Refuse these calls to this process and all it starts."""
    numbers = [NUMBERS[platform.machine()][call] for call in calls]
    refused = len(numbers)
    program = [(_LOAD, 0, 0, 0)]  # the number of the call
    program += [(_EQUAL, refused - at, 0, number) for at, number in enumerate(numbers)]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    filter_ = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER, filter_, 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    deny(sys.argv[1].split(","))
    os.execvp(sys.argv[2], sys.argv[2:])
