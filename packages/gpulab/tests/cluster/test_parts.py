"""The parts of a cluster that need no process: what it is to be, where it lies, who runs, when to try again."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.distribution import GPUPLANE
from gpuplane.cli.terminal import tilde
from kubekit.errors import InvalidInput, Terminal
from simgpu.machines import machine
from tests.support.until import until
from tinykube.apiserver.identity import node_user
from tinykube.cluster import ClusterSpec, MachineSpec, down, processes, up
from tinykube.cluster.command_lock import usable
from tinykube.cluster.directory import ClusterDirectory, RunningProcess, ServerEndpoint, write
from tinykube.cluster.kubeconfig import save
from tinykube.cluster.supervisor import LAST_BACKOFF_S, STABLE_S, next_backoff, programs
from tinykube.controlplane import NodeTokens

SPEC = ClusterSpec(name="c", nodes=(MachineSpec(name="sim-1", machine="h100-ubuntu22"),), light_nodes=5)


def test_a_spec_is_refused_with_everything_that_is_wrong():
    nodes = (MachineSpec(name="A", machine="h100-ubuntu22"), MachineSpec(name="b", machine="abacus"))
    with pytest.raises(InvalidInput) as caught:
        ClusterSpec(name="Not Good", nodes=(*nodes, nodes[1]), light_nodes=-1, port=70000).check(machine)
    text = str(caught.value)
    for part in ("'Not Good'", "'A'", "abacus", "two nodes have the name 'b'", "-1 is negative", "70000"):
        assert part in text
    SPEC.check(machine)


def test_a_scheduler_configuration_is_read_before_anything_starts(tmp_path):
    config = tmp_path / "scheduler.yaml"
    config.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nplugins: {}\n")
    with pytest.raises(InvalidInput, match="plugins"):
        ClusterSpec(scheduler_config=str(config)).check(machine)
    config.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n")
    ClusterSpec(scheduler_config=str(config)).check(machine)


def test_every_node_gets_a_process_of_its_own_and_light_nodes_share_one(tmp_path):
    found = programs(SPEC, ClusterDirectory(GPUPLANE, "c", tmp_path))
    assert [program.name for program in found] == ["kubelet-sim-1", "light-nodes"]
    assert found[0].arguments[:3] == ("kubelet", "--node-name", "sim-1")


@given(st.lists(st.floats(0, 100), max_size=20))
def test_backoff_doubles_to_a_limit_and_forgets_what_ran_long(runs):
    before = 0.0
    for ran in runs:
        after = next_backoff(before, ran)
        assert 0 < after <= LAST_BACKOFF_S
        if ran >= STABLE_S:
            assert after < 1
        elif before:
            assert after == min(before * 2, LAST_BACKOFF_S)
        before = after


# -- the directory -----------------------------------------------------------------------------------------------------
def test_a_directory_remembers_what_it_was_told(tmp_path):
    directory = ClusterDirectory(GPUPLANE, "c", tmp_path)
    directory.create(SPEC)
    assert directory.spec() == SPEC
    assert ClusterDirectory.of_config(GPUPLANE, directory.spec_file).path == directory.path
    assert directory.endpoint() is None
    write(directory.endpoint_file, msgspec.json.encode(ServerEndpoint("https://x:1", 1)))
    assert directory.endpoint() == ServerEndpoint("https://x:1", 1)


def test_a_cluster_is_its_owners_alone(tmp_path):
    """Its logs and objects are read by no other user, whatever the umask is, also below a directory of before."""
    for place in (tmp_path / "new" / "home", tmp_path / "old"):
        if place.name == "old":
            (place / "clusters").mkdir(parents=True)
            (place / "clusters").chmod(0o755)
        directory = ClusterDirectory(GPUPLANE, "c", place)
        directory.create(SPEC)
        assert stat.S_IMODE(directory.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "new/home").stat().st_mode) == 0o700


def test_tokens_stay_and_new_nodes_get_theirs(tmp_path):
    directory = ClusterDirectory(GPUPLANE, "c", tmp_path)
    directory.create(SPEC)
    first = directory.ensure_tokens(SPEC)
    more = msgspec.structs.replace(SPEC, nodes=(*SPEC.nodes, MachineSpec(name="sim-2", machine="t4-ubuntu18")))
    second = directory.ensure_tokens(more)
    assert (first.admin, first.nodes["sim-1"]) == (second.admin, second.nodes["sim-1"])
    assert len({second.admin, second.light_nodes, second.kubelet_secret, *second.nodes.values()}) == 5
    assert stat.S_IMODE((directory.path / "tokens.json").stat().st_mode) == 0o600
    assert first.kubelet_secret == second.kubelet_secret


def test_the_token_that_all_kubelets_of_an_earlier_version_had_is_of_no_use(tmp_path):
    directory = ClusterDirectory(GPUPLANE, "c", tmp_path)
    directory.create(SPEC)
    (directory.path / "kubelet-token").write_text("known")
    before = {"admin": "a", "light_nodes": "l", "kubelet": "known", "nodes": {"sim-1": "n"}}
    directory.tokens_file.write_text(json.dumps(before))
    # A process of this version that an earlier one's supervisor starts.
    for read in (directory.kubelet_secret, lambda: directory.kubelet_token("kubelet-sim-1")):
        with pytest.raises(Terminal, match="earlier version") as caught:
            read()
        assert "gpuplane down c" in caught.value.cure
    directory.create(SPEC)
    assert not (directory.path / "kubelet-token").exists()
    assert directory.kubelet_secret() not in ("", "known")
    assert (directory.tokens().admin, directory.tokens().nodes) == ("a", {"sim-1": "n"})


def test_the_token_of_a_node_that_left_is_deleted_and_a_component_has_its_own(tmp_path):
    directory = ClusterDirectory(GPUPLANE, "c", tmp_path)
    directory.create(SPEC)
    nodes = NodeTokens(directory)
    token = directory.tokens().nodes["sim-1"]
    assert nodes.find(token) == node_user("sim-1")
    assert nodes.find("other") is None
    left = msgspec.structs.replace(SPEC, nodes=(), components={"cloud": {"any": 1}})
    tokens = directory.ensure_tokens(left)
    assert directory.tokens() == tokens
    assert tokens.nodes == {}
    assert len(tokens.components["cloud"]) == 48
    assert nodes.find(token) is None


def test_a_component_of_the_distribution_is_a_process(tmp_path):
    found = programs(ClusterSpec(components={"cloud": {}}), directory := ClusterDirectory(GPUPLANE, "c", tmp_path))
    assert found[0].name == "cloud"
    kubeconfig, config = str(directory.kubeconfig_of("cloud")), str(directory.spec_file)
    assert found[0].arguments == ("cloud", "--kubeconfig", kubeconfig, "--config", config)


def test_a_broken_file_is_named_with_a_cure(tmp_path):
    directory = ClusterDirectory(GPUPLANE, "c", tmp_path)
    directory.create(SPEC)
    directory.spec_file.write_text("{")
    with pytest.raises(Terminal) as caught:
        directory.spec()
    assert caught.value.where == str(directory.spec_file)
    assert "gpuplane down c" in caught.value.cure


def test_only_one_may_hold_the_lock(tmp_path):
    directory = ClusterDirectory(GPUPLANE, "c", tmp_path)
    directory.create(SPEC)
    assert not directory.supervised()
    lock = directory.lock()
    assert lock is not None
    assert directory.lock() is None
    assert directory.supervised()
    os.close(lock)
    assert not directory.supervised()


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write(path, b"old")
    monkeypatch.setattr(type(path), "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_home_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUPLANE_HOME", str(tmp_path))
    assert GPUPLANE.home() == tmp_path
    monkeypatch.delenv("GPUPLANE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert GPUPLANE.home() == tmp_path / ".gpuplane"


def test_a_user_without_a_home_is_told_with_the_cure(monkeypatch):
    monkeypatch.delenv("GPUPLANE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with pytest.raises(Terminal, match="HOME is not set") as caught:
        GPUPLANE.home()
    assert "GPUPLANE_HOME" in caught.value.cure
    assert tilde(Path("/x/c.kubeconfig")) == "/x/c.kubeconfig"


def test_a_printed_path_can_be_pasted_into_a_shell(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "a home"))
    for path in (tmp_path / "a home" / "my clusters" / "c.kubeconfig", tmp_path / "b c" / "c.kubeconfig"):
        pasted = ["sh", "-c", f'X={tilde(path)}; printf %s "$X"']
        assert subprocess.run(pasted, capture_output=True, text=True, check=True).stdout == str(path)


def test_a_kubeconfig_is_one_context_readable_by_its_owner_only(tmp_path):
    path = tmp_path / "c.kubeconfig"
    save(path, context="gpuplane-c", server="https://127.0.0.1:1", ca=b"PEM", user="admin", token="t")
    config = json.loads(path.read_text())
    assert config["current-context"] == "gpuplane-c"
    assert base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]) == b"PEM"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# -- processes ---------------------------------------------------------------------------------------------------------
def sleeper(**environment):
    return subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )


@pytest.fixture
def child(tmp_path):
    process = sleeper(TINYKUBE_DIRECTORY=f"{tmp_path}/")
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


async def test_a_process_is_followed_by_pid_and_start_time(child):
    running = RunningProcess(child.pid, processes.started(child.pid))
    assert processes.alive(running)
    other = RunningProcess(child.pid, running.started + 1)
    assert not processes.alive(other)
    assert not processes.signal_(other, signal.SIGKILL)
    waiting = asyncio.create_task(processes.ended(running))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert processes.signal_(running, signal.SIGKILL)
    await waiting
    assert not processes.alive(running)
    await processes.ended(running)


WITHOUT_ITS_FIRST_THREAD = """
import ctypes, socket, sys, threading, time
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=time.sleep, args=(3600,)).start()
print(server.getsockname()[1], flush=True)
ctypes.PyDLL(None).pthread_exit(None)
"""


@pytest.fixture
def server():
    """A process that listens, without its first thread; and its port."""
    process = subprocess.Popen([sys.executable, "-c", WITHOUT_ITS_FIRST_THREAD], stdout=subprocess.PIPE, text=True)
    yield process, int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()


async def test_a_process_is_alive_until_its_last_thread_has_ended(server):
    """As a killed one of many threads, whose port the next one needs: its first thread is a zombie already."""
    process, port = server

    async def is_zombie():
        return "State:\tZ" in Path(f"/proc/{process.pid}/status").read_text()

    await until(is_zombie)
    running = RunningProcess(process.pid, processes.started(process.pid))
    assert processes.alive(running)
    assert processes.signal_(running, signal.SIGKILL)
    await asyncio.wait_for(processes.ended(running), 20)
    assert not processes.alive(running)
    socket.create_server(("127.0.0.1", port)).close()


def test_processes_of_a_directory_are_found_by_their_environment(child, tmp_path):
    assert processes.of_directory(tmp_path) == {child.pid}
    assert processes.of_directory(tmp_path / "other") == set()
    assert child.pid in processes.descendants([os.getpid()])


def test_a_shell_with_paths_of_the_directory_is_nobody_of_the_cluster(tmp_path):
    shell = sleeper(PWD=f"{tmp_path}/x", KUBECONFIG=f"{tmp_path}/kubelet.kubeconfig", PATH=f"{tmp_path}/:/usr/bin")
    try:
        shell.stdout.readline()
        assert processes.of_directory(tmp_path) == set()
    finally:
        shell.kill()
        shell.wait()
        shell.stdout.close()


def test_the_source_of_a_root_file_system_is_read_from_mountinfo():
    text = rb"""771 770 0:70 / /proc rw - proc proc rw
