"""Work in a child process whose every writing system call can be counted, refused or made its last.

A seccomp filter sends each call that changes files, and each signal, to us before the kernel carries it out
(seccomp_unotify(2)), so nothing escapes, whichever library makes it. The child is forked from this warm process and
really dies by SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import warnings
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path

import msgspec

_BOTH = {
    "x86_64": {
        "write": 1, "pwrite64": 18, "writev": 20, "pwritev": 296, "sendfile": 40, "copy_file_range": 326,
        "openat": 257, "openat2": 437, "rename": 82, "renameat": 264, "renameat2": 316, "link": 86, "linkat": 265,
        "symlink": 88, "symlinkat": 266, "unlink": 87, "unlinkat": 263, "rmdir": 84, "mkdir": 83, "mkdirat": 258,
        "mknod": 133, "mknodat": 259, "open": 2, "creat": 85, "truncate": 76, "ftruncate": 77, "fallocate": 285,
        "chmod": 90, "fchmod": 91, "fchmodat": 268, "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260,
        "utimensat": 280, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "fremovexattr": 199,
        "fsync": 74, "fdatasync": 75, "sync": 162, "syncfs": 306, "kill": 62, "mount": 165,
    },
    "aarch64": {
        "write": 64, "pwrite64": 68, "writev": 66, "pwritev": 70, "sendfile": 71, "copy_file_range": 285,
        "openat": 56, "openat2": 437, "renameat": 38, "renameat2": 276, "linkat": 37, "symlinkat": 36, "unlinkat": 35,
        "mkdirat": 34, "mknodat": 33, "truncate": 45, "ftruncate": 46, "fallocate": 47, "fchmod": 52, "fchmodat": 53,
        "fchown": 55, "fchownat": 54, "utimensat": 88, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14,
        "fremovexattr": 16, "fsync": 82, "fdatasync": 83, "sync": 81, "syncfs": 267, "kill": 129, "mount": 40,
    },
}  # fmt: skip
CALLS = _BOTH.get(platform.machine(), {})
_NAMES = {number: name for name, number in CALLS.items()}
# Calls that ask the file system for room; a full one refuses them, and lets others be.
ROOM = frozenset(
    ("write", "pwrite64", "writev", "openat", "mkdirat", "mkdir", "symlinkat", "symlink", "link", "linkat")
)

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _NEW_LISTENER, _ACTION_AVAILABLE = 1, 8, 2
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_NO_NEW_PRIVS = 38
_CONTINUE = 1
_CHANGING = os.O_CREAT | os.O_TRUNC  # flags of an open that may change something by itself
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTICE = struct.Struct("<QIIiIQ6Q")
_ANSWER = struct.Struct("<QqiI")
_libc = ctypes.CDLL(None, use_errno=True)


class Do(Enum):
    """The result of a call: the child carries it out, the child dies before it, or it is skipped as if it were done."""

    GO_ON = "go on"
    DIE = "die"
    PRETEND = "pretend"


class Call(msgspec.Struct, frozen=True):
    """The `number`-th writing call of the child, which waits for our word.

    `file` is what its first argument's handle leads to, where it has one; `path` what a call of the `at` kind names.
    """

    number: int
    name: str
    arguments: tuple[int, ...]
    child: int
    file: str
    path: str

    @contextlib.contextmanager
    def half_way(self) -> Iterator[None]:
        """The file with the first half of a write in it."""
        handle, where, size = self.arguments[:3]
        with open(f"/proc/{self.child}/fd/{handle}", "r+b", buffering=0) as file:  # noqa: PTH123 - no path, in truth
            end = file.seek(0, os.SEEK_END)
            file.write(_memory(self.child, where, size // 2))
            yield
            file.truncate(end)


Verdict = Do | int
"""An int is the errno with which the call is refused."""


def available() -> bool:
    """Return whether this kernel reports system calls."""
    number = _SECCOMP.get(platform.machine())
    action = ctypes.c_uint32(_NOTIFY)
    return number is not None and _libc.syscall(number, _ACTION_AVAILABLE, 0, ctypes.byref(action)) == 0


def live(work: Callable[[], object], judge: Callable[[Call], Verdict]) -> tuple[int, bytes]:
    """Run `work` in a child and ask `judge` about each of its writing calls; its exit status (-9: killed), and what
    `work` returned or raised, as text."""
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})  # asking and answering is a switch then, and no call across processors
    try:
        return _live(work, judge)
    finally:
        os.sched_setaffinity(0, processors)


def _live(work: Callable[[], object], judge: Callable[[Call], Verdict]) -> tuple[int, bytes]:
    ours, theirs = socket.socketpair()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads of pytest's hold no lock that is used here
        child = os.fork()
    if child == 0:
        _child(work, theirs)
    theirs.close()
    with ours:
        _, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
        try:
            _judge(child, listener, judge)
        finally:
            os.close(listener)
        _, status = os.waitpid(child, 0)
        said = ours.recv(1 << 16)
    return os.waitstatus_to_exitcode(status), said


def _child(work: Callable[[], object], to: socket.socket) -> None:
    try:
        socket.send_fds(to, [b"x"], [_filter()])
        try:
            said = str(work())
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        to.send(said.encode())
    finally:
        os._exit(0)


def _filter() -> int:
    """Install the filter; the handle on which the kernel asks."""
    load, equal, some, answer = 0x20, 0x15, 0x45, 0x06
    opening = CALLS["openat"]
    plain = [number for name, number in CALLS.items() if name != "openat"]
    # load the number; openat only when its flags (the third argument, at 16 + 2 * 8) can change something
    program = [(load, 0, 0, 0), (equal, 0, 2, opening), (load, 0, 0, 32)]
    program += [(some, len(plain) + 1, len(plain), _CHANGING)]
    program += [(equal, len(plain) - index, 0, number) for index, number in enumerate(plain)]
    program += [(answer, 0, 0, _ALLOW), (answer, 0, 0, _NOTIFY)]
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code)
    whole = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(buffer))
    assert _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    number = _SECCOMP[platform.machine()]
    handle = _libc.syscall(number, _SET_MODE_FILTER, _NEW_LISTENER, ctypes.create_string_buffer(whole))
    assert handle >= 0, os.strerror(ctypes.get_errno())
    return int(handle)


def _judge(child: int, listener: int, judge: Callable[[Call], Verdict]) -> None:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    number = 0
    while any(event & select.POLLIN for _, event in poll.poll()):
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, notice)
        except OSError as error:
            if error.errno == errno.ENOENT:  # it died while it asked
                continue
            raise
        ident, _, _, what, _, _, *arguments = _NOTICE.unpack(notice)
        name = _NAMES[what]
        if name == "openat2" and not int.from_bytes(_memory(child, arguments[2], 8), "little") & _CHANGING:
            fcntl.ioctl(listener, _SEND, _ANSWER.pack(ident, 0, 0, _CONTINUE))
            continue
        file, path = _file(child, name, arguments), _path(child, name, arguments)
        call = Call(number, name, tuple(arguments), child, file, path)
        number += 1
        verdict = judge(call)
        if verdict is Do.DIE:
            os.kill(child, signal.SIGKILL)
            return
        if verdict is Do.GO_ON:
            answer = (ident, 0, 0, _CONTINUE)
        elif verdict is Do.PRETEND:
            answer = (ident, 0, 0, 0)
        else:
            assert isinstance(verdict, int)
            answer = (ident, 0, -verdict, 0)
        fcntl.ioctl(listener, _SEND, _ANSWER.pack(*answer))


def _file(child: int, name: str, arguments: list[int]) -> str:
    if name in ("kill", "sync") or (handle := arguments[0]) > 1 << 20:
        return ""
    try:
        return str(Path(f"/proc/{child}/fd/{handle}").readlink())
    except OSError:
        return ""


def _path(child: int, name: str, arguments: list[int]) -> str:
    """The path that calls of the `at` kind name."""
    if not name.endswith("at") and name != "renameat2":
        return ""
    where = arguments[0] if name == "symlinkat" else arguments[1]
    return _memory(child, where, 256).partition(b"\0")[0].decode(errors="replace")


def _memory(child: int, where: int, size: int) -> bytes:
    with Path(f"/proc/{child}/mem").open("rb", buffering=0) as memory:
        memory.seek(where)
        return memory.read(size)
