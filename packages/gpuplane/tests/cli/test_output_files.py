"""Files that users name for an answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuplane.cli.output_files import write_output
from kubekit.errors import InvalidInput


def write(path: Path, content: bytes, *, private: bool = False) -> None:
    write_output(path, content, option="--html", cure="name another", private=private)


def test_a_file_is_replaced_whole_with_the_permissions_of_the_user(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "page", b"first")
        write(tmp_path / "page", b"second")
        write(tmp_path / "secret", b"third", private=True)
    finally:
        os.umask(before)
    assert (tmp_path / "page").read_bytes() == b"second"
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("page", "secret")] == [0o640, 0o600]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page", "secret"]


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write(tmp_path / "pipe", b"page")
    assert os.read(reader, 9) == b"page"
    os.close(reader)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--html .*/no/page: cannot write the file: no such file.*name another"):
        write(tmp_path / "no" / "page", b"")
