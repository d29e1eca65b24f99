"""buildah makes of the Containerfile what build.py makes: the same files, modes and settings."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.image.gpuplane_image import ImageInfo, debian
from deploy.image.gpuplane_image.containerfile import CONTAINERFILE
from deploy.image.gpuplane_image.dependencies import REPOSITORY
from tests.image.archive import Archive, unpack

pytestmark = [
    pytest.mark.image,
    pytest.mark.deadline(1800),
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


@pytest.fixture
def buildah(tmp_path: Path) -> Callable[..., str]:
    """Runs a command of buildah on images of its own; what it prints."""
    store = ("--root", str(tmp_path / "store"), "--runroot", str(tmp_path / "run"), "--storage-driver", "vfs")

    def run(command: str, *arguments: str) -> str:
        done = subprocess.run(["buildah", *store, command, *arguments], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip()

    return run


def compare(buildah: Callable[..., str], built: ImageInfo, unpacked: Path, place: Path) -> None:
    """The image test:1 with ours: files, modes and settings."""
    buildah("push", "test:1", f"docker-archive:{place / 'test.tar'}:test:1")
    root = place / "root"
    root.mkdir()
    unpack(place / "test.tar", root)
    theirs, ours = listing(root), listing(unpacked)
    assert theirs.keys() == ours.keys()
    assert [name for name, entry in ours.items() if theirs[name] != entry] == []
    inspected = buildah("inspect", "--type", "image", "--format", "{{.OCIv1.Config}}", "test:1")
    config = Archive(built.path).config["config"]
    for word in (config["User"], *config["Entrypoint"], *config["Env"], *config["Labels"].values()):
        assert word in inspected


def test_the_last_stage_gives_the_same_image(
    buildah: Callable[..., str], built: ImageInfo, unpacked: Path, tmp_path: Path
) -> None:
    """Quicker than both: what rootfs.py makes here stands for the first stage."""
    context = tmp_path / "context"
    rootfs = [sys.executable, str(CONTAINERFILE.parent / "rootfs.py"), str(context / "rootfs")]
    subprocess.run(rootfs, check=True)
    last = CONTAINERFILE.read_text().rpartition("\nFROM scratch\n")[2]
    (context / "Containerfile").write_text(f"FROM scratch AS build\nCOPY rootfs /rootfs\n\nFROM scratch\n{last}")
    buildah("bud", "--isolation", "chroot", "-t", "test:1", str(context))
    compare(buildah, built, unpacked, tmp_path)


@pytest.mark.skipif(shutil.which("debootstrap") is None, reason="needs debootstrap")
def test_both_stages_give_the_same_image(
    buildah: Callable[..., str], built: ImageInfo, unpacked: Path, tmp_path: Path
) -> None:
    """On a Debian that debootstrap makes of Debian's packages, as docker.io/library/debian is: no registry is asked."""
    base = tmp_path / "debian"
    subprocess.run(["debootstrap", "--variant=minbase", debian.SUITE, base, f"{debian.MIRROR}/debian"], check=True)
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, str(base), "/")
    buildah("commit", "--quiet", container, "localhost/debian:1")
    options = ["--isolation", "chroot", "--ulimit", "nofile=8192:8192", "--build-arg", "BUILDER=localhost/debian:1"]
    if authority := os.environ.get("SSL_CERT_FILE"):
        options += ["--volume", f"{authority}:/authority.crt:ro"]
        options += [f"--build-arg={name}=/authority.crt" for name in ("SSL_CERT_FILE", "PIP_CERT")]
    buildah("bud", *options, "-f", str(CONTAINERFILE), "-t", "test:1", str(REPOSITORY))
    compare(buildah, built, unpacked, tmp_path)
