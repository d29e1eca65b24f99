"""A container tries to leave its file system: by other disks, control groups, files of the cluster, symbolic links."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from packages.tinykube.tests.kubelet.test_containers import namespaces, output, record
from packages.tinykube.tests.kubelet.test_containers import run as run_script
from simgpu.machines import build_node, machine
from tinykube.kubelet.containers import BindMount, ContainerSpec, Launcher, Records
from tinykube.kubelet.containers.capabilities import capability_mask
from tinykube.kubelet.containers.launcher import kill_all
from tinykube.kubelet.containers.modes import Isolation

pytestmark = namespaces


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that containers see: they have a /tmp of their own."""
    found = Path.home() / f".tinykube-test-{uuid.uuid4().hex}"
    found.mkdir()
    yield found
    shutil.rmtree(found)


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system below a directory at the top of the machine that has no layer of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    found = (Path("/mnt") if Path("/mnt").is_dir() else Path("/media")) / f"tinykube {uuid.uuid4().hex}"
    found.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", found], check=True)
    yield found
    subprocess.run(["umount", found], check=True)
    found.rmdir()


@pytest.fixture
def root(place: Path) -> Path:
    build_node(place / "node", "n", machine("cpu-ubuntu24"))
    return place / "node/root"


@pytest.fixture
def launcher(root: Path, place: Path) -> Iterator[Launcher]:
    yield Launcher(root, Records(root.parent / "containers"), private=(place / "cluster",))
    kill_all(root.parent / "containers")


async def test_no_container_reads_the_files_of_its_cluster(launcher: Launcher, root: Path, place: Path) -> None:
    (place / "open").write_text("seen\n")
    (place / "cluster").mkdir()
    (place / "cluster/tokens").write_text("secret\n")
    again = Launcher(root, launcher.records, private=(place / "cluster",))
    script = f"cat {place}/open; cat {place}/cluster/tokens; ls -A {place}/cluster"
    for privileged in (False, True):
        _, said = await run_script(again, root, script, privileged=privileged)
        assert "seen" in said and "secret" not in said
        assert "tokens: No such file" in said


@pytest.mark.parametrize("privileged", [False, True])
async def test_what_is_mounted_below_the_machines_directories_is_read_only(
    launcher: Launcher, root: Path, disk: Path, privileged: bool
) -> None:
    (disk / "there").write_text("there\n")
    script = f"cat '{disk}/there'; echo written > '{disk}/there'"
    _, said = await run_script(launcher, root, script, privileged=privileged)
    assert said.startswith("there\n") and "Read-only" in said
    assert (disk / "there").read_text() == "there\n"


async def test_a_container_changes_no_control_group(launcher: Launcher, root: Path) -> None:
    script = """
    for place in $(grep -E ' /sys/fs/cgroup(/|  *)' /proc/self/mountinfo | cut -d' ' -f5); do
        mkdir $place/escaped-%s 2>/dev/null && echo made $place
    done
    mkdir /sys/fs/cgroup/escaped-%s 2>/dev/null && echo made
    true
    """ % ((uuid.uuid4().hex,) * 2)
    assert await run_script(launcher, root, script) == (0, "")


@pytest.mark.parametrize("privileged", [False, True])
async def test_a_device_that_a_container_makes_opens_nothing(launcher: Launcher, root: Path, privileged: bool) -> None:
    """By its numbers it would be any device of the machine, such as its disk; here it is /dev/zero."""
    (root / "volume").mkdir()
    mounts = (BindMount(str(root / "volume"), "/volume"),)
    script = """
    for place in / /tmp /run /dev /dev/shm /etc /root /volume; do
        rm -f $place/made; mknod $place/made c 1 5 2>/dev/null || continue
        head -c 1 $place/made >/dev/null 2>&1 && echo opened $place; rm -f $place/made
    done
    head -c 1 /dev/zero >/dev/null && echo x > /dev/null && echo devices work
    """
    code, said = await run_script(launcher, root, script, mounts=mounts, privileged=privileged)
    assert (code, said) == (0, "devices work\n")


async def test_a_container_reads_no_traffic_of_others(launcher: Launcher, root: Path) -> None:
    program = "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x300)"
    script = f"{sys.executable} -c '{program}' 2>&1 | tail -1"
    _, said = await run_script(launcher, root, script, capabilities=capability_mask())
    assert said == "PermissionError: [Errno 1] Operation not permitted\n"


async def test_a_link_in_a_volume_leads_no_mount_to_the_machine(launcher: Launcher, root: Path, place: Path) -> None:
    volume, other = root / "volume", root / "other"
    volume.mkdir()
    other.mkdir()
    # As a container of the same pod writes them: by the name that the machine's root had, and up to the machine's root.
    (volume / "old").symlink_to(f"/.old{place}")
    mounts = (BindMount(str(volume), "/volume"), BindMount(str(other), "/volume/old/made"))
    one = record(root, uuid.uuid4().hex)
    with pytest.raises(Exception, match=r"mount|mkdir"):
        await launcher.start(one, ContainerSpec(argv=("true",), env={"PATH": "/bin"}, mounts=mounts), "now")
    assert not (place / "made").exists()


async def test_a_link_that_takes_the_place_of_a_mounts_source_is_not_followed(
    launcher: Launcher, root: Path, place: Path
) -> None:
    (place / "machine").mkdir()
    (place / "machine/secret").write_text("secret\n")
    volume = root / "volume"
    volume.mkdir()
    source = volume / "sub"
    # The kubelet found a directory there, and before the mount the container of the same pod replaced it.
    climbs = "/".join([".."] * len(volume.parts))
    for target in (f"{climbs}{place}/machine", f"../../../{'machine'}", str(place / "machine")):
        source.unlink(missing_ok=True)
        source.symlink_to(target)
        for mounted in (source, source / "secret"):
            one = record(root, uuid.uuid4().hex)
            spec = ContainerSpec(argv=("cat", "/sub"), env={"PATH": "/bin"}, mounts=(BindMount(str(mounted), "/sub"),))
            with pytest.raises(Exception, match="mount source"):
                await launcher.start(one, spec, "now")
            assert "secret" not in (output(one) if Path(one.log).exists() else "")


async def test_a_clusters_directory_that_links_lead_to_is_mounted_all_the_same(root: Path, place: Path) -> None:
    (place / "link").symlink_to(place / "node")
    by_link = place / "link/root"
    launcher = Launcher(by_link, Records(place / "link/containers"))
    assert launcher.mode.isolation is not Isolation.NONE
    (root / "volume").mkdir()
    (root / "volume/file").write_text("there\n")
    mounts = (BindMount(str(by_link / "volume"), "/volume"),)
    assert await run_script(launcher, by_link, "cat /volume/file", mounts=mounts) == (0, "there\n")
