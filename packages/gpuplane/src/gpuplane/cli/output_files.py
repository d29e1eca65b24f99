"""Writes the files that users name for an answer: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kubekit.errors import InvalidInput


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
