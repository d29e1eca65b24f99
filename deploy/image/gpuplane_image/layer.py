"""One layer: a tree as a tar whose bytes depend on the tree alone.

Sorted entries, one time, root as owner, no names of users. It is not compressed: what compressors write differs from
version to version, and whoever pushes an image to a registry compresses it then.
"""

from __future__ import annotations

import hashlib
import stat
import tarfile
from pathlib import Path
from typing import BinaryIO, NamedTuple


class Layer(NamedTuple):
    """`digest` is both that of the blob and the diff id, since a layer is not compressed."""

    name: str
    path: Path
    digest: str
    size_bytes: int


class _Digesting:
    """A file to write to that knows the digest of what it was given."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self._file.write(data)


def write_layer(name: str, tree: Path, output: Path, epoch: int) -> Layer:
    """Writes the tree below `tree`, its modes as they are, to `output`."""
    with output.open("wb") as file:
        digesting = _Digesting(file)
        with tarfile.open(fileobj=digesting, mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
            for path in sorted(tree.rglob("*")):
                _add(archive, path, str(path.relative_to(tree)), epoch)
    return Layer(name, output, f"sha256:{digesting.digest.hexdigest()}", digesting.size)


def _add(archive: tarfile.TarFile, path: Path, name: str, epoch: int) -> None:
    status = path.lstat()
    entry = tarfile.TarInfo(name)
    entry.mtime = epoch
    entry.mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        archive.addfile(entry)
    elif stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    else:
        entry.size = status.st_size
        with path.open("rb") as file:
            archive.addfile(entry, file)
