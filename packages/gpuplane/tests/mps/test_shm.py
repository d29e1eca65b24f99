"""What clients of MPS may write, in a mount namespace of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import os, sys
from pathlib import Path
from gpuplane.mps.shm import mount_shm, unmount_shm
root = Path(sys.argv[1])
"""
SHARED = """
shm, driver = root / "run/nvidia/mps/shm", root / "dev/shm"
driver.mkdir(parents=True)
for _ in range(2):  # as after a restart
    mount_shm(shm, root, root)
(driver / "from-the-daemon").touch()
assert (shm / "from-the-daemon").exists() and os.path.ismount(shm) and os.path.ismount(driver)
assert shm.stat().st_mode & 0o7777 == 0o1777
assert Path("/proc/self/mounts").read_text().count(f"{root}/") == 2
unmount_shm(shm)
unmount_shm(shm)
assert not os.path.ismount(shm) and list(shm.iterdir()) == []
"""
BOUNDED = """
shm = root / "run/nvidia/mps/shm"
mount_shm(shm, root, root)
bounds = os.statvfs(shm)
assert (bounds.f_blocks * bounds.f_frsize, bounds.f_files) == (1 << 30, 65536)
unmount_shm(shm)
"""


def check(program: str, root: Path) -> None:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", HEAD + program, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_daemons_and_clients_meet_in_a_tmpfs_of_their_own(tmp_path: Path) -> None:
    check(SHARED, tmp_path)


def test_the_shared_memory_of_clients_is_bounded(tmp_path: Path) -> None:
    check(BOUNDED, tmp_path)
