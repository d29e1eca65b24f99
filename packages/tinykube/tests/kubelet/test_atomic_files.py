"""Files of a volume change together, whatever they were before and whenever the kubelet was killed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.kubelet.atomicfiles import DATA, VolumeFile, write_files

States = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "d/c", "d/e/f", "..g"]), st.binary(max_size=3), max_size=4), max_size=5
)


def seen(volume: Path) -> dict[str, bytes]:
    """Return the files that a container finds, without the kubelet's own names, and the files in their folders."""
    tops = [path for path in volume.iterdir() if path.name in ("a", "b", "d", "..g")]
    files = [path for top in tops for path in ([top] if top.is_file() else top.rglob("*")) if path.is_file()]
    return {str(path.relative_to(volume)): path.read_bytes() for path in files}


def write(volume: Path, state: dict[str, bytes], **options: Any) -> None:
    write_files(volume, {name: VolumeFile(data, 0o640) for name, data in state.items()}, **options)


@given(States)
def test_a_volume_holds_the_last_state_and_nothing_of_earlier_ones(states: list[dict[str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        volume = Path(directory, "v")
        for state in [*states, {"a": b"last"}]:
            write(volume, state)
            assert seen(volume) == state
            assert len([path for path in volume.iterdir() if path.name.startswith("..2")]) == 1


def test_a_reader_of_the_data_sees_one_state(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"1", "b": b"1"})
    before = os.open(tmp_path / DATA, os.O_PATH)
    write(tmp_path, {"a": b"2", "b": b"2"})
    assert (tmp_path / "a").readlink() == Path("..data/a")
    with pytest.raises(FileNotFoundError):  # the earlier state is gone as a whole: no reader mixes the two
        os.open("a", os.O_RDONLY, dir_fd=before)
    os.close(before)


def test_what_does_not_differ_is_not_written(tmp_path: Path) -> None:
    write(tmp_path, {"d/c": b"1"})
    state = (tmp_path / DATA).readlink()
    write(tmp_path, {"d/c": b"1"})
    assert (tmp_path / DATA).readlink() == state


def test_owners_are_given_before_the_files_are_seen(tmp_path: Path) -> None:
    calls: list[tuple[str, bool]] = []

    def own(top: Path, folder: Path) -> None:
        calls.append((top.name, (tmp_path / "v/a").exists() and (tmp_path / "v/a").read_bytes() == b"new"))
        assert (folder / "a").stat().st_mode & 0o777 == 0o640

    write(tmp_path / "v", {"a": b"old"}, own=own)
    write(tmp_path / "v", {"a": b"new"}, own=own)
    assert calls[0] == ("v", False) and calls[1][0].startswith("..2") and not calls[1][1]


@pytest.mark.parametrize("step", ["mkdir", "chmod", "symlink_to", "rename"])
def test_a_kubelet_that_was_killed_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write(tmp_path, {"a": b"1"})

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, step, killed)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, {"a": b"2", "b": b"2"})
    assert (tmp_path / "a").read_bytes() == b"1"
    write(tmp_path, {"a": b"2", "b": b"2"})
    assert seen(tmp_path) == {"a": b"2", "b": b"2"}
