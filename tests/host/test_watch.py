"""Waiting for files: nothing missed, nothing left open."""

from __future__ import annotations

import asyncio
import ctypes
import errno
from pathlib import Path

import pytest

from gpuplane.errors import Retryable
from gpuplane.host import Host
from gpuplane.host import watch as watch_module


async def test_a_file_whose_directory_does_not_exist_yet(tmp_path: Path) -> None:
    host = Host(tmp_path)
    waiting = asyncio.create_task(host.wait_for("run/nvidia/validations/driver-ready"))
    await asyncio.sleep(0)
    assert not waiting.done()
    host.write_atomic("run/nvidia/validations/driver-ready", b"IS_HOST_DRIVER=true\n", durable=False)
    assert await asyncio.wait_for(waiting, 5) == b"IS_HOST_DRIVER=true\n"


async def test_every_kind_of_change_is_seen(tmp_path: Path) -> None:
    host = Host(tmp_path)
    changes = host.watch("etc/docker/daemon.json", "etc/other")

    async def next_change() -> None:
        await asyncio.wait_for(anext(changes), 5)

    await next_change()  # at once
    host.write_atomic("etc/docker/daemon.json", b"{}")
    await next_change()
    while host.read("etc/docker/daemon.json") is None:
        await next_change()
    host.write_atomic("etc/docker/daemon.json", b'{"a": 1}')
    await next_change()
    (tmp_path / "etc/other").touch()
    await next_change()
    host.remove("etc/docker/daemon.json")
    await next_change()
    (tmp_path / "etc/docker").rmdir()
    await next_change()
    host.write_atomic("etc/docker/daemon.json", b"back")
    await next_change()


async def test_other_files_do_not_wake_and_many_watches_share_one_handle(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.write_atomic("run/wanted", b"1")
    before = len(list(Path("/proc/self/fd").iterdir()))
    watches = [host.watch("run/wanted") for _ in range(300)]
    for watch in watches:
        await anext(watch)
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 1
    pending = asyncio.create_task(anext(watches[0]))
    host.write_atomic("run/unwanted", b"1")
    for _ in range(20):
        await asyncio.sleep(0)
    assert not pending.done()
    host.write_atomic("run/wanted", b"2")
    await asyncio.wait_for(pending, 5)
    for watch in watches:
        await watch.aclose()  # type: ignore[attr-defined]  # the generator behind the iterator
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_kernel_without_a_watch_to_spare_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Libc:
        @staticmethod
        def inotify_init1(flags: int) -> int:
            ctypes.set_errno(errno.EMFILE)
            return -1

    monkeypatch.setattr(watch_module, "_libc", Libc)
    with pytest.raises(Retryable, match="too many open files") as caught:
        await anext(Host(tmp_path).watch("etc/file"))
    assert "fs.inotify" in caught.value.cure
