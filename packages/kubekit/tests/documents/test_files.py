"""Files that users name: regular ones up to a limit, and nothing that waits or never ends."""

from __future__ import annotations

import io
import os
import socket
from pathlib import Path

import pytest

from kubekit.documents import DocumentError, FileError, read_file, read_stream, read_text, size_text


def test_a_regular_file_is_read_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfGPU \xe2\x9c\x93")
    (tmp_path / "link").symlink_to("a")
    assert read_text(tmp_path / "link") == "GPU ✓"


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError) as raised:
        read_file(tmp_path / "pipe", cure="- reads standard input")
    assert raised.value.what == "cannot be read: it is a pipe"
    assert (raised.value.cure, raised.value.exit_code) == ("- reads standard input", 3)


def test_a_pipe_behind_a_process_substitution_is_refused() -> None:
    read, write = os.pipe()
    try:
        with pytest.raises(FileError, match="it is a pipe"):
            read_file(Path(f"/dev/fd/{read}"))
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom", "/dev/null"])
def test_devices_are_refused(device: str) -> None:
    with pytest.raises(FileError, match="it is a device"):
        read_file(Path(device))


def test_directories_and_sockets_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileError, match="it is a directory"):
        read_file(tmp_path)
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        with pytest.raises(FileError, match="it is a socket"):
            read_file(Path("s"))


@pytest.mark.parametrize("name", ["absent", "a\0b", "x" * 300])
def test_a_file_that_cannot_be_opened_is_an_error_of_ours(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileError, match="cannot be read: "):
        read_file(tmp_path / name)


def test_a_longer_file_is_refused_and_no_more_of_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FileError, match="is longer than 16 MiB"):
        read_file(tmp_path / "sparse")
    stream = io.BytesIO(b"x" * 100)
    with pytest.raises(FileError, match="standard input: is longer than 10 bytes"):
        read_stream(stream, "standard input", limit=10)
    assert stream.tell() == 11


@pytest.mark.parametrize(
    ("data", "place"), [(b"a\nb\xff", "2:2"), (b"\xef\xbb\xbfa\xff", "1:3"), ("ü".encode() + b"\xe2\x82", "1:2")]
)
def test_other_bytes_than_utf8_are_refused_with_line_and_column(tmp_path: Path, data: bytes, place: str) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(DocumentError, match="is no UTF-8 text") as raised:
        read_text(tmp_path / "a")
    assert raised.value.where == f"{tmp_path / 'a'}:{place}"


def test_sizes_as_people_write_them() -> None:
    assert [size_text(size) for size in (100, 1 << 10, 1500, 3 << 20)] == ["100 bytes", "1 KiB", "1500 bytes", "3 MiB"]