770 700 0:61 /root / rw,nosuid shared:1 - tmpfs /home/a\040b/clusters/c/nodes/n/rootfs rw,mode=755
772 770 254:0 /home/x /x ro - ext4 /dev/root rw
"""
    assert processes.root_source(text) == b"/home/a b/clusters/c/nodes/n/rootfs"
    assert processes.root_source(b"") == b""


async def test_a_directory_that_cannot_be_made_is_told_with_its_cure():
    with pytest.raises(Terminal, match="cannot be used") as caught:
        await up(GPUPLANE, ClusterSpec(name="c"), base=Path("/proc"))  # where root can make none either
    assert (
        caught.value.where == "/proc/clusters" and "chown" in caught.value.cure and "GPUPLANE_HOME" in caught.value.cure
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read the directories of all users")
async def test_a_directory_of_another_user_is_told_with_its_cure(tmp_path):
    (tmp_path / "clusters").mkdir(mode=0)
    for act in (down(GPUPLANE, "c", base=tmp_path), down(GPUPLANE, base=tmp_path)):
        with pytest.raises(Terminal, match="Permission denied") as caught:
            await act
        assert "chown" in caught.value.cure


def test_a_full_disk_is_told_with_its_cure(tmp_path):
    with pytest.raises(Terminal, match="No space left") as caught, usable(GPUPLANE, tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert "free some space" in caught.value.cure


async def test_a_cluster_of_another_version_is_removed(tmp_path):
    directory = ClusterDirectory(GPUPLANE, "c", tmp_path)
    directory.create(SPEC)
    for file in (directory.spec_file, directory.endpoint_file, directory.run / "supervisor.json"):
        file.write_text('{"pid": "of another form"}')
    with pytest.raises(Terminal, match="cannot be read") as caught:
        await up(GPUPLANE, SPEC, base=tmp_path)
    assert "gpuplane down c" in caught.value.cure
    assert await down(GPUPLANE, "c", base=tmp_path) == "c"
    assert not directory.path.exists()
