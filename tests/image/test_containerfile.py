"""buildah makes of the Containerfile's last stage what build.py makes: the same files, modes and settings."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from gpuplane_image import ImageInfo
from gpuplane_image.containerfile import CONTAINERFILE
from tests.image.archive import Archive, unpack

pytestmark = [
    pytest.mark.image,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("buildah") is None or os.geteuid() != 0, reason="needs buildah and root"),
]


def listing(root: Path) -> dict[str, tuple[str, int, bytes]]:
    """Kind, mode and content of every path; a link's content is its target."""
    found = {}
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        if path.is_symlink():
            content = str(path.readlink()).encode()
        else:
            content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (stat.filemode(mode)[0], stat.S_IMODE(mode), content)
    return found


def test_the_last_stage_gives_the_same_image(built: ImageInfo, unpacked: Path, tmp_path: Path) -> None:
    """The first stage runs rootfs.py in Debian, which needs a registry; here its output stands for it."""
    context = tmp_path / "context"
    rootfs = [sys.executable, str(CONTAINERFILE.parent / "rootfs.py"), str(context / "rootfs")]
    subprocess.run(rootfs, check=True)
    last = CONTAINERFILE.read_text().rpartition("\nFROM scratch\n")[2]
    (context / "Containerfile").write_text(f"FROM scratch AS build\nCOPY rootfs /rootfs\n\nFROM scratch\n{last}")
    store = ["--root", str(tmp_path / "store"), "--runroot", str(tmp_path / "run"), "--storage-driver", "vfs"]
    subprocess.run(["buildah", *store, "bud", "--isolation", "chroot", "-t", "test:1", str(context)], check=True)
    subprocess.run(["buildah", *store, "push", "test:1", f"docker-archive:{tmp_path / 'test.tar'}:test:1"], check=True)
    root = tmp_path / "root"
    root.mkdir()
    unpack(tmp_path / "test.tar", root)
    theirs, ours = listing(root), listing(unpacked)
    assert theirs.keys() == ours.keys()
    assert [name for name, entry in ours.items() if theirs[name] != entry] == []
    inspected = subprocess.run(
        ["buildah", *store, "inspect", "--type", "image", "--format", "{{.OCIv1.Config}}", "test:1"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    config = Archive(built.path).config["config"]
    for word in (config["User"], *config["Entrypoint"], *config["Env"], *config["Labels"].values()):
        assert word in inspected
