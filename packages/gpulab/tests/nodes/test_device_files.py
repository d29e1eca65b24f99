"""Files that stand for devices are to the programs of a simulated machine what the devices are."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpulab.device_files import presenting


@pytest.mark.parametrize(
    ("permissions", "text", "device"),
    [(0o1666, "195 255", True), (0o666, "195 255", False), (0o1666, "words", False)],
)
def test_a_stand_in_is_a_device(tmp_path: Path, permissions: int, text: str, device: bool) -> None:
    node = tmp_path / "nvidiactl"
    node.write_text(text)
    node.chmod(permissions)
    found = presenting(os.stat)(node)
    assert stat.S_ISCHR(found.st_mode) == device
    if device:
        assert found.st_rdev == os.makedev(195, 255)
