"""A cluster that its machine has no room for is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulab.light.nodes import DEFAULT_MACHINE
from gpulab.light.root import RootTemplate
from gpulab.light.world import LightHost
from gpuplane.cli.main import main
from simgpu import profile
from simgpu.machines import machine
from tinykube.cluster import ClusterSpec, MachineSpec
from tinykube.cluster.room import NEEDS, MachineRoom, free_memory, shortage

GIB = 1 << 30
PLACE = Path("/home/me/.gpuplane/clusters/c")


def light(count: int) -> ClusterSpec:
    return ClusterSpec(name="c", light_nodes=count)


@pytest.mark.parametrize("count", ["999999", "999999999999999999"])
def test_more_light_nodes_than_fit_are_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, count: str
) -> None:
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path))
    monkeypatch.setattr("tinykube.cluster.lifecycle.read_room", lambda place: MachineRoom(memory=8 * GIB))
    assert main(["up", "--light-nodes", count]) == 1
    said = capsys.readouterr().err
    assert "there is too little memory: 8192 MiB are free, this cluster needs" in said
    assert "where  this machine" in said and "cure   --light-nodes 173610 at most" in said
    assert "starting" not in said and list((tmp_path / "clusters").iterdir()) == []


def test_the_count_of_the_cure_fits_and_one_more_does_not() -> None:
    room = MachineRoom(disk=GIB, files=1_000_000, memory=GIB)
    short = shortage(room, light(100_000), PLACE, "HOME_OF_IT")
    assert short is not None and short.what.startswith("the disk is too full: 1024 MiB are free")
    assert short.where == str(PLACE) and short.cure.endswith("or set HOME_OF_IT to another directory")
    most = int(short.cure.split()[1])
    assert shortage(room, light(most), PLACE, "") is None
    assert shortage(room, light(most + 1), PLACE, "") is not None


def test_the_scarcest_resource_is_named() -> None:
    short = shortage(MachineRoom(disk=10 * GIB, files=100, memory=GIB), light(100_000), PLACE, "")
    assert short is not None and short.what.startswith("the file system has too few free inodes: 100 are free")
    many = ClusterSpec(nodes=tuple(MachineSpec(name=f"n{i}", machine="t4-ubuntu22") for i in range(100)))
    short = shortage(MachineRoom(memory=GIB), many, PLACE, "")
    assert short is not None and "1024 MiB are free, this cluster needs 2854 MiB" in short.what
    assert short.cure == "fewer machines, or end other programs"


def test_a_system_without_limits_refuses_no_cluster() -> None:
    assert shortage(MachineRoom(), light(10**9), PLACE, "") is None


def test_the_needs_of_a_light_node_are_those_of_its_files(tmp_path: Path) -> None:
    what, root = machine(DEFAULT_MACHINE), tmp_path / "n/root"
    RootTemplate(what, tmp_path / ".template").make(root)
    LightHost(root, what.driver, profile(what.gpus).count).load("nvidia")
    own = [path for path in (tmp_path / "n").rglob("*") if path.lstat().st_nlink == 1 or path.is_dir()]
    (files,) = (need for need in NEEDS if need.resource == "files")
    assert len(own) + 1 == files.light_node  # 1: the node's directory


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A machine with 2 GiB of memory available and 1 GiB of swap; this process is in the control group `a/b`."""
    for name in ("self", "groups/a/b"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "meminfo").write_text("MemTotal: 9999999 kB\nMemAvailable: 2097152 kB\nSwapFree: 1048576 kB\n")
    (tmp_path / "self/cgroup").write_text("1:name=systemd:/x\n0::/a/b\n")
    return tmp_path


def limit(group: Path, most: str, used: int, droppable: int) -> None:
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {droppable}\n")


def test_free_memory_is_that_of_the_machine_or_of_the_narrowest_control_group(system: Path) -> None:
    groups = system / "groups"
    assert free_memory(system, groups) == 3 * GIB
    limit(groups / "a/b", "max", GIB, 0)
    assert free_memory(system, groups) == 3 * GIB
    limit(groups / "a", str(2 * GIB), GIB, GIB // 2)
    assert free_memory(system, groups) == GIB + GIB // 2
    limit(groups / "a/b", str(GIB), 2 * GIB, 0)
    assert free_memory(system, groups) == 0
    assert free_memory(system / "missing", groups) is None
