"""Facts that are read of processes: those of this machine, and a /proc made by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuplane.limits.processes import ProcessIdentity, facts_of, is_running, myself, running, start_of, users_of


def proc(tmp_path: Path, pid: int, *, stat: str, **files: str) -> Path:
    home = tmp_path / str(pid)
    home.mkdir()
    for name, text in {"stat": stat, **files}.items():
        (home / name).write_text(text)
    return tmp_path


STAT = "{pid} ({comm}) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21"


def test_this_process_is_who_it_is() -> None:
    me = myself()
    assert me.pid == os.getpid() and is_running(me) and me.pid in running()
    assert not is_running(ProcessIdentity(me.pid, me.start + 1))
    facts = facts_of(me.pid)
    assert facts is not None and facts.identity == me and facts.inner_pid == me.pid


def test_one_that_has_ended_is_nobody_also_while_its_parent_has_not_looked() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_of(child.pid) is None and facts_of(child.pid) is None
    child.wait()
    assert start_of(child.pid) is None


@pytest.mark.parametrize("comm", ["sh", "a) R 1 2", "((", "with space"])
def test_names_with_brackets_do_not_mislead(tmp_path: Path, comm: str) -> None:
    root = proc(tmp_path, 7, stat=STAT.format(pid=7, comm=comm, state="S"))
    assert start_of(7, root) == 4711


def test_facts_of_a_container_process(tmp_path: Path) -> None:
    root = proc(
        tmp_path,
        812,
        stat=STAT.format(pid=812, comm="python", state="R"),
        status="Name:\tpython\nNSpid:\t812\t14\t1\n",
        comm="python\n",
        cgroup="12:memory:/kubepods/podx\n0::/kubepods.slice/pod-7.slice/cri-abc.scope\n",
        environ="A=1\0GPUPLANE_LIMITS=/etc/vcuda\0EMPTY=\0",
    )
    facts = facts_of(812, ("GPUPLANE_LIMITS", "MISSING"), root)
    assert facts is not None
    assert (facts.inner_pid, facts.start, facts.name) == (1, 4711, "python")
    assert facts.cgroup == "/kubepods.slice/pod-7.slice/cri-abc.scope"
    assert facts.environment == {"GPUPLANE_LIMITS": "/etc/vcuda"}
    assert users_of("GPUPLANE_LIMITS", "/etc/vcuda", root) and not users_of("GPUPLANE_LIMITS", "/etc", root)


@pytest.mark.namespaces
def test_from_inside_a_pid_namespace_nobody_is_called_gone() -> None:
    script = "from gpuplane.limits.processes import living_namespaces; print(living_namespaces())"
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c", script]
    done = subprocess.run(inside, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no pid namespaces here: {done.stderr.strip()}")
    assert done.stdout == "None\n"


@pytest.mark.parametrize(
    ("text", "path"),
    [("0::/\n", "/"), ("", ""), ("4:cpu:/a:b\n3:memory:/a\n0::/\n", "/a:b"), ("garbage\n", "")],
)
def test_control_groups_of_all_ages(tmp_path: Path, text: str, path: str) -> None:
    root = proc(tmp_path, 5, stat=STAT.format(pid=5, comm="x", state="S"), cgroup=text)
    facts = facts_of(5, proc=root)
    assert facts is not None and facts.cgroup == path
