"""What clients of MPS may write, in a mount namespace of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import errno, os, sys
from pathlib import Path
from gpuplane.mps.shm import mount_pipe, mount_shm, unmount
root = Path(sys.argv[1])

def fill(directory):
    handle = os.open(directory / "full", os.O_CREAT | os.O_WRONLY)
    try:
        for _ in range(2048):
            os.write(handle, bytes(1 << 20))
    except OSError as error:
        assert error.errno == errno.ENOSPC
        return os.fstat(handle).st_size
    raise AssertionError("2 GiB are written")
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
unmount(shm)
unmount(shm)
assert not os.path.ismount(shm) and list(shm.iterdir()) == []
"""
BOUNDED = """
pipe, inside = root / "run/nvidia/mps/gpu/pipe", root / "driver/run/nvidia/mps/gpu/pipe"
inside.mkdir(parents=True)
for _ in range(2):
    mount_pipe(pipe, root, root / "driver")
(inside / "control").touch()
assert (pipe / "control").exists() and pipe.stat().st_mode & 0o7777 == 0o755
assert fill(pipe) == 16 << 20
(pipe / "full").unlink()
try:
    for number in range(2048):
        (pipe / str(number)).touch()
    raise AssertionError("2048 files are made")
except OSError as error:
    assert error.errno == errno.ENOSPC
unmount(pipe)
assert list(pipe.iterdir()) == []
shm = root / "run/nvidia/mps/shm"
mount_shm(shm, root, root)
bounds = os.statvfs(shm)
assert (bounds.f_blocks * bounds.f_frsize, bounds.f_files) == (1 << 30, 65536)
unmount(shm)
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


def test_clients_fill_neither_the_memory_nor_the_run_directory_of_the_host(tmp_path: Path) -> None:
    check(BOUNDED, tmp_path)
