"""The texts that users name on the command line: a file, or `-` for standard input, both with a limit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from kubekit.documents import LONGEST_FILE, decode_text, read_stream, read_text

LONGEST_TABLE: Final = 64 << 20
"""Bytes of the pods of a large cluster, as CSV or as `kubectl get pods -o yaml` prints them."""


def read_input(path: Path, *, limit: int = LONGEST_FILE) -> str:
    """Return the text of a file, or of standard input for `-`.

    Raises:
        FileError: it cannot be read, is longer than `limit` bytes, or is a pipe or a device.
        DocumentError: it is no UTF-8.
    """
    if str(path) != "-":
        return read_text(path, limit=limit, cure="give - in its place, which reads standard input")
    where = "standard input"
    return decode_text(read_stream(sys.stdin.buffer, where, limit=limit), where=where)
