"""Bounded reading of JSON and of files that users, tenants or other programs wrote; YAML is `kubekit.yaml_documents`.

Python's JSON readers end with a RecursionError for deep texts and a UnicodeDecodeError for other bytes than UTF-8.
`Path.read_text` waits for ever for a pipe, and reads a device until the memory is full.

Invariants:

- A reader takes time and memory in proportion to its limit, whatever the text is.
- DocumentError names the problem of a text and its place, FileError why a file cannot be read. No other exception
  leaves a reader.
"""

from __future__ import annotations

import os
import re
import stat
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar, overload

import msgspec

from kubekit.errors import InvalidInput, Terminal

MOST_DEPTH: Final = 100
"""Levels of objects and lists. A CustomResourceDefinition with the schema of a whole pod has about 40."""
LONGEST_FILE: Final = 16 << 20
"""Bytes of a file of manifests, or of a table of pods."""
LONGEST_SETTINGS: Final = 1 << 20
"""Bytes of a configuration file or a kubeconfig; a ConfigMap holds no more."""
LONGEST_VALUE: Final = 256 << 10
"""Bytes of an annotation; an API server takes no more for all annotations of an object."""

_BOM: Final = b"\xef\xbb\xbf"
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
# Openers of objects and lists count up, closers down.
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in _STEPS)
_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
# Possessive, and an unfinished string goes to the end: otherwise each of its quotes would begin another search.
_STRING_OR_BRACKET: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[][{}]', re.DOTALL)
_TO_FILE: Final = "write the text to a file first"
T = TypeVar("T")


class DocumentError(InvalidInput):
    """A text that cannot be read.

    `problem` is what is wrong, without the place; `line` and `column` count from 1 and are 0 where they are unknown.
    """

    def __init__(self, problem: str, *, where: str = "", line: int = 0, column: int = 0, cure: str = "") -> None:
        place = ":".join(str(part) for part in (where, line, column) if part)
        super().__init__(problem, where=place if where else f"line {line}, column {column}" if line else "", cure=cure)
        self.problem = problem
        self.line = line
        self.column = column


class FileError(Terminal):
    """A file that cannot be read: missing, forbidden, too large, or no regular file."""

    exit_code = 3


# -- files ---------------------------------------------------------------------------------------------------------
def read_file(path: Path, *, limit: int = LONGEST_FILE, cure: str = _TO_FILE) -> bytes:
    """Return the bytes of a regular file.

    Args:
        limit: bytes; a longer file is refused.
        cure: what to do with a pipe, device or socket instead.

    Raises:
        FileError: the file cannot be opened, is longer, or is a directory, pipe, device or socket. None of these is
            opened: a pipe without a writer would wait for ever.
    """
    try:
        _require_regular(path, path.stat().st_mode, cure)
        # A file that a pipe has replaced since must not block either.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            _require_regular(path, os.fstat(handle).st_mode, cure)
            return read_stream(file, str(path), limit=limit)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise FileError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=str(path)) from error


def read_stream(stream: BinaryIO, where: str, *, limit: int = LONGEST_FILE) -> bytes:
    """Return the bytes of a stream up to its end. Raises FileError for more than `limit` bytes."""
    data = stream.read(limit + 1)
    if len(data) > limit:
        raise FileError(f"is longer than {size_text(limit)}", where=where, cure="split it")
    return data


def read_text(path: Path, *, limit: int = LONGEST_FILE, cure: str = _TO_FILE) -> str:
    """Return the text of a regular file, without a byte order mark. Raises FileError and DocumentError."""
    return decode_text(read_file(path, limit=limit, cure=cure), where=str(path))


