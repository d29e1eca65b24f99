"""Files that clients of MPS may write, in a mount namespace of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import os, sys
from pathlib import Path
from gpuplane.mps.shm import mount_pipe, mount_shm, unmount
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
unmount(shm)
unmount(shm)
assert not os.path.ismount(shm) and list(shm.iterdir()) == []
"""
BOUNDED = """
shm = root / "run/nvidia/mps/shm"
mount_shm(shm, root, root)
bounds = os.statvfs(shm)
assert (bounds.f_blocks * bounds.f_frsize, bounds.f_files) == (1 << 30, 65536)
unmount(shm)
"""

ROOT = """
from gpuplane.mps.shm import mount_root, unmount_root
own, driver = root / "srv/mps", root / "run/nvidia/driver"
mounted = mount_root(own, driver / "srv/mps")
(own / "pipe").touch()
assert mounted and (driver / "srv/mps/pipe").exists()
assert not mount_root(own, driver / "srv/mps"), "as after a restart"
unmount_root(driver / "srv/mps")
assert list((driver / "srv/mps").iterdir()) == [] and (own / "pipe").exists()
# The default is below a folder that the driver's root has already.
(root / "run/nvidia/mps").mkdir()
(driver / "run").symlink_to(root / "run")
assert not mount_root(root / "run/nvidia/mps", driver / "run/nvidia/mps")
"""
PIPE = """
pipe, victim = root / "run/nvidia/mps/nvidia.com/gpu/pipe", root / "passwd"
pipe.mkdir(parents=True)
victim.write_text("root")
def plant():
    (pipe / "control.pid").symlink_to(victim)
    (pipe / "a/b").mkdir(parents=True)
plant()
"""
UNSEEN = """
mount_pipe(pipe, pipe)
assert not os.path.ismount(pipe) and list(pipe.iterdir()) == [] and victim.read_text() == "root"
"""
SEEN = """
try:
    for _ in range(2):  # as after a restart
        mount_pipe(pipe, pipe)
        assert os.path.ismount(pipe) and list(pipe.iterdir()) == []
        plant()
    assert Path("/proc/self/mounts").read_text().count(f"{root}/") == 1
    bounds = os.statvfs(pipe)
    assert (bounds.f_blocks * bounds.f_frsize, bounds.f_files) == (16 << 20, 1024)
    if tuple(map(int, os.uname().release.split(".")[:2])) >= (5, 10):
        try:
            (pipe / "control.pid").write_text("the daemon's")
        except OSError:
            pass
        assert victim.read_text() == "root", "a root daemon writes there"
finally:
    unmount(pipe)
assert not os.path.ismount(pipe)
"""


def check(program: str, root: Path, namespace: tuple[str, ...] = ("unshare", "--mount")) -> None:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    argv = [*namespace, sys.executable, "-c", HEAD + program, str(root)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_daemons_and_clients_meet_in_a_tmpfs_of_their_own(tmp_path: Path) -> None:
    check(SHARED, tmp_path)


def test_a_driver_with_a_root_of_its_own_finds_the_mps_root_at_its_path(tmp_path: Path) -> None:
    check(ROOT, tmp_path)


def test_the_shared_memory_of_clients_is_bounded(tmp_path: Path) -> None:
    check(BOUNDED, tmp_path)


def test_the_sockets_of_a_daemon_are_bounded_and_no_link_of_a_client_is_followed(tmp_path: Path) -> None:
    if Path("/proc/1/mountinfo").read_text() != Path("/proc/self/mountinfo").read_text():
        pytest.skip("process 1 has a mount namespace of its own")
    check(PIPE + SEEN, tmp_path, namespace=())


def test_what_clients_left_is_removed_where_mounts_do_not_reach_them(tmp_path: Path) -> None:
    check(PIPE + UNSEEN, tmp_path)
