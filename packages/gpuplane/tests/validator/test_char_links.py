"""Links in `/dev/char`: made, repaired, and made before their nodes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpuplane import names
from gpuplane.host import Host
from gpuplane.validator.char_links import links, make_links, wanted_links

PROC_DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
236 nvidia-caps
237 nvidia-caps-imex-channels

Block devices:
259 blkext
"""


def caps(root: Path) -> None:
    for path, text in {
        "proc/devices": PROC_DEVICES,
        "proc/driver/nvidia-caps/mig-minors": "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_links_point_beside_their_folder() -> None:
    nodes = [("dev/nvidia0", 195, 0), ("dev/nvidia-caps/nvidia-cap1", 236, 1)]
    assert links(nodes) == {"dev/char/195:0": "../nvidia0", "dev/char/236:1": "../nvidia-caps/nvidia-cap1"}


def test_capabilities_have_links_before_they_have_nodes(tmp_path: Path) -> None:
    caps(tmp_path)
    host = Host(tmp_path)
    assert make_links(host) == 4
    assert (tmp_path / "dev/char/236:12").readlink() == Path("../nvidia-caps/nvidia-cap12")
    assert make_links(host) == 0


def test_a_link_that_goes_or_is_wrong_is_repaired(tmp_path: Path) -> None:
    caps(tmp_path)
    host = Host(tmp_path)
    make_links(host)
    (tmp_path / "dev/char/236:1").unlink()
    (tmp_path / "dev/char/236:2").unlink()
    (tmp_path / "dev/char/236:2").symlink_to("../null")
    assert make_links(host) == 2
    assert (tmp_path / "dev/char/236:2").readlink() == Path("../nvidia-caps/nvidia-cap2")


def test_a_validator_that_is_killed_among_the_links_leaves_none_that_is_not_listed(tmp_path: Path) -> None:
    caps(tmp_path)

    class DyingHost(Host):
        """A host on which the process ends before its third link."""

        made = 0

        def symlink(self, path: str, target: str, *, durable: bool = True) -> bool:
            if self.made == 2:
                raise KeyboardInterrupt
            self.made += 1
            return super().symlink(path, target, durable=durable)

    with pytest.raises(KeyboardInterrupt):
        make_links(DyingHost(tmp_path))
    there = {f"dev/char/{path.name}" for path in (tmp_path / "dev/char").iterdir()}
    assert len(there) == 2
    assert there <= set((tmp_path / names.CHAR_LINKS).read_text().split())
    assert make_links(Host(tmp_path)) == 2


def test_links_that_are_made_while_a_driver_goes_are_listed(tmp_path: Path) -> None:
    caps(tmp_path)

    class HostOfAGoingDriver(Host):
        """A host whose driver is uninstalled before the validator makes its third link."""

        made = 0

        def symlink(self, path: str, target: str, *, durable: bool = True) -> bool:
            self.made += 1
            if self.made == 3:
                for link in (self.read_text(names.CHAR_LINKS) or "").split():
                    self.remove(link)
                self.remove(names.CHAR_LINKS)
            return super().symlink(path, target, durable=durable)

    make_links(HostOfAGoingDriver(tmp_path))
    there = {f"dev/char/{path.name}" for path in (tmp_path / "dev/char").iterdir()}
    assert len(there) == 2
    assert there <= set((tmp_path / names.CHAR_LINKS).read_text().split())


def test_files_that_are_no_devices_and_broken_tables_give_no_links(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").write_text("simulated")
    assert wanted_links(Host(tmp_path)) == {}
    caps(tmp_path)
    (tmp_path / "proc/driver/nvidia-caps/mig-minors").write_bytes(b"\xff\x00 nonsense\n12\n")
    assert wanted_links(Host(tmp_path)) == {}


def test_real_device_nodes(tmp_path: Path) -> None:
    (tmp_path / "dev/nvidia-caps").mkdir(parents=True)
    try:
        os.mknod(tmp_path / "dev/nvidia0", stat.S_IFCHR | 0o666, os.makedev(195, 0))
    except PermissionError:
        pytest.skip("device nodes need a privileged user")
    os.mknod(tmp_path / "dev/nvidia-caps/nvidia-cap7", stat.S_IFCHR | 0o400, os.makedev(236, 7))
    assert make_links(Host(tmp_path)) == 2
    assert (tmp_path / names.CHAR_LINKS).read_text() == "dev/char/195:0\ndev/char/236:7\n"
    assert (tmp_path / "dev/char/195:0").readlink() == Path("../nvidia0")
    assert (tmp_path / "dev/char/236:7").readlink() == Path("../nvidia-caps/nvidia-cap7")