def decode_text(data: bytes, *, where: str = "") -> str:
    """Return UTF-8 as text, without a byte order mark. Raises DocumentError with line and column."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # NB: the codec counts from behind the mark.
        at = error.start + len(_BOM) * data.startswith(_BOM)
        line, column = _place(data, at)
        raise DocumentError(
            f"is no UTF-8 text: {error.reason} at byte {at}",
            where=where,
            line=line,
            column=column,
            cure="save it as UTF-8",
        ) from None


def size_text(size: int) -> str:
    """Format a limit: `16 MiB`, `256 KiB`."""
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift and not size % (1 << shift):
            return f"{size >> shift} {unit}"
    return f"{size} bytes"


def _require_regular(path: Path, mode: int, cure: str) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for matches, name in _KINDS if matches(mode)), "no regular file")
        raise FileError(f"cannot be read: it is {kind}", where=str(path), cure="" if stat.S_ISDIR(mode) else cure)


# -- JSON ----------------------------------------------------------------------------------------------------------
@overload
def decode_json(data: bytes | str, *, where: str = "", limit: int = LONGEST_FILE) -> Any: ...


@overload
def decode_json(data: bytes | str, kind: type[T], *, where: str = "", limit: int = LONGEST_FILE) -> T: ...


def decode_json(data: bytes | str, kind: Any = Any, *, where: str = "", limit: int = LONGEST_FILE) -> Any:
    """Return the value of a JSON text, converted to `kind`. Raises DocumentError.

    Args:
        kind: what msgspec converts to; plain dicts, lists and scalars by default.
        where: the text's name for errors.
        limit: bytes; a longer text is refused.
    """
    text = check_json(data, where=where, limit=limit)
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:  # msgspec.DecodeError and UnicodeDecodeError are ValueErrors
        raise json_error(text, error, where=where) from None


def check_json(data: bytes | str, *, where: str = "", limit: int = LONGEST_FILE) -> bytes:
    """Return the bytes of a JSON text that any decoder can read safely; its syntax is not checked.

    Raises:
        DocumentError: the text is longer than `limit`, nested more than MOST_DEPTH deep, or no UTF-8.
    """
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError as error:
            raise DocumentError(f"is no Unicode text: {error.reason}", where=where) from None
    if len(data) > limit:
        raise DocumentError(f"is longer than {size_text(limit)}", where=where)
    try:
        data.isascii() or str(data, "utf-8")
    except UnicodeDecodeError:
        decode_text(data, where=where)  # raises, with the place
    if json_depth(data) > MOST_DEPTH:
        line, column = _place(data, _first_deeper(data, MOST_DEPTH))
        raise DocumentError(f"is nested more than {MOST_DEPTH} deep", where=where, line=line, column=column)
    return data


def json_depth(data: bytes) -> int:
    """Return a depth that no decoder of this text exceeds: that of the value where it is above MOST_DEPTH.

    A text with few brackets is not read any further: their number is the answer. In an invalid text a decoder stops at
    the first error, and up to there the strings are found as the decoder finds them.
    """
    most = data.count(b"[") + data.count(b"{")
    if most <= MOST_DEPTH:
        return most
    return max(accumulate(map(_STEPS.__getitem__, _outside_strings(data).translate(None, _NO_BRACKETS))), default=0)


def check_value(value: Any, *, limit: int = LONGEST_FILE) -> None:
    """Raise DocumentError for plain data whose JSON would be nested more than MOST_DEPTH deep, or longer than `limit`.

    For values that were made from others, as by a JSON patch: 30 copies of a value into itself are a billion values,
    all of them the same dict in memory.
    """
    level, left = [value], limit
    for _ in range(MOST_DEPTH + 1):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                left -= sum(map(len, one)) + 4 * len(one)
                inner += one.values() if left >= 0 else ()
            elif isinstance(one, list):
                left -= len(one)
                inner += one if left >= 0 else ()
            else:
                left -= len(one) if isinstance(one, str) else 1
            if left < 0:
                raise DocumentError(f"is longer than {size_text(limit)}")
        if not inner:
            return
        level = inner
    raise DocumentError(f"is nested more than {MOST_DEPTH} deep")


def cut_json(data: bytes) -> bytes:
    """Return a JSON text in which `null` replaces each value that lies deeper than MOST_DEPTH.

    For answers of an API server, which stores whatever depth a tenant writes into `managedFields` or a field without a
    schema. One such object must not hide the others of its list.
    """
    parts: list[bytes] = []
    level = kept = 0
    for found in _STRING_OR_BRACKET.finditer(data):
        step = _STEPS.get(data[found.start()], 0)
        level += step
        if step > 0 and level == MOST_DEPTH + 1:
            parts += (data[kept : found.start()], b"null")
            kept = len(data)
        elif step < 0 and level == MOST_DEPTH:
            kept = found.end()
    return b"".join((*parts, data[kept:]))


def json_error(data: bytes, error: Exception, *, where: str = "") -> DocumentError:
    """Return the error of a JSON decoder as one with line and column."""
    if isinstance(error, UnicodeDecodeError):
        return DocumentError(f"is no UTF-8 text: {error.reason}", where=where)
    found = _BYTE.search(str(error))
    line, column = _place(data, int(found[1])) if found else (0, 0)
    return DocumentError(_BYTE.sub("", str(error)).strip(), where=where, line=line, column=column)


def _outside_strings(data: bytes) -> bytes:
    """Return a JSON text without its strings; of an unfinished string nothing remains either."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(data.split(b'"')[::2])


def _first_deeper(data: bytes, depth: int) -> int:
    """Return where the first bracket stands that opens more than `depth` levels."""
    level = 0
    for found in _STRING_OR_BRACKET.finditer(data):
        level += _STEPS.get(data[found.start()], 0)
        if level > depth:
            return found.start()
    return 0


def _place(data: bytes, at: int) -> tuple[int, int]:
    """Return line and column of a byte, both from 1."""
    begin = data.rfind(b"\n", 0, at) + 1
    return data.count(b"\n", 0, at) + 1, len(data[begin:at].decode(errors="replace")) + 1
