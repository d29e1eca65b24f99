"""Waiting for files: nothing missed, nothing left open."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import shutil
from pathlib import Path

import pytest

from gpuplane.host import Host
from gpuplane.host import watch as watch_module
from kubekit.errors import Retryable


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


class ConfigMapVolume:
    """A directory as a kubelet's atomic writer keeps it: files are links through `..data`, which is pointed at a new
    directory at each change; the old one is taken away afterwards.
    """

    def __init__(self, folder: Path, **files: str) -> None:
        self.folder = folder
        self._number = 0
        folder.mkdir(parents=True)
        self.write(**files)

    def write(self, *, clean: bool = True, **files: str) -> None:
        data, temporary = self.folder / "..data", self.folder / "..data_tmp"
        old = data.readlink() if data.is_symlink() else None
        self._number += 1
        new = self.folder / f"..2026_11_21_07_00_0{self._number}.123456789"
        new.mkdir()
        for name, text in files.items():
            (new / name).write_text(text)
        temporary.symlink_to(new.name)
        temporary.rename(data)
        for name in files:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        for path in self.folder.iterdir():
            if not path.name.startswith("..") and path.name not in files:
                path.unlink()
        if old is not None and clean:
            shutil.rmtree(self.folder / old)


@pytest.mark.parametrize("watched", ["config.yaml", "..data"])
@pytest.mark.parametrize("clean", [True, False])
async def test_a_configmap_that_is_changed_as_kubelets_do(tmp_path: Path, watched: str, clean: bool) -> None:
    volume = ConfigMapVolume(tmp_path / "config", **{"config.yaml": "1"})
    host = Host(tmp_path)
    changes = host.watch(f"config/{watched}")
    await anext(changes)
    for text in ("2", "3", "4"):
        waiting = asyncio.create_task(anext(changes))
        await asyncio.sleep(0)
        # NB: the old directory may stay, as after a kubelet that died here; the link alone has to be noticed.
        volume.write(clean=clean, **{"config.yaml": text})
        await asyncio.wait_for(waiting, 5)
        assert host.read_text("config/config.yaml") == text


async def test_a_link_that_is_pointed_elsewhere(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.write_atomic("a/b/file", b"1")
    host.write_atomic("c/b/file", b"2")
    (tmp_path / "now").symlink_to("/a/b")
    changes = host.watch("now/file")
    await anext(changes)
    host.symlink("now", "../../c/b")
    await asyncio.wait_for(anext(changes), 5)
    assert host.read("now/file") == b"2"
    host.write_atomic("c/b/file", b"3")
    await asyncio.wait_for(anext(changes), 5)
    host.symlink("now", "nowhere/at/all")
    await asyncio.wait_for(anext(changes), 5)
    host.write_atomic("nowhere/at/all/file", b"4")
    while host.read("now/file") is None:
        await asyncio.wait_for(anext(changes), 5)
    host.symlink("now", "now")
    await asyncio.wait_for(anext(changes), 5)
    host.symlink("now", "a/b")  # a circle is mended like anything else
    await asyncio.wait_for(anext(changes), 5)
    assert host.read("now/file") == b"1"
