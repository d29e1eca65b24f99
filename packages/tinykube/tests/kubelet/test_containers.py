"""Containers as processes: what they see, how they end, and that they outlive the process that started them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.machines import build_node, machine
from tinykube.cluster import processes
from tinykube.kubelet.containers import (
    BindMount,
    ContainerRecord,
    ContainerSpec,
    Isolation,
    Launcher,
    Records,
    StartFailed,
)
from tinykube.kubelet.containers.capabilities import capability_mask
from tinykube.kubelet.containers.launcher import find_mode, kill_all, readable
from tinykube.kubelet.containers.records import is_running, signal_container
from tinykube.kubelet.containers.rootfs import rewrite_paths

ENV = {"PATH": "/usr/bin:/bin"}
namespaces = pytest.mark.skipif(
    find_mode().isolation is Isolation.NONE, reason="the kernel refuses mount namespaces here"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build_node(tmp_path, "n", machine("cpu-ubuntu24"))
    return tmp_path / "root"


@pytest.fixture
def launcher(root: Path) -> Any:
    found = Launcher(root, Records(root.parent / "containers"))
    yield found
    kill_all(root.parent / "containers")


def record(root: Path, name: str = "c") -> ContainerRecord:
    log = str(root / f"var/log/{name}.log")
    return ContainerRecord(
        id=name,
        pod_uid="u",
        namespace="d",
        pod="p",
        name=name,
        attempt=0,
        image="busybox",
        log=log,
        created="2026-01-01T00:00:00Z",
    )


def output(of: ContainerRecord) -> str:
    return "".join(line.split(" ", 3)[3] + "\n" for line in Path(of.log).read_text().splitlines())


async def run(launcher: Launcher, root: Path, script: str, **spec: Any) -> tuple[int, str]:
    env = {**ENV, **spec.pop("env", {})}
    one = record(root, uuid.uuid4().hex)
    started = await launcher.start(one, ContainerSpec(argv=("sh", "-c", script), env=env, **spec), "now")
    ended = await launcher.wait(started)
    return ended.code, output(started)


@namespaces
async def test_a_container_sees_its_own_world(launcher: Launcher, root: Path) -> None:
    (root / "etc/of-the-node").write_text("yes\n")
    script = "cat /host/etc/of-the-node; hostname; ls -d /dev/null /tmp; echo x > /usr/made && cat /usr/made"
    code, text = await run(
        launcher, root, script, mounts=(BindMount(str(root), "/host"),), hostname="pod-1", env={"A": "b"}
    )
    assert (code, text.splitlines()[:2]) == (0, ["yes", "pod-1"])
    assert text.splitlines()[-1] == "x"
    assert not Path("/usr/made").exists()


@namespaces
async def test_devices_are_only_those_given(launcher: Launcher, root: Path) -> None:
    (root / "dev/nvidia0").write_text("zero\n")
    (root / "dev/nvidia1").write_text("one\n")
    given_ = (BindMount(str(root / "dev/nvidia1"), "/dev/nvidia1"),)
    assert (await run(launcher, root, "ls /dev | grep nvidia; cat /dev/nvidia1", devices=given_))[1] == "nvidia1\none\n"
    assert (await run(launcher, root, "ls /dev | grep nvidia", privileged=True))[1] == "nvidia0\nnvidia1\n"


@namespaces
async def test_exec_has_the_containers_name(launcher: Launcher, root: Path) -> None:
    spec = ContainerSpec(argv=("sleep", "60"), env=ENV, hostname="pod-1")
    started = await launcher.start(record(root), spec, "now")
    command = launcher.exec_command(started, ["hostname"])
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.stdout == "pod-1\n"


@namespaces
async def test_files_can_be_mounted_anywhere_and_links_made(launcher: Launcher, root: Path) -> None:
    (root / "etc/lib").write_text("library\n")
    mounts = (BindMount(str(root / "etc/lib"), "/usr/lib/x86_64-linux-gnu/libfake.so.1", True),)
    links = (("libfake.so.1", "/usr/lib/x86_64-linux-gnu/libfake.so"),)
    script = (
        "cat /usr/lib/x86_64-linux-gnu/libfake.so; echo no > /usr/lib/x86_64-linux-gnu/libfake.so.1 || echo refused"
    )
    assert (await run(launcher, root, script, mounts=mounts, links=links))[1].startswith("library\n")
    assert (root / "etc/lib").read_text() == "library\n"


@namespaces
async def test_a_mount_hides_no_mount_below_the_directory_that_it_is_made_in(launcher: Launcher, root: Path) -> None:
    # An ordinary user cannot write to /usr/lib: it is replaced, with everything that was mounted below.
    (root / "etc/lib").write_text("library\n")
    (root / "etc/firmware").write_text("firmware\n")
    library, firmware = "/usr/lib/x86_64-linux-gnu/libfake.so.1", "/lib/firmware-of-a-test/fake.bin"
    mounts = (
        BindMount(str(root / "etc/lib"), library, True),
        BindMount(str(root / "etc/firmware"), firmware, True),
    )
    assert (await run(launcher, root, f"cat {library} {firmware}", mounts=mounts))[1] == "library\nfirmware\n"


@namespaces
async def test_a_read_only_root(launcher: Launcher, root: Path) -> None:
    script = "touch /usr/x 2>/dev/null || echo refused; touch /tmp/x && echo tmp; touch /data/x && echo data"
    mounts = (BindMount(str(root / "opt"), "/data"),)
    assert (await run(launcher, root, script, mounts=mounts, read_only_root=True))[1] == "refused\ntmp\ndata\n"


@namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
async def test_users_and_groups(launcher: Launcher, root: Path) -> None:
    assert (await run(launcher, root, "id -u; id -g; id -G", user=1000, group=2000, groups=(3000,)))[1] == (
        "1000\n2000\n2000 3000\n"
    )


@namespaces
async def test_a_container_sees_the_bus_of_its_machine(launcher: Launcher, root: Path) -> None:
    wanted = sorted(path.name for path in (root / "sys/bus/pci/devices").iterdir())
    assert (await run(launcher, root, "ls /sys/bus/pci/devices"))[1].split() == wanted


@pytest.mark.parametrize("isolation", [None, Isolation.NONE])
async def test_directories_that_are_there_for_mounts_lead_to_them(root: Path, isolation: Isolation | None) -> None:
    launcher = Launcher(root, Records(root.parent / "containers"), isolation)
    (root / "etc/one").write_text("one\n")
    (root / "opt/two").write_text("two\n")
    mounts = (BindMount(str(root / "etc"), "/host/a/etc"), BindMount(str(root / "opt"), "/host/a/etc/systemd"))
    script = 'place=/host/a; cat "$place"/etc/one; ls /host'
    assert (await run(launcher, root, script, mounts=mounts[:1]))[1] == "one\na\n"
    assert (await run(launcher, root, "cat /host/a/etc/one /host/a/etc/systemd/two", mounts=mounts))[1] == "one\ntwo\n"
    assert not (root / "etc/systemd/two").exists()


@pytest.mark.parametrize("isolation", [None, Isolation.NONE])
async def test_exit_codes_and_signals(root: Path, isolation: Isolation | None) -> None:
    launcher = Launcher(root, Records(root.parent / "containers"), isolation)
    assert (await run(launcher, root, "exit 7"))[0] == 7
    assert (await run(launcher, root, "sh -c 'kill -9 $$'; exit $?"))[0] == 137


async def test_descendants_go_with_the_main_process(launcher: Launcher, root: Path) -> None:
    code, _ = await run(launcher, root, "setsid sleep 1000 & exec true")
    assert code == 0
    assert processes.of_directory(launcher.records.directory) == set()


@namespaces
async def test_a_container_has_its_own_processes_and_the_first_is_its_program(launcher: Launcher, root: Path) -> None:
    assert (await run(launcher, root, "echo $$; ls -d /proc/[0-9]*"))[1].splitlines()[:2] == ["1", "/proc/1"]
    started = await launcher.start(record(root), ContainerSpec(argv=("sleep", "60"), env=ENV), "now")
    command = launcher.exec_command(started, ["sh", "-c", "kill -9 1; tr '\\0' ' ' < /proc/1/cmdline; kill -9 $$"])
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("sleep 60 ", 137)
    assert is_running(started)


@namespaces
async def test_a_container_sees_the_processes_of_its_machine_where_it_asks_for_them(
    launcher: Launcher, root: Path
) -> None:
    script = f"test -d /proc/{os.getpid()} && echo seen"
    assert (await run(launcher, root, script, host_pid=True))[1] == "seen\n"
    assert (await run(launcher, root, script))[1] == ""


@namespaces
async def test_the_processes_of_its_machine_are_also_below_the_root_of_its_node(launcher: Launcher, root: Path) -> None:
    script = f"test -d /host/run/machine-processes/{os.getpid()} && echo seen"
    mounts = (BindMount(str(root), "/host", read_only=True),)
    assert (await run(launcher, root, script, mounts=mounts, host_pid=True))[1] == "seen\n"
    assert (await run(launcher, root, script, mounts=mounts))[1] == ""


@namespaces
async def test_settings_of_the_kernel_are_read_only_for_those_without_privileges(
    launcher: Launcher, root: Path
) -> None:
    script = "grep -c ' /proc/sys .* ro[, ]\\| /proc/sys ro[, ]' /proc/self/mountinfo"
    assert (await run(launcher, root, script))[1].strip() == "1"
    assert (await run(launcher, root, script, privileged=True))[1].strip() == "0"


@namespaces
async def test_a_container_has_the_capabilities_that_it_may_have(launcher: Launcher, root: Path) -> None:
    def of(text: str) -> list[int]:
        return [int(line.split()[1], 16) for line in text.splitlines() if line.startswith(("CapEff", "CapBnd"))]

    script = "cat /proc/self/status"
    most = of((await run(launcher, root, script))[1])[1]  # the tests may run in a container themselves
    usual = capability_mask() & most
    assert of((await run(launcher, root, script, capabilities=usual))[1]) == [usual, usual]
    few = capability_mask(add=("KILL",), drop=("ALL",)) & most
    assert of((await run(launcher, root, script, capabilities=few))[1]) == [few, few]
    script = "chown 1 /tmp 2>/dev/null || echo refused"
    assert (await run(launcher, root, script, capabilities=0))[1] == "refused\n"
    started = await launcher.start(record(root), ContainerSpec(argv=("sleep", "60"), env=ENV, capabilities=0), "now")
    command = launcher.exec_command(started, ["cat", "/proc/self/status"])
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert of(done.stdout) == [0, 0]


@pytest.mark.parametrize("isolation", [None, Isolation.NONE])
async def test_no_privileges_can_be_gained_where_that_is_not_allowed(root: Path, isolation: Isolation | None) -> None:
    launcher = Launcher(root, Records(root.parent / "containers"), isolation)
    script = "grep NoNewPrivs /proc/self/status"
    assert (await run(launcher, root, script, no_new_privileges=True))[1].split() == ["NoNewPrivs:", "1"]
    assert (await run(launcher, root, script))[1].split() == ["NoNewPrivs:", "0"]


@pytest.mark.parametrize(
    ("add", "drop", "more", "less"),
    [
        ((), (), (), ("NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE")),
        (("net_admin", "NO_SUCH"), ("CHOWN",), ("NET_ADMIN", "KILL"), ("CHOWN",)),
        (("ALL",), ("SYS_ADMIN",), ("SYS_TIME", "BPF"), ("SYS_ADMIN",)),
        (("KILL",), ("ALL",), ("KILL",), ("CHOWN", "NET_ADMIN")),
    ],
)
def test_capabilities_are_the_usual_ones_with_those_added_and_without_those_dropped(
    add: tuple[str, ...], drop: tuple[str, ...], more: tuple[str, ...], less: tuple[str, ...]
) -> None:
    mask = capability_mask(add, drop)
    assert all(mask & capability_mask((name,), ("ALL",)) for name in more)
    assert not any(mask & capability_mask((name,), ("ALL",)) for name in less)


async def test_long_and_unfinished_lines(launcher: Launcher, root: Path) -> None:
    started = await launcher.start(
        record(root),
        ContainerSpec(argv=(sys.executable, "-c", "print('x' * 40000); print('end', end='')"), env=ENV),
        "now",
    )
    await launcher.wait(started)
    tags = [line.split(" ", 3)[2] for line in Path(started.log).read_text().splitlines()]
    assert tags == ["P", "P", "F", "P"]


async def test_what_cannot_be_started_says_so(launcher: Launcher, root: Path) -> None:
    with pytest.raises(StartFailed, match="executable file not found"):
        await launcher.start(record(root), ContainerSpec(argv=("none",), env=ENV), "now")
    with pytest.raises(StartFailed, match="no command"):
        await launcher.start(record(root), ContainerSpec(argv=(), env=ENV), "now")


@namespaces
async def test_a_missing_mount_source_says_so(launcher: Launcher, root: Path) -> None:
    with pytest.raises(StartFailed, match="/no/such"):
        await launcher.start(
            record(root), ContainerSpec(argv=("true",), env=ENV, mounts=(BindMount("/no/such", "/x"),)), "now"
        )


async def test_exec_joins_the_container(launcher: Launcher, root: Path) -> None:
    (root / "opt/f").write_text("found\n")
    spec = ContainerSpec(argv=("sleep", "60"), env={**ENV, "A": "1"}, mounts=(BindMount(str(root / "opt"), "/data"),))
    started = await launcher.start(record(root), spec, "now")
    command = launcher.exec_command(started, ["sh", "-c", "cat /data/f; echo $A; exit 5"])
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (5, "found\n1\n")


async def test_another_launcher_waits_for_the_same_container(launcher: Launcher, root: Path) -> None:
    started = await launcher.start(record(root), ContainerSpec(argv=("sleep", "60"), env=ENV), "now")
    again = Launcher(root, Records(root.parent / "containers"), launcher.mode.isolation)
    found = again.records.all()
    assert found == [started]
    assert is_running(started)
    waiting = asyncio.create_task(again.wait(found[0]))
    signal_container(started, signal.SIGKILL)
    assert (await waiting).signal == signal.SIGKILL
    assert not is_running(started)


async def test_a_killed_shim_takes_its_container_along(launcher: Launcher, root: Path) -> None:
    started = await launcher.start(record(root), ContainerSpec(argv=("sleep", "60"), env=ENV), "now")
    main = os.pidfd_open(started.pid)
    os.kill(started.shim_pid, signal.SIGKILL)
    assert (await launcher.wait(started)).code == 137
    async with asyncio.timeout(60):
        await readable(main)
    os.close(main)


async def test_everything_can_be_killed_without_a_kubelet(launcher: Launcher, root: Path) -> None:
    started = [
        await launcher.start(record(root, name), ContainerSpec(argv=("sleep", "60"), env=ENV), "now") for name in "ab"
    ]
    assert kill_all(root.parent / "containers") == 2
    for one in started:
        await launcher.wait(one)
    assert kill_all(root.parent / "containers") == 0


def test_half_written_records_are_removed(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x/record.json").write_text('{"id":')
    assert Records(tmp_path).all() == []
    assert not (tmp_path / "x").exists()


MOUNTS = (BindMount("/real/root", "/host"), BindMount("/real/pods", "/host/var/lib/kubelet"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/host", "/real/root"),
        ("--host-root=/host", "--host-root=/real/root"),
        ("/host/etc:/host/usr", "/real/root/etc:/real/root/usr"),
        ("/host/var/lib/kubelet/x", "/real/pods/x"),
        ("/hostile", "/hostile"),
        ("/a/host", "/a/host"),
        ("cat '/host/x' /host;", "cat '/real/root/x' /real/root;"),
    ],
)
def test_paths_are_moved_whole(text: str, expected: str) -> None:
    assert rewrite_paths(text, MOUNTS) == expected


@given(st.text(alphabet="abc/ -=:", max_size=30))
def test_text_without_a_mount_in_it_stays(text: str) -> None:
    assert rewrite_paths(text, MOUNTS) == text


async def test_a_container_that_says_very_much_fills_no_disk(launcher: Launcher, root: Path) -> None:
    one = record(root, uuid.uuid4().hex)
    script = "head -c 36000000 /dev/zero | tr '\\0' 'x' | fold -w 8000; echo; echo end"
    started = await launcher.start(one, ContainerSpec(argv=("sh", "-c", script), env=ENV), "now")
    assert (await launcher.wait(started)).code == 0
    sizes = {path.name.removeprefix(Path(one.log).name): path.stat().st_size for path in Path(one.log).parent.iterdir()}
    assert set(sizes) == {"", ".1"} and 10 << 20 <= sizes[".1"] <= 11 << 20 and sizes[""] <= 11 << 20
    assert output(one).splitlines()[-1] == "end"
