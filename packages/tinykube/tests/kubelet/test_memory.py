"""Limits of memory: where this user may make control groups, the kernel holds containers to them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.until import until
from tinykube.kubelet.containers.memory import MemoryGroups, MemoryHierarchy, find_hierarchy

WHY = MemoryGroups.of_this_process(Path("/a-node-of-these-tests")).why
limited = pytest.mark.skipif(bool(WHY), reason=f"memory is not limited here: {WHY}")

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
    assert find_hierarchy(groups, "\n".join(mounts)) == MemoryHierarchy(Path(found[0]), found[1])
    assert find_hierarchy(groups, CPU) is None


def test_a_machine_that_cannot_limit_says_why(tmp_path: Path) -> None:
    assert MemoryGroups(tmp_path, None).why == "no control groups for memory are mounted"
    (tmp_path / "cgroup.subtree_control").write_text("cpu pids\n")
    assert "has no limits of memory" in MemoryGroups(tmp_path, MemoryHierarchy(tmp_path, unified=True)).why
    assert "No such file" in MemoryGroups(tmp_path, MemoryHierarchy(tmp_path / "none", unified=False)).why


def test_limits_of_version_2_have_no_swap_and_end_the_whole_container(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("memory\n")
    groups = MemoryGroups(tmp_path, MemoryHierarchy(tmp_path, unified=True))
    place = Path(groups.make("0123456789abcdef0123", 1 << 20))
    texts = {file.name: file.read_text() for file in place.iterdir()}
    assert texts == {"memory.max": "1048576", "memory.swap.max": "0", "memory.oom.group": "1"}
    assert place.name.endswith("-0123456789abcdef")


GREEDY = "import sys; print(sys.argv[1], flush=True); x = bytearray(int(sys.argv[1])); print('had it', flush=True)"


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
async def test_a_limit_counts_commands_too_follows_a_resize_and_goes_with_its_container(
    api: Any, make_node: Any
) -> None:
    node = await make_node()
    script = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
    made = {**container(0, "60Mi"), "command": ["sh", "-c", script]}
    await api.create_pod(containers=[made])
    await api.phase("Running")
    machine = node.kubelet.machine
    (record,) = machine.launcher.records.all()
    greedy = (sys.executable, "-c", GREEDY, str(150 << 20))
    assert await machine.run_inside(record, greedy) == (137, f"{150 << 20}\n")
    pod = api.pod()
    more = {
        **pod["spec"]["containers"][0],
        "resources": {"limits": {"memory": "400Mi"}, "requests": {"memory": "60Mi"}},
    }
    new = {**pod, "spec": {**pod["spec"], "containers": [more]}}
    await api.registry.update("pods", "default", "one", new, subresource="resize")
    group = Path(record.memory)
    files = [group / name for name in ("memory.max", "memory.limit_in_bytes")]
    (limit,) = (file for file in files if file.exists())
    await until(lambda: int(limit.read_text()) == 400 << 20)
    assert (await machine.run_inside(record, greedy))[0] == 0
    await api.registry.delete("pods", "default", "one")
    await api.until(lambda: api.pod() is None, "its end")
    assert not group.exists()
