"""Measures processes and control groups: one pass over /proc for all containers of a node.

A container is all that descends from its shim, which adopts orphans. Its control groups are read where it has them.

Source: proc_pid_stat(5), proc_pid_statm(5), proc_pid_smaps(5), cgroups(7), and cgroup-v1/memory and cgroup-v2 of the
kernel's documentation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tinykube.kubelet.stats.usage import ProcessesUse

_PROC: Final = "/proc"
_TICK_NS: Final = 10**9 // os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
# Places in /proc/<pid>/stat after the command's name, counted from 0.
_PPID, _MINOR, _MAJOR, _UTIME, _CHILDREN, _END = 1, 7, 9, 11, 13, 15


class _Process(NamedTuple):
    parent: int
    cpu_ns: int
    children_ns: int
    page_faults: tuple[int, int]


def measure(
    shims: Mapping[str, int], groups: Mapping[str, Mapping[str, str]], own: Iterable[int]
) -> tuple[dict[str, ProcessesUse], ProcessesUse]:
    """Return the use of each container, and that of single processes.

    Args:
        shims: the pid of each container's shim.
        groups: the control groups of containers that have any, as directories by controller.
        own: pids of the processes that are measured together.
    """
    processes = _processes()
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found = {}
    for container, shim in shims.items():
        pids = _below(shim, children)
        use = _sum(pids, processes)
        if shim in processes:  # what ended orphans used is in the shim's account of its children
            adopted = ProcessesUse(cpu_ns=processes[shim].children_ns)
            use = use + adopted
        found[container] = _with_groups(use, groups.get(container) or {})
    return found, _sum([pid for pid in own if pid in processes], processes)


def _below(root: int, children: Mapping[int, list[int]]) -> list[int]:
    found, waiting = list[int](), [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            found.append(child)
            waiting.append(child)
    return found


def _processes() -> dict[int, _Process]:
    found = {}
    for name in os.listdir(_PROC):  # noqa: PTH208  # a machine may have thousands of processes
        if name.isdecimal() and (process := _process(name)) is not None:
            found[int(name)] = process
    return found


def _process(pid: str) -> _Process | None:
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:  # noqa: PTH123
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None  # it has ended meanwhile
    used = sum(map(int, fields[_UTIME:_CHILDREN])) * _TICK_NS
    ended = sum(map(int, fields[_CHILDREN:_END])) * _TICK_NS
    return _Process(int(fields[_PPID]), used, ended, (int(fields[_MINOR]), int(fields[_MAJOR])))


def _sum(pids: Iterable[int], processes: Mapping[int, _Process]) -> ProcessesUse:
    total = ProcessesUse()
    for pid in pids:
        process, (working_set, rss) = processes[pid], _memory(pid)
        cpu = process.cpu_ns + process.children_ns
        total = total + ProcessesUse(cpu, working_set, rss, process.page_faults, 1)
    return total


def _memory(pid: int) -> tuple[int, int]:
    """Return the proportional and the resident memory of a process; both resident where the first is not readable."""
    try:
        rss = int(Path(f"{_PROC}/{pid}/statm").read_bytes().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0, 0
    try:
        text = Path(f"{_PROC}/{pid}/smaps_rollup").read_text()
    except OSError:
        return rss, rss  # another user's process
    lines = (line.split() for line in text.splitlines())
    part = next((int(words[1]) << 10 for words in lines if words[0] == "Pss:"), rss)
    return part, rss


def _with_groups(use: ProcessesUse, groups: Mapping[str, str]) -> ProcessesUse:
    """Return the use with the numbers that the kernel keeps for whole groups, where it does."""
    memory, cpu = _group_memory(groups.get("memory", "")), _group_cpu(groups.get("cpu", ""))
    return ProcessesUse(
        use.cpu_ns if cpu is None else cpu,
        use.working_set if memory is None else memory,
        use.rss,
        use.page_faults,
        use.processes,
    )


def _group_memory(group: str) -> int | None:
    """Return the memory in use without the files that have not been read lately."""
    if not group:
        return None
    for usage, inactive in (("memory.current", "inactive_file"), ("memory.usage_in_bytes", "total_inactive_file")):
        try:
            used = int((Path(group) / usage).read_text())
            stat = dict(line.split() for line in (Path(group) / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        return max(0, used - int(stat.get(inactive, 0)))
    return None


def _group_cpu(group: str) -> int | None:
    if not group:
        return None
    try:
        return int((Path(group) / "cpuacct.usage").read_text())
    except (OSError, ValueError):
        pass
    try:
        stat = dict(line.split() for line in (Path(group) / "cpu.stat").read_text().splitlines())
        return int(stat["usage_usec"]) * 1000
    except (OSError, ValueError, KeyError):
        return None
