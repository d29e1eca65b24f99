"""Modes of containers on a machine: which modes exist, what each provides, and what it leaves out by name."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kubekit.errors import Terminal
from simgpu.machines import build_node, machine
from tests.support.until import until
from tinykube.cluster import processes
from tinykube.kubelet.containers import (
    BindMount,
    ContainerRecord,
    ContainerSpec,
    Isolation,
    IsolationMode,
    Launcher,
    Records,
    find_mode,
    fit,
    remove_tree,
)
from tinykube.kubelet.containers.capabilities import capability_mask
from tinykube.kubelet.containers.launcher import kill_all, readable
from tinykube.kubelet.containers.modes import Extent, UserIdentity, candidates
from tinykube.kubelet.containers.records import end_container, signal_container
from tinykube.kubelet.containers.rootfs import MachineRoot, isolated_words, plain_words, view

DENIED = Path(__file__).with_name("denied.py")
ENV = {"PATH": "/usr/bin:/bin"}
MAPPERS = ("/usr/bin/newuidmap", "/usr/bin/newgidmap")
GIVEN = "ann:100000:65536\nbob:200000:10\n1000:300000:5\n"
ANN = UserIdentity(uid=1000, gid=1001, name="ann", subuid=GIVEN, subgid=GIVEN, mappers=MAPPERS)
MANY = IsolationMode(
    Isolation.USERS,
    (Extent(0, 1000, 1), Extent(1, 100000, 65536), Extent(65537, 300000, 5)),
    (Extent(0, 1001, 1), Extent(1, 100000, 65536), Extent(65537, 300000, 5)),
    MAPPERS,
)
ONE = IsolationMode(Isolation.USER, (Extent(0, 1000, 1),), (Extent(0, 1001, 1),))
NONE = IsolationMode(Isolation.NONE, own_processes=False)


# -- what could work -------------------------------------------------------------------------------------------------


def test_an_ordinary_user_with_subordinate_ids_has_many_users() -> None:
    assert candidates(ANN) == [MANY, ONE, NONE]
    assert MANY.words == [
        *("unshare", "user"),
        *("map", "uid_map", MAPPERS[0], "0 1000 1 1 100000 65536 65537 300000 5"),
        *("map", "gid_map", MAPPERS[1], "0 1001 1 1 100000 65536 65537 300000 5"),
    ]


@pytest.mark.parametrize(
    ("change", "cure"),
    [({"mappers": ()}, "install uidmap"), ({"subgid": "bob:200000:10\n"}, "usermod --add-subuids .* ann")],
)
def test_without_subordinate_ids_there_is_one_user_and_a_cure(change: dict[str, Any], cure: str) -> None:
    one, none = candidates(msgspec.structs.replace(ANN, **change))
    assert (one.isolation, one.users, none) == (Isolation.USER, ONE.users, NONE)
    assert re.search(cure, one.lacks)
    assert str(one) == f"user namespace, one user ({one.lacks})"


def test_root_may_map_every_user_that_it_has_itself() -> None:
    root = UserIdentity(uid=0, gid=0, name="root", users="0 100000 65536\n65536 0 1\n", groups="0 0 4294967295\n")
    first, second, *_ = candidates(root)
    assert first == IsolationMode(Isolation.ROOT)
    assert second.users == (Extent(0, 0, 65536), Extent(65536, 65536, 1))
    assert second.words[2:6] == ["map", "uid_map", "-", "0 0 65536\n65536 65536 1"]


# -- what a mode leaves out ------------------------------------------------------------------------------------------

ASKED = ContainerSpec(
    argv=("true",), env={}, user=65532, group=2000, groups=(3000,), read_only_root=True, volumes=("/data",)
)


@pytest.mark.parametrize("mode", [IsolationMode(Isolation.ROOT), MANY])
def test_where_all_users_are_nothing_is_left_out(mode: IsolationMode) -> None:
    assert fit(ASKED, mode) == (ASKED, ())


def test_a_user_that_is_not_mapped_is_named_and_left_out() -> None:
    spec, lacks = fit(ASKED, ONE)
    assert (spec.user, spec.group, spec.groups, spec.read_only_root) == (None, None, (), True)
    assert lacks == ("user 65532, group 2000, group 3000 (it runs as the one user there is)",)
    beyond = ContainerSpec(argv=(), env={}, user=65542)
    assert fit(beyond, MANY)[1] == ("user 65542 (it runs as the one user there is)",)
    assert fit(ContainerSpec(argv=(), env={}, user=0, group=0), ONE)[1] == ()


def test_without_namespaces_a_read_only_root_and_mounts_are_named_too() -> None:
    spec, lacks = fit(ASKED, NONE)
    assert not spec.read_only_root
    assert [text.split(" (")[0] for text in lacks] == [
        "user 65532, group 2000, group 3000",
        "a read-only root",
        "mounts",
    ]
    assert "/data" in lacks[2]


def test_another_user_reaches_the_program_in_a_closed_home() -> None:
    where = MachineRoot(("home",), (), (), (), guarded=(("/home/ann", "/home/ann/gp"),))
    other = isolated_words(ContainerSpec(argv=(), env={}, user=7), where, stage=Path("/s"), node_root=Path("/n"))
    same = isolated_words(ContainerSpec(argv=(), env={}), where, stage=Path("/s"), node_root=Path("/n"))
    opened = ["tmpfs", "/home/ann", "755", "bind", "/home/ann/gp", "/home/ann/gp", "ro"]
    assert any(other[at : at + len(opened)] == opened for at in range(len(other)))
    assert "/home/ann" not in same


# -- the search-path mode --------------------------------------------------------------------------------------------


def test_libraries_lie_side_by_side_as_in_the_container(tmp_path: Path) -> None:
    (tmp_path / "preload").write_text("/lim/libnvidia-ml.so.1\n")
    spec = ContainerSpec(
        argv=("run", "/etc/pages"),
        env={"LD_LIBRARY_PATH": "/usr/lib/x:/opt", "LD_PRELOAD": "/lim/libcuda.so.1", "PAGES": "/etc/pages"},
        mounts=(
            BindMount("/node/limits/libcuda.so.1", "/lim/libcuda.so.1"),
            BindMount("/node/usr/libcuda.so.570", "/lim/libcuda.so.real"),
            BindMount("/node/usr/libcuda.so.570", "/usr/lib/x/libcuda.so.1"),
            BindMount(str(tmp_path / "preload"), "/etc/ld.so.preload"),
            BindMount("/node/limits/libnvidia-ml.so.1", "/lim/libnvidia-ml.so.1"),
            BindMount("/node/pages", "/etc/pages"),
        ),
        links=(("libcuda.so.1", "/usr/lib/x/libcuda.so"), ("y", "/nowhere/z")),
    )
    assert view(spec, Path("/c")) == {
        Path("/c/lim/libcuda.so.1"): "/node/limits/libcuda.so.1",
        Path("/c/lim/libnvidia-ml.so.1"): "/node/limits/libnvidia-ml.so.1",
        Path("/c/lim/libcuda.so.real"): "/node/usr/libcuda.so.570",
        Path("/c/usr/lib/x/libcuda.so.1"): "/node/usr/libcuda.so.570",
        Path("/c/usr/lib/x/libcuda.so"): "libcuda.so.1",
    }
    words = plain_words(spec, added={"SIMGPU_DEV": "/d"}, place=Path("/c"), programs="/sim")
    env = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "env")
    assert env == {
        "LD_LIBRARY_PATH": "/c/lim:/c/usr/lib/x:/c/usr/lib/x:/opt",
        "LD_PRELOAD": "/c/lim/libcuda.so.1 /c/lim/libnvidia-ml.so.1",
        "PAGES": "/node/pages",
        "PATH": "/sim",
        "SIMGPU_DEV": "/d",
    }
    assert words[-2:] == ["arg", "/node/pages"]


# -- containers, in each mode that this machine has ------------------------------------------------------------------


@pytest.fixture(params=list(Isolation), ids=str)
def launcher(request: Any, tmp_path: Path) -> Iterator[Launcher]:
    build_node(tmp_path, "n", machine("cpu-ubuntu24"))
    try:
        found = Launcher(tmp_path / "root", Records(tmp_path / "containers"), request.param)
    except Terminal as error:
        pytest.skip(f"no {request.param} here: {error.cure or error.what}")
    yield found
    kill_all(tmp_path / "containers")


async def begin(launcher: Launcher, script: str, **spec: Any) -> ContainerRecord:
    name = uuid.uuid4().hex
    log = str(launcher.node_root / f"var/log/{name}.log")
    record = ContainerRecord(
        id=name, pod_uid="u", namespace="d", pod="p", name="c", attempt=0, image="x", log=log, created="now"
    )
    return await launcher.start(record, ContainerSpec(argv=("sh", "-c", script), env=ENV, **spec), "now")


async def run(launcher: Launcher, script: str, **spec: Any) -> tuple[int, list[str]]:
    record = await begin(launcher, script, **spec)
    ended = await launcher.wait(record)
    return ended.code, [line.split(" ", 3)[3] for line in Path(record.log).read_text().splitlines()]


def expected_user(launcher: Launcher, asked: int) -> str:
    one = {Isolation.USER: 0, Isolation.NONE: os.geteuid()}
    return str(one.get(launcher.mode.isolation, asked))


async def test_a_container_runs_whoever_it_is_to_be(launcher: Launcher) -> None:
    code, said = await run(launcher, "id -u", user=1000, group=2000, groups=(3000,))
    assert (code, said) == (0, [expected_user(launcher, 1000)])


@pytest.mark.parametrize("host_pid", [False, True])
async def test_no_process_outlives_its_container_whose_shim_was_killed(launcher: Launcher, host_pid: bool) -> None:
    record = await begin(launcher, "setsid sleep 60 & setsid sleep 60 & echo $!; wait", host_pid=host_pid)
    log = Path(record.log)
    await until(lambda: log.exists() and log.read_text())
    found = processes.of_directory(launcher.records.directory)
    assert len(found) >= 3
    os.kill(record.shim_pid, signal.SIGKILL)
    await launcher.wait(record)
    assert processes.of_directory(launcher.records.directory) == set()


async def test_capabilities_that_a_machine_cannot_add_are_named(launcher: Launcher) -> None:
    asked = ContainerSpec(argv=(), env={}, capabilities=capability_mask(add=("NET_ADMIN",)))
    named = "capabilities NET_ADMIN" in fit(asked, launcher.mode)[1]
    assert named == (launcher.mode.isolation is Isolation.NONE)


async def test_another_user_can_run_this_program(launcher: Launcher) -> None:
    script = f"{sys.executable} -c 'import gpuplane; print(1)'"
    assert await run(launcher, script, user=1000, group=1000) == (0, ["1"])


async def test_host_pid_is_named_where_processes_of_other_containers_cannot_be_inspected(launcher: Launcher) -> None:
    other = await begin(launcher, "exec sleep 60")
    _, lines = await run(launcher, f"cat /proc/{other.pid}/environ >/dev/null 2>&1 && echo inspected", host_pid=True)
    _, lacks = fit(ContainerSpec(argv=(), env={}, host_pid=True), launcher.mode)
    named = [text for text in lacks if text.startswith("host PID (")]
    assert (lines, named) == (["inspected"], []) or (lines == [] and len(named) == 1)
    assert fit(ContainerSpec(argv=(), env={}), launcher.mode)[1] == ()


async def test_exec_is_the_containers_user(launcher: Launcher) -> None:
    record = await begin(launcher, "sleep 60", user=1000, group=2000)
    command = launcher.exec_command(record, ["id", "-u"])
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, expected_user(launcher, 1000))


async def test_a_mounted_program_is_found_on_the_path(launcher: Launcher, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho given $1\n")
    program.chmod(0o755)
    mounts = (BindMount(str(program), "/usr/bin/tool-of-the-driver"),)
    script = "tool-of-the-driver a; /usr/bin/tool-of-the-driver b"
    assert await run(launcher, script, mounts=mounts) == (0, ["given a", "given b"])


async def test_a_program_of_the_image_is_started_as_the_catalogue_says_unless_it_is_mounted(launcher: Launcher) -> None:
    programs = {"sh": ("echo", "instead"), "tool": ("echo", "tool")}
    assert await run(launcher, "true", programs=programs) == (0, ["instead -c true"])
    record = await begin(launcher, "sleep 60", programs={"tool": ("echo", "tool")})
    command = launcher.exec_command(record, ["tool", "x"])
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.stdout == "tool x\n"
    mounted = ContainerSpec(argv=(), env={}, mounts=(BindMount("/a", "/usr/bin/tool"),), programs=programs)
    assert mounted.command(("tool", "x")) == ("tool", "x")


async def test_another_user_is_ended_like_oneself(launcher: Launcher) -> None:
    record = await begin(launcher, "trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done", user=1000)
    log = Path(record.log)
    await until(lambda: log.exists() and log.read_text())
    signal_container(record, signal.SIGTERM)
    assert (await launcher.wait(record)).code == 3
    record = await begin(launcher, "exec sleep 60", user=1000)
    end_container(record)
    dropped = launcher.mode.isolation is not Isolation.NONE  # by the kernel, for the first process of a namespace
    assert (await launcher.wait(record)).code == 128 + (signal.SIGKILL if dropped else signal.SIGTERM)
    record = await begin(launcher, "exec sleep 60", user=1000)
    main = os.pidfd_open(record.pid)
    os.kill(record.shim_pid, signal.SIGKILL)
    assert (await launcher.wait(record)).code == 137
    async with asyncio.timeout(60):
        await readable(main)
    os.close(main)


async def test_what_another_user_leaves_can_be_removed(launcher: Launcher, tmp_path: Path) -> None:
    place = tmp_path / "volume"
    place.mkdir()
    place.chmod(0o777)
    mounts = (BindMount(str(place), "/data"),)
    script = "mkdir -m 700 /data/own && touch /data/own/file"
    assert await run(launcher, script, mounts=mounts, user=1000, group=1000) == (0, [])
    assert (place / "own").is_dir()
    remove_tree(place)
    assert not place.exists()


async def test_a_program_in_a_container_can_open_a_terminal(launcher: Launcher) -> None:
    script = f"{sys.executable} -c 'import os; print(os.ttyname(os.openpty()[1])[:9])'"
    assert await run(launcher, script, user=1000) == (0, ["/dev/pts/"])


async def test_a_container_may_add_to_the_system(launcher: Launcher) -> None:
    if launcher.mode.isolation is Isolation.NONE:
        pytest.skip("without namespaces a container has no root of its own")
    code, said = await run(launcher, "echo x > /usr/made && cat /usr/made")
    assert (code, said) == (0, ["x"])
    assert not Path("/usr/made").exists()


# -- what machines refuse --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["unshare", "mount", "sethostname"])
async def test_a_namespace_that_may_do_nothing_counts_as_none(call: str) -> None:
    """AppArmor lets a program make a user namespace, and then denies all capabilities in it."""
    program = "from tinykube.kubelet.containers import find_mode; print(find_mode())"
    words = [sys.executable, str(DENIED), call, sys.executable, "-c", program]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("no namespaces, one user, paths rewritten (")
    assert "Operation not permitted" in done.stdout


def test_a_mapper_that_refuses_leaves_one_user_and_says_why(tmp_path: Path) -> None:
    mapper = tmp_path / "newuidmap"
    mapper.write_text("#!/bin/sh\necho 'newuidmap: not for you' >&2\nexit 1\n")
    mapper.chmod(0o755)
    who = UserIdentity(uid=1000, gid=1000, name="ann", subuid=GIVEN, subgid=GIVEN, mappers=(str(mapper),) * 2)
    found = find_mode((Isolation.USERS, Isolation.NONE), who)
    assert found.isolation is Isolation.NONE
    if find_mode().isolation is Isolation.NONE:
        pytest.skip("the kernel refuses user namespaces here")
    assert "not for you" in found.lacks


def test_a_mode_that_is_not_there_is_refused_with_the_reason() -> None:
    who = UserIdentity(uid=1000, gid=1000, name="ann")
    with pytest.raises(Terminal, match="no such containers"):
        find_mode((Isolation.ROOT,), who)
