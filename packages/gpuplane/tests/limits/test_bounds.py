"""The file that a container may write lies on a file system of its own size: made once, found again, taken away."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import logging
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from ctypes import sizeof
from pathlib import Path

import msgspec
import pytest

from gpuplane.host.mounting import NODEV, NOSUID, mount, unmount
from gpuplane.limits import Agent, Arbiter, Owner, ShareStore, page
from gpuplane.limits.bounds import bound
from gpuplane.limits.decide import HostPid
from tests.support.limits_examples import GIB, limits, write_slot
from tests.support.until import until

ML = Owner(name="ml/tune-7:main", namespace="ml", pod="tune-7", container="main", pod_uid="u-7")
SIZE = sizeof(page.UsagePage)
CAP_SYS_ADMIN = 21
ROOT = Path(__file__).resolve().parents[4]


def mounts_below(place: Path) -> list[str]:
    """The mount points at and below a path, one entry for each layer."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point == str(place) or point.startswith(f"{place}/")]


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    """A directory that the container runtime would see. Skips the test where this process may not mount."""
    probe = tmp_path / "probe"
    probe.mkdir()
    try:
        mount("probe", probe, "tmpfs", NOSUID | NODEV)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error.strerror}")
    seen = str(probe) in Path("/proc/1/mountinfo").read_text()
    unmount(probe)
    if not seen:
        pytest.skip("process 1 has a mount namespace of its own")
    yield tmp_path / "base"
    for point in mounts_below(tmp_path):
        unmount(Path(point))


@pytest.fixture
def store(base: Path) -> ShareStore:
    return ShareStore(base, base)


def test_a_page_cannot_grow_on_its_file_system(store: ShareStore, base: Path) -> None:
    usage = store.write("x", limits(), ML) / "usage"
    room = os.statvfs(usage)
    assert SIZE <= room.f_blocks * room.f_frsize < SIZE + room.f_frsize
    assert (stat.S_IMODE(usage.stat().st_mode), usage.stat().st_size) == (0o666, SIZE)
    assert usage.stat().st_blocks * 512 < 100_000, "memory is counted to who fills it"
    with usage.open("r+b") as file, pytest.raises(OSError, match="No space"):
        file.truncate(4 * SIZE)
        file.write(bytes(2 * SIZE))
        file.flush()
    assert mounts_below(base) == [str(usage)]
    assert sorted(path.name for path in (base / "shares").iterdir()) == ["x"]


def test_a_restart_finds_the_page_again_and_mounts_nothing_twice(store: ShareStore, base: Path) -> None:
    usage = store.write("x", limits(), ML) / "usage"
    write_slot(store, "x", 2, 4711, 5 * GIB)
    inode = usage.stat().st_ino
    again = ShareStore(base, base)
    for _ in range(2):
        again.write("x", limits(core=60), ML)
    assert usage.stat().st_ino == inode and mounts_below(base) == [str(usage)]
    [slot] = again.read("x").slots
    assert slot.gpus[0].held_bytes == 5 * GIB
    again.write("x", limits(), msgspec.structs.replace(ML, pod_uid="u-8"))
    assert again.read("x").slots == () and mounts_below(base) == [str(usage)]


def test_after_a_reboot_the_page_is_bounded_again_and_no_container_is_accused(store: ShareStore, base: Path) -> None:
    usage = store.write("x", limits(), ML) / "usage"
    tenant = store.read("x").tenant
    write_slot(store, "x", 2, 4711, 5 * GIB)
    unmount(usage)
    after = ShareStore(base, base)
    assert after.mend() == () and [share.slots for share in after.all()] == [()]
    after.write("x", limits(), ML)
    assert mounts_below(base) == [str(usage)] and after.read("x").tenant == tenant


def test_a_page_of_an_earlier_release_is_bounded_with_its_content_when_its_container_starts_again(base: Path) -> None:
    usage = ShareStore(base).write("x", limits(), ML) / "usage"
    store = ShareStore(base, base)
    write_slot(store, "x", 2, 4711, 5 * GIB)
    with usage.open("r+b") as file:
        file.truncate(1 << 30)
    store.write("x", limits(), ML)
    assert mounts_below(base) == [str(usage)] and usage.stat().st_size == SIZE
    assert [slot.gpus[0].held_bytes for slot in store.read("x").slots] == [5 * GIB]


def test_a_page_has_the_label_of_the_file_below_for_selinux(base: Path) -> None:
    base.mkdir()
    file, label = base / "usage", b"system_u:object_r:container_file_t:s0\0"
    file.write_bytes(bytes(SIZE))
    os.setxattr(file, "security.selinux", label)
    assert bound(file, SIZE, base / "stage", file) == "" and mounts_below(base) == [str(file)]
    assert os.getxattr(file, "security.selinux") == label


def leased(usage: Path) -> bool:
    """Return whether a process gets a lease on a page, and release it: the agent would wait for the lease."""
    file = os.open(usage, os.O_RDONLY)
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(file)


