"""Files of a volume that change all at once, as a kubelet writes them.

The files lie in a folder with the time in its name. The link `..data` leads to that folder, and each file of the volume
is a link through `..data`. A reader sees the files of one state of their object, since one rename replaces the link.

Source: pkg/volume/util/atomic_writer.go of Kubernetes 1.36.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

DATA: Final = "..data"
_NEXT: Final = "..data_tmp"


class VolumeFile(msgspec.Struct, frozen=True):
    """A file of a volume. `user` owns it; None is the user of the kubelet."""

    data: bytes
    mode: int
    user: int | None = None


def write_files(
    directory: Path, files: Mapping[str, VolumeFile], own: Callable[[Path, Path], None] = lambda top, folder: None
) -> None:
    """Make the volume `directory` hold exactly `files`, by relative path. Files that do not differ stay as they are.

    `own` gives the files their owners before a container can see them. It receives the top of what is new, and the new
    folder with the files: for the first state the top is the volume, later the folder. Raises OSError.
    """
    if not directory.is_dir():
        directory.mkdir(parents=True)
        directory.chmod(0o777)  # as the empty directory that a kubelet begins with
    before = _current(directory)
    if before is None or _differs(before, files):
        folder = directory / f"..{datetime.now(UTC):%Y_%m_%d_%H_%M_%S}.{secrets.randbelow(10**9)}"
        folder.mkdir(mode=0o755)
        for name, file in files.items():
            _write(folder / name, file)
        _link_names(directory, files)
        own(directory if before is None else folder, folder)
        (directory / _NEXT).unlink(missing_ok=True)  # of a kubelet that was killed
        (directory / _NEXT).symlink_to(folder.name)
        (directory / _NEXT).rename(directory / DATA)
    _remove_rest(directory, files)


def _current(directory: Path) -> Path | None:
    try:
        return directory / (directory / DATA).readlink()
    except FileNotFoundError:
        return None


def _differs(folder: Path, files: Mapping[str, VolumeFile]) -> bool:
    """Return whether a state has other files. Modes are not compared: they change with the pod only."""
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return there != {os.path.normpath(name) for name in files} or any(
        (folder / name).read_bytes() != file.data for name, file in files.items()
    )


def _write(path: Path, file: VolumeFile) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.data)
    path.chmod(file.mode)


def _tops(files: Mapping[str, VolumeFile]) -> set[str]:
    return {os.path.normpath(name).partition("/")[0] for name in files}


def _link_names(directory: Path, files: Mapping[str, VolumeFile]) -> None:
    """Link what is new; a link without its file in the state that still counts leads nowhere, as a missing file."""
    for top in _tops(files):
        with contextlib.suppress(FileExistsError):
            (directory / top).symlink_to(f"{DATA}/{top}")


def _remove_rest(directory: Path, files: Mapping[str, VolumeFile]) -> None:
    """Remove links of files that are gone, and states that do not count: an earlier one, or one half made."""
    current = _current(directory)
    tops = _tops(files)
    for path in directory.iterdir():
        if path.is_symlink():
            if path.name != DATA and path.name not in tops:
                path.unlink()
        elif path.name.startswith("..") and path != current:
            shutil.rmtree(path, ignore_errors=True)
