"""Files that stand for devices are to the programs of a simulated machine what the devices are."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gpulab.device_files import permitting, presenting


def read_only(path: Any, mode: int, **_: Any) -> bool:
    """`os.access` on a file system that is mounted read-only."""
    return not mode & os.W_OK and os.access(path, mode)


@pytest.mark.parametrize(
    ("permissions", "text", "device", "writable"),
    [(0o1666, "195 255", True, True), (0o1444, "195 255", True, False), (0o666, "195 255", False, False),
     (0o1666, "words", False, False)],
)  # fmt: skip
def test_a_stand_in_is_a_device_and_writable_where_files_are_not(
    tmp_path: Path, permissions: int, text: str, device: bool, writable: bool
) -> None:
    node = tmp_path / "nvidiactl"
    node.write_text(text)
    node.chmod(permissions)
    shown = presenting(os.stat)
    assert stat.S_ISCHR(shown(node).st_mode) == device
    if device:
        assert shown(node).st_rdev == os.makedev(195, 255)
    assert permitting(read_only, shown)(node, os.R_OK)
    assert permitting(read_only, shown)(node, os.W_OK) == writable
    assert not permitting(read_only, shown)(tmp_path / "gone", os.W_OK)
