"""A layer's bytes depend on its tree and the epoch alone."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from deploy.image.gpuplane_image.compose import settle
from deploy.image.gpuplane_image.layer import Layer, write_layer

NAMES = st.text("abcäö._-", min_size=1, max_size=120).filter(lambda name: name not in (".", ".."))
TREES = st.dictionaries(st.tuples(NAMES, NAMES), st.binary(max_size=2000), max_size=6)


def plant(root: Path, files: dict[tuple[str, str], bytes], order: int) -> None:
    root.mkdir()
    for (folder, name), data in sorted(files.items())[::order]:
        (root / f"d{folder}").mkdir(exist_ok=True)
        (root / f"d{folder}" / name).write_bytes(data)


def members(layer: Layer) -> list[tarfile.TarInfo]:
    with tarfile.open(layer.path) as archive:
        return archive.getmembers()


@given(files=TREES)
def test_the_same_tree_gives_the_same_digest(files: dict[tuple[str, str], bytes], tmp_path_factory: object) -> None:
    folder: Path = tmp_path_factory.mktemp("layer")  # type: ignore[attr-defined]
    plant(folder / "a", files, 1)
    plant(folder / "b", files, -1)
    one, two = (write_layer("x", folder / name, folder / f"{name}.tar", 7) for name in "ab")
    assert (one.digest, one.size_bytes) == (two.digest, two.size_bytes)
    assert one.path.stat().st_size == one.size_bytes
    with tarfile.open(one.path) as archive:
        read = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}  # type: ignore[union-attr]
    assert read == {f"d{place}/{name}": data for (place, name), data in files.items()}


def test_content_mode_link_and_epoch_are_part_of_the_digest(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("one")
    (tree / "link").symlink_to("file")
    seen = [write_layer("x", tree, tmp_path / "x.tar", 0).digest, write_layer("x", tree, tmp_path / "x.tar", 1).digest]
    (tree / "file").chmod(0o755)
    seen.append(write_layer("x", tree, tmp_path / "x.tar", 0).digest)
    (tree / "file").write_text("two")
    seen.append(write_layer("x", tree, tmp_path / "x.tar", 0).digest)
    (tree / "link").unlink()
    (tree / "link").symlink_to("nowhere")
    seen.append(write_layer("x", tree, tmp_path / "x.tar", 0).digest)
    assert len(set(seen)) == 5


def test_everything_is_roots_and_nothing_is_setuid_or_open_to_all(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "tmp").mkdir(parents=True)
    for name, mode in (("program", 0o6775), ("file", 0o666), ("private", 0o600)):
        (tree / name).write_text(name)
        (tree / name).chmod(mode)
    old = os.umask(0o077)
    try:
        (tree / "folder").mkdir()
        settle(tree, 5)
    finally:
        os.umask(old)
    found = {m.name: m for m in members(write_layer("x", tree, tmp_path / "x.tar", 5))}
    modes = {name: oct(m.mode) for name, m in found.items()}
    assert modes == {"program": "0o755", "file": "0o644", "private": "0o644", "folder": "0o755", "tmp": "0o1777"}
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in found.values()} == {(0, 0, "", "", 5)}


def test_entries_are_sorted_and_folders_come_before_what_lies_in_them(tmp_path: Path) -> None:
    plant(tmp_path / "tree", {("b", "y"): b"", ("a", "z"): b"", ("a", "a"): b""}, 1)
    names = [m.name for m in members(write_layer("x", tmp_path / "tree", tmp_path / "x.tar", 0))]
    assert names == ["da", "da/a", "da/z", "db", "db/y"]
    assert io.BytesIO((tmp_path / "x.tar").read_bytes()).read(2) == b"da"
