"""Waiting for files without asking again and again: the kernel's inotify, once for a process.

`watch(root, paths)` yields at once and then whenever one of the files may have come, gone or changed; the caller looks
for itself (level-triggered), so events are neither counted nor told apart.

Invariants:

- A change between a yield and the next wait is not lost: the watches stand before the yield.
- A file whose directory is missing is waited for at the nearest directory that exists, and followed down as it appears.
- Links on the way are watched as what they lead to is: a kubelet changes all files of a ConfigMap by one, `..data`.
- All watches of an event loop share one inotify instance (the kernel grants a user only 128), closed with the last one.

Python's library has no inotify; three calls through ctypes need no dependency. Format: inotify(7).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

from gpuplane.host.walk import trace
from kubekit.errors import Retryable

_IN_ATTRIB, _IN_CLOSE_WRITE, _IN_MOVED_FROM, _IN_MOVED_TO = 0x4, 0x8, 0x40, 0x80
_IN_CREATE, _IN_DELETE, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x100, 0x200, 0x400, 0x800
_IN_IGNORED, _IN_ONLYDIR = 0x8000, 0x01000000
_MASK = (
    _IN_ATTRIB
    | _IN_CLOSE_WRITE
    | _IN_MOVED_FROM
    | _IN_MOVED_TO
    | _IN_CREATE
    | _IN_DELETE
    | _IN_DELETE_SELF
    | _IN_MOVE_SELF
    | _IN_ONLYDIR
)
_HEADER = struct.Struct("iIII")  # wd, mask, cookie, length of the name
_OVERFLOW = -1  # the watch descriptor of "events were lost"

_libc = ctypes.CDLL(None, use_errno=True)


class WatchRefused(Retryable):
    """The kernel has no more inotify instances or watches for this user."""


class _Hub:
    """The one inotify instance of an event loop, and who waits for what in which directory."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._waiting: dict[int, dict[asyncio.Event, set[str]]] = {}
        self._users = 0
        loop.add_reader(self._handle, self._deliver)

    def add(self, directory: int, name: str, event: asyncio.Event) -> int:
        """Set `event` when `name` in the directory (by handle) changes, or the directory itself goes."""
        path = f"/proc/self/fd/{directory}".encode()
        watch = _checked(_libc.inotify_add_watch(self._handle, path, _MASK))
        self._waiting.setdefault(watch, {}).setdefault(event, set()).add(name)
        return watch

    def enter(self) -> None:
        self._users += 1

    def leave(self) -> None:
        self._users -= 1
        if not self._users:
            self._loop.remove_reader(self._handle)
            os.close(self._handle)
            _hubs.pop(self._loop, None)

    def drop(self, watches: set[int], event: asyncio.Event) -> None:
        for watch in watches:
            waiting = self._waiting.get(watch)
            if waiting is None or waiting.pop(event, None) is None or waiting:
                continue
            del self._waiting[watch]
            _libc.inotify_rm_watch(self._handle, watch)  # fails when its directory is gone, which is as good

    def _deliver(self) -> None:
        try:
            data = os.read(self._handle, 1 << 16)
        except BlockingIOError:
            return
        offset = 0
        while offset < len(data):
            watch, mask, _, length = _HEADER.unpack_from(data, offset)
            start = offset + _HEADER.size
            name = os.fsdecode(data[start : start + length].rstrip(b"\0"))
            offset = start + length
            if watch == _OVERFLOW:
                for waiting in self._waiting.values():
                    for event in waiting:
                        event.set()
                continue
            for event, wanted in self._waiting.get(watch, {}).items():
                if not name or name in wanted:
                    event.set()
            if mask & _IN_IGNORED:
                self._waiting.pop(watch, None)


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, _Hub] = WeakKeyDictionary()


async def watch(root: Path, paths: Sequence[str]) -> AsyncIterator[None]:
    """Yield now and after every change that may concern one of `paths` below `root`."""
    loop = asyncio.get_running_loop()
    hub = _hubs.get(loop)
    if hub is None:
        hub = _hubs[loop] = _Hub(loop)
    event = asyncio.Event()
    armed: set[int] = set()
    hub.enter()
    try:
        while True:
            event.clear()
            before, armed = armed, set()
            for path in paths:
                armed |= _arm(hub, root, path, event)
            if before - armed:
                hub.drop(before - armed, event)
            yield
            await event.wait()
    finally:
        hub.drop(armed, event)
        hub.leave()


def _arm(hub: _Hub, root: Path, path: str, event: asyncio.Event) -> set[int]:
    """Watch all that decides what is at `path`."""
    watches: set[int] = set()
    trace(root, path, lambda directory, name: watches.add(hub.add(directory, name, event)))
    return watches


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise WatchRefused(
            f"the kernel grants no watch: {os.strerror(code).lower()}",
            where="inotify",
            cure="raise fs.inotify.max_user_instances and max_user_watches with sysctl",
        )
    return result
