"""Volumes: what is made, what is refused, and that nothing leaves the node's root."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.kubelet.atomicfiles import VolumeFile
from tinykube.kubelet.pod import HostPath, KeyToPath, SpecContainer
from tinykube.kubelet.volumes import (
    VolumeUnready,
    container_mounts,
    host_path,
    inside_root,
    keyed_files,
)


@pytest.mark.parametrize(
    ("kind", "ok"),
    [
        ("", True),
        ("Directory", True),
        ("DirectoryOrCreate", True),
        ("File", False),
        ("FileOrCreate", False),
        ("Socket", False),
        ("CharDevice", False),
    ],
)
def test_types_on_a_directory(tmp_path: Path, kind: str, ok: bool) -> None:
    (tmp_path / "d").mkdir()
    volume = HostPath(path="/d", type=kind)
    if ok:
        assert host_path(tmp_path, volume, "v") == tmp_path / "d"
    else:
        with pytest.raises(VolumeUnready, match="type check failed"):
            host_path(tmp_path, volume, "v")


def test_what_may_be_made_is_made(tmp_path: Path) -> None:
    assert host_path(tmp_path, HostPath(path="/a/b", type="DirectoryOrCreate"), "v").is_dir()
    assert host_path(tmp_path, HostPath(path="/a/f", type="FileOrCreate"), "v").is_file()
    with pytest.raises(VolumeUnready):
        host_path(tmp_path, HostPath(path="/none", type="Directory"), "v")


def test_simulated_devices_count_as_devices(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert host_path(tmp_path, HostPath(path="/dev/nvidia0", type="CharDevice"), "v").name == "nvidia0"


parts = st.sampled_from(["a", "b", "up", "abs", "loop", "..", "."])


@given(st.lists(parts, max_size=6))
def test_no_path_leaves_the_root(path: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "root")
        (root / "a/b").mkdir(parents=True)
        (root / "up").symlink_to("../../..")
        (root / "a/abs").symlink_to("/etc")
        (root / "loop").symlink_to("loop")
        try:
            found = inside_root(root, "/".join(path))
        except VolumeUnready:
            assert "loop" in path
            return
        assert os.path.commonpath([root, found]) == str(root)


def test_links_are_followed_as_in_a_chroot(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    assert inside_root(tmp_path, "/var/run/x") == tmp_path / "run/x"


def test_items_choose_and_rename() -> None:
    files = keyed_files(
        "configmap", "m", {"a": b"1", "b": b"2"}, (KeyToPath(key="a", path="x/y", mode=0o600),), 0o644, False
    )
    assert files == {"x/y": VolumeFile(b"1", 0o600)}
    with pytest.raises(VolumeUnready, match="non-existent"):
        keyed_files("configmap", "m", {}, (KeyToPath(key="a", path="x"),), 0o644, False)
    with pytest.raises(VolumeUnready, match="not found"):
        keyed_files("secret", "s", None, (), 0o644, False)
    assert keyed_files("secret", "s", None, (), 0o644, True) == {}


def test_an_unknown_kind_of_volume_is_said() -> None:
    container = msgspec.convert({"name": "c", "volumeMounts": [{"name": "nfs", "mountPath": "/x"}]}, SpecContainer)
    with pytest.raises(VolumeUnready, match="nfs"):
        container_mounts(container, (), {}, {})
