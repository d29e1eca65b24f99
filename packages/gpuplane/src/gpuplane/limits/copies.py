"""Copies of the limits pages outside of the directories that containers mount: <base>/copies/<id>, root's alone.

A container reads its limits page and cannot write it, unless it has rights on the node. Then the copy differs, and the
page gets its content again in place, since processes have it mapped.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gpuplane.limits.files import make_dirs, opened, put


def put_copy(base: Path, share: str, data: bytes) -> None:
    make_dirs(base / "copies")
    put(base / "copies" / share, data, 0o600)


def drop_copy(base: Path, share: str) -> None:
    (base / "copies" / share).unlink(missing_ok=True)


def restore(base: Path, share: str, page: Path) -> bool:
    """Write the copy's content to a page that differs from it; return whether it did. A share without a copy, which an
    older release wrote, gets one.
    """
    with opened(page, os.O_RDWR) as handle:
        size = os.fstat(handle).st_size
        found = os.pread(handle, size, 0)
        with contextlib.suppress(FileNotFoundError):
            wanted = (base / "copies" / share).read_bytes()
            if found == wanted:
                return False
            if size != len(wanted):
                os.ftruncate(handle, len(wanted))
            os.pwrite(handle, wanted, 0)
            return True
    put_copy(base, share, found)
    return False
