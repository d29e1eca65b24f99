"""Writes the files that users name for an answer: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kubekit.errors import InvalidInput, UsageError


def require_output(path: Path, *, option: str, cure: str) -> None:
    """Refuse a file that cannot be written, before the work for its content is done.

    Raises UsageError for `-`, since standard output has the answer; InvalidInput for a folder, or a file in none.
    """
    where = f"{option} {path}"
    if str(path) == "-":
        raise UsageError("standard output has the answer of the command", where=where, cure=cure)
    if path.is_dir():
        raise InvalidInput("cannot write the file: it is a folder", where=where, cure=cure)
    if not path.parent.is_dir():
        raise InvalidInput(f"cannot write the file: there is no folder {path.parent}", where=where, cure=cure)


def write_output(path: Path, content: bytes, *, option: str, cure: str, private: bool = False) -> None:
    """Write a file in one step. A device or a pipe, as /dev/stdout, is written to as it is.

    Args:
        option: as users wrote it, for the error: `--html`.
        private: readable by its user alone; else as the umask says.

    Raises InvalidInput where it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        # mkstemp: 0600 from the beginning.
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if not private:
                temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        except BaseException:
            temporary.unlink()
            raise
    except OSError as error:
        why = error.strerror.lower() if error.strerror else str(error)
        raise InvalidInput(f"cannot write the file: {why}", where=f"{option} {path}", cure=cure) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
