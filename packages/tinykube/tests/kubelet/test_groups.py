"""Control groups: where this user may make them, the kernel holds containers to their memory and CPU."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.control_groups import GREEDY, limited
from tinykube.kubelet.containers.groups import (
    ControlGroups,
    GroupHierarchy,
    GroupLimits,
    cpu_shares,
    cpu_weight,
    find_hierarchy,
)

V1 = "35 30 0:30 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
CPU = "34 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
V2 = "36 30 0:31 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


@pytest.mark.parametrize(
    ("groups", "mounts", "found"),
    [
        ("4:memory:/a/b\n0::/x\n", (CPU, V1.format(root="/"), V2), ("/sys/fs/cgroup/memory/a/b", False)),
        ("4:memory:/docker/1\n", (V1.format(root="/docker/1"),), ("/sys/fs/cgroup/memory", False)),
        ("0::/user.slice/user-0.slice\n", (V2,), ("/sys/fs/cgroup", True)),
    ],
)
def test_groups_are_made_below_ones_own_or_at_the_top_of_version_2(
    groups: str, mounts: tuple[str, ...], found: tuple[str, bool]
) -> None:
    assert find_hierarchy("memory", groups, "\n".join(mounts)) == GroupHierarchy(Path(found[0]), found[1])
    assert find_hierarchy("memory", groups, CPU) is None


def test_the_group_of_cpu_is_found_in_a_hierarchy_that_it_shares() -> None:
    found = find_hierarchy("cpu", "3:cpu,cpuacct:/a\n4:memory:/b\n", "\n".join((CPU, V1.format(root="/"))))
    assert found == GroupHierarchy(Path("/sys/fs/cgroup/cpu,cpuacct/a"), unified=False)


def test_a_machine_that_cannot_limit_says_why(tmp_path: Path) -> None:
    assert ControlGroups(tmp_path, {}).why["memory"] == "no control groups for memory are mounted"
    (tmp_path / "cgroup.subtree_control").write_text("cpu pids\n")
    unified = GroupHierarchy(tmp_path, unified=True)
    why = ControlGroups(tmp_path, {"memory": unified, "cpu": unified}).why
    assert "has no limits of memory" in why["memory"] and why["cpu"] == ""
    assert (
        "No such file" in ControlGroups(tmp_path, {"cpu": GroupHierarchy(tmp_path / "a/b", unified=False)}).why["cpu"]
    )


def test_limits_of_version_2_have_no_swap_and_end_the_whole_container(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    unified = GroupHierarchy(tmp_path, unified=True)
    groups = ControlGroups(tmp_path, {"memory": unified, "cpu": unified})
    made = groups.make("0123456789abcdef0123", GroupLimits(1 << 20, 500, 100))
    (place,) = {Path(group) for group in made.values()}
    texts = {file.name: file.read_text() for file in place.iterdir()}
    assert texts == {
        "memory.max": "1048576",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cpu.max": "50000 100000",
        "cpu.weight": str(cpu_weight(102)),
    }
    assert place.name == "0123456789abcdef"
    groups.set(made, GroupLimits(1 << 21))
    assert (place / "cpu.max").read_text() == "max 100000" and (place / "memory.max").read_text() == str(1 << 21)
    assert groups.words(made) == ["detach", "/sys/fs/cgroup", "bind", str(place), "/sys/fs/cgroup", "ro"]


def test_empty_groups_of_other_nodes_are_removed_and_made_again_when_they_are_needed(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
    other = ControlGroups(tmp_path / "a", {"cpu": GroupHierarchy(tmp_path, unified=False)})
    (left,) = tmp_path.glob("tinykube-*")
    (left / "cpu.shares").unlink()  # a control group's own files are no obstacle
    busy = tmp_path / "tinykube-busy" / "container"
    busy.mkdir(parents=True)
    ControlGroups(tmp_path / "b", {"cpu": GroupHierarchy(tmp_path, unified=False)})
    assert not left.exists() and busy.exists()
    made = other.make("0123456789abcdef0123", GroupLimits(cpu_limit=500))
    assert (Path(made["cpu"]) / "cpu.cfs_quota_us").read_text() == "50000" and (left / "cpu.shares").exists()


def test_shares_and_weights_are_those_of_a_kubelet_with_runc() -> None:
    assert [cpu_shares(milli) for milli in (0, 1, 100, 1000, 10**9)] == [2, 2, 102, 1024, 262_144]
    assert [cpu_weight(shares) for shares in (2, 1024, 262_144)] == [1, 100, 10_000]
    assert GroupLimits(cpu_limit=5).quota == 1000 and GroupLimits(cpu_limit=1500).quota == 150_000
    assert GroupLimits(cpu_limit=500).shares == cpu_shares(500) and GroupLimits().quota is None


@given(st.integers(2, 262_144), st.integers(2, 262_144))
def test_more_shares_are_never_less_weight(one: int, other: int) -> None:
    assert 1 <= cpu_weight(min(one, other)) <= cpu_weight(max(one, other)) <= 10_000


def container(amount: int, limit: str | None, **more: Any) -> dict[str, Any]:
    resources = {"limits": {"memory": limit}} if limit else {}
    command = [sys.executable, "-c", GREEDY, str(amount)]
    return {"name": "c", "image": "busybox", "command": command, "resources": resources, **more}


@limited
async def test_a_container_that_takes_more_than_its_limit_is_killed(api: Any, make_node: Any) -> None:
    node = await make_node()
    for name, amount, limit in (("more", 300 << 20, "100Mi"), ("less", 20 << 20, "100Mi"), ("free", 300 << 20, None)):
        await api.create_pod(name, restartPolicy="Never", containers=[container(amount, limit)])
    ended = (await api.phase("Failed", "more"))["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")
    assert node.log("more") == f"{300 << 20}\n"
    for name in ("less", "free"):
        ended = (await api.phase("Succeeded", name))["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (0, "Completed")


@limited
async def test_a_limit_counts_commands_too_and_groups_go_with_their_container(api: Any, make_node: Any) -> None:
    node = await make_node()
    script = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
    made = {**container(0, "60Mi"), "command": ["sh", "-c", script]}
    await api.create_pod(containers=[made])
    await api.phase("Running")
    machine = node.kubelet.machine
    (record,) = machine.launcher.records.all()
    greedy = (sys.executable, "-c", GREEDY, str(150 << 20))
    assert await machine.run_inside(record, greedy) == (137, f"{150 << 20}\n")
    groups = [Path(group) for group in record.groups.values()]
    assert groups and all(group.exists() for group in groups)
    await api.registry.delete("pods", "default", "one")
    await api.until(lambda: api.pod() is None, "its end")
    assert not any(group.exists() for group in groups)
    await node.stop()
    assert not any(group.parent.exists() for group in groups)


SPIN = "import os, time; end = time.monotonic() + 1.0\nwhile time.monotonic() < end: pass\nprint(os.times().user)"


@limited
async def test_a_limit_of_cpu_holds_and_the_container_sees_its_own_groups(api: Any, make_node: Any) -> None:
    node = await make_node()
    limits = {"limits": {"cpu": "100m"}, "requests": {"cpu": "50m"}}
    spin = {"name": "c", "image": "busybox", "command": [sys.executable, "-c", SPIN], "resources": limits}
    files = "cat /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us"
    shown = {"name": "c", "image": "busybox", "command": ["sh", "-c", files], "resources": limits}
    await api.create_pod("spin", restartPolicy="Never", containers=[spin])
    await api.create_pod("shown", restartPolicy="Never", containers=[shown])
    for name in ("spin", "shown"):
        await api.phase("Succeeded", name)
    assert node.log("shown") in ("10000\n", "10000 100000\n")
    assert float(node.log("spin")) < 0.5  # of one second and the start of Python; without a limit it is more


def test_kubelets_that_start_at_the_same_time_do_not_take_each_others_groups(tmp_path: Path) -> None:
    """Each removes the empty groups of nodes, as plain directories here."""
    hierarchies = {"memory": GroupHierarchy(tmp_path, unified=False)}
    over = threading.Event()

    def start_again_and_again() -> None:
        while not over.is_set():
            ControlGroups(tmp_path / "other", hierarchies).close()

    other = threading.Thread(target=start_again_and_again)
    other.start()
    try:
        for number in range(500):
            groups = ControlGroups(tmp_path / "own", hierarchies)
            assert groups.why["memory"] == ""
            made = groups.make(f"{number:064}"[::-1], GroupLimits())
            assert Path(made["memory"]).is_dir()
            groups.remove(made)
    finally:
        over.set()
        other.join()