@pytest.fixture
def arbiter(native: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "native/build.py"), "limiter/arbiter"], check=True)


@pytest.mark.parametrize("reboot", [False, True])
async def test_the_arbiter_has_the_file_open_that_containers_have(
    store: ShareStore, arbiter: None, reboot: bool
) -> None:
    usage = store.write("x", limits(), ML) / "usage"
    assert leased(usage)
    if reboot:
        unmount(usage)
    with Arbiter(store):
        if reboot:
            store.write("x", limits(), ML)
        await until(lambda: not leased(usage), what="the arbiter's look at the share")


def test_a_share_goes_while_a_process_has_its_page_open(store: ShareStore, base: Path) -> None:
    usage = store.write("x", limits(), ML) / "usage"
    with usage.open("r+b") as held:
        store.remove("x")
        assert mounts_below(base) == [] and list((base / "shares").iterdir()) == []
        held.write(b"still there")
        held.flush()


@pytest.mark.parametrize("end", ["sweep", "clear"])
def test_nothing_stays_mounted(store: ShareStore, base: Path, end: str) -> None:
    for name in ("x", "y"):
        store.write(name, limits(), msgspec.structs.replace(ML, pod_uid=name))
    # Directories that a killed writer leaves: one that is mounted, and one with a mounted file.
    for name in (".x.bound", ".z.gone"):
        (base / "shares" / name).mkdir()
    mount("gpuplane", base / "shares/.x.bound", "tmpfs", NOSUID | NODEV)
    (base / "shares/.z.gone/usage").write_bytes(page.to_bytes(page.fresh(page.UsagePage)))
    assert bound(base / "shares/.z.gone/usage", SIZE, base / "stage", base / "shares/.z.gone/usage") == ""
    assert len(mounts_below(base)) == 4
    if end == "sweep":
        assert ShareStore(base).sweep(lambda share: True) == ("x", "y")
        assert list((base / "shares").iterdir()) == []
    else:
        ShareStore(base).clear()
        assert not base.exists()
    assert mounts_below(base) == []


SHARE = """
import ctypes, logging, sys
from pathlib import Path
from gpuplane.limits import Owner, ShareStore
from tests.support.limits_examples import limits
logging.basicConfig(level="WARNING", format="%(message)s")
base = Path(sys.argv[1])
store = ShareStore(base, base)
for name in ("x", "y"):
    store.write(name, limits(), Owner(name=name))
print(len([line for line in open("/proc/self/mountinfo") if str(base) in line]))
"""


def without_right_to_mount() -> None:
    assert ctypes.CDLL(None).prctl(24, CAP_SYS_ADMIN, 0, 0, 0) == 0  # PR_CAPBSET_DROP


@pytest.mark.parametrize(
    ("command", "before", "reason"),
    [
        ([], without_right_to_mount, "Operation not permitted"),
        (["unshare", "--mount", "--propagation=private"], None, "the container runtime does not see mounts"),
    ],
    ids=["no right to mount", "mounts that stay in this namespace"],
)
def test_without_mounts_shares_are_as_they_were_and_the_reason_is_logged_once(
    base: Path, command: list[str], before: Callable[[], None] | None, reason: str
) -> None:
    if command and shutil.which(command[0]) is None:
        pytest.skip("no unshare here")
    argv = [*command, sys.executable, "-c", SHARE, str(base)]
    done = subprocess.run(argv, capture_output=True, text=True, preexec_fn=before, check=False)
    assert done.returncode == 0, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("usage pages not bounded") and reason in line
    assert done.stdout == "0\n"
    store = ShareStore(base)
    assert [share.id for share in store.all()] == ["x", "y"] and store.mend() == ()
    assert sorted(path.name for path in (base / "shares").iterdir()) == ["x", "y"]


def test_a_full_page_stops_neither_the_agent_nor_the_next_start(
    store: ShareStore, caplog: pytest.LogCaptureFixture
) -> None:
    usage = store.write("x", limits(), ML) / "usage"
    write_slot(store, "x", 1000, 4711, GIB)
    libc = ctypes.CDLL(None, use_errno=True)
    with usage.open("r+b") as file:

        def fallocate(mode: int, at: int, length: int) -> bool:
            return libc.fallocate(file.fileno(), mode, ctypes.c_long(at), ctypes.c_long(length)) == 0

        def fill() -> None:
            for at in itertools.count(SIZE, 4096):
                if not fallocate(1, at, 4096):
                    return

        fill()
        with caplog.at_level(logging.WARNING):
            Agent(store, None).step()
        store.put_pid(HostPid("x", 1000, 5))
        assert fallocate(3, 0, 4096), "the head is a hole"
        fill()
        assert store.mend() == (("x", ML.name),) and store.mend() == ()
        fill()
        store.write("x", limits(), ML)
        store.vacate("x")
        assert store.read("x").slots == ()
