"""An embedded cluster as processes: up, down, and what may be killed in between."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from gpulab.clusters import clusters, down, load, up
from gpulab.distribution import GPUPLANE
from kubekit.api.core import ConfigMap, Node, Pod
from kubekit.errors import NoAnswer, Terminal
from kubekit.kube import Client
from tests.support.until import until as until_without_errors
from tinykube.cluster import ClusterSpec, MachineSpec, processes
from tinykube.cluster.directory import ClusterDirectory

NODE = (MachineSpec(name="sim-1", machine="t4-ubuntu18"),)


# Other processes start and end meanwhile, so every error means "not yet".
until = functools.partial(until_without_errors, ignored=Exception)


def directory_of(handle):
    return ClusterDirectory(GPUPLANE, handle.name, handle.directory.parent.parent)


def kill(handle, process):
    running = directory_of(handle).running(process)
    assert processes.signal_(running, signal.SIGKILL)
    return running


async def restarted(handle, process, before):
    async def again():
        running = directory_of(handle).running(process)
        return running is not None and running.pid != before.pid and processes.alive(running)

    await until(again)


def configmap(name):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}


async def test_a_cluster_answers_and_goes_without_a_trace(embedded_cluster, monkeypatch, tmp_path):
    own = tmp_path / "own-kubeconfig"
    own.write_text("current-context: mine\n")
    monkeypatch.setenv("KUBECONFIG", str(own))
    handle = await embedded_cluster()
    base = handle.directory.parent.parent
    assert load("test", base=base) == handle
    assert clusters(base) == ("test",)
    async with Client.connect(handle.kubeconfig) as client:
        await client.create(configmap("c"))
        assert (await client.get(ConfigMap, "kube-root-ca.crt", "default")) is not None
    with pytest.raises(Terminal, match="runs already") as caught:
        await embedded_cluster()
    assert "gpuplane down test" in caught.value.cure
    with pytest.raises(Terminal, match="no such cluster"):
        load("other", base=base)
    with pytest.raises(Terminal, match="no cluster other"):
        await down("other", base=base)
    noted = directory_of(handle).processes()
    assert set(noted) == {"cluster", "supervisor"}
    assert await down("", base=base) == "test"
    assert not any(processes.alive(running) for running in noted.values())
    assert not handle.directory.exists()
    assert not handle.kubeconfig.exists()
    assert own.read_text() == "current-context: mine\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
async def test_a_full_disk_is_reported_before_anything_starts(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    await asyncio.to_thread(subprocess.run, ["mount", "-t", "tmpfs", "-o", "size=5m", "small", small], check=True)
    try:
        with pytest.raises(Terminal, match="the disk is too full: 5 MiB are free, this cluster needs 6 MiB") as caught:
            await up(ClusterSpec(name="test", nodes=NODE), base=small)
        assert "free some space, or set GPUPLANE_HOME" in caught.value.cure
        assert clusters(small) == () and list((small / "clusters").iterdir()) == []
        assert await up(ClusterSpec(name="test"), base=small)
        await down("test", base=small)
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", small], check=True)


async def test_a_process_that_cannot_be_noted_is_started_later_and_ends_no_other(embedded_cluster):
    handle = await embedded_cluster(nodes=NODE)
    directory = directory_of(handle)
    others = {name: directory.running(name) for name in ("cluster", "supervisor")}
    # No file can take the place of a directory: as on a full disk, the note cannot be written.
    note = directory.run / "kubelet-sim-1.json"

    async def noted():
        return note.exists()

    await until(noted)
    before = directory.running("kubelet-sim-1")
    note.unlink()
    note.mkdir()
    assert processes.signal_(before, signal.SIGKILL)

    async def tried():
        return "kubelet-sim-1 does not start, trying again" in directory.log_of("supervisor").read_text()

    await until(tried)
    async with Client.connect(handle.kubeconfig) as client:
        await client.create(configmap("meanwhile"))
    assert all(processes.alive(running) for running in others.values())
    note.rmdir()
    await restarted(handle, "kubelet-sim-1", before)
    config = f"{handle.directory}/cluster.json"
    assert len(processes_with("kubelet", config)) == 1
    assert {name: directory.running(name) for name in others} == others


def processes_with(*words: str) -> list[str]:
    """Return the processes whose command has these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes().decode(errors="replace").split("\0")
            found += [path.parent.name] if all(word in command for word in words) else []
    return found


async def test_a_port_in_use_and_a_strange_directory_are_told_before_anything_starts(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Terminal, match=f"port {port} cannot be used"):
            await up(ClusterSpec(name="test", port=port), base=tmp_path)
    assert not (tmp_path / "clusters" / "test" / "run").exists()
    (tmp_path / "clusters" / "mine").mkdir(parents=True)
    (tmp_path / "clusters" / "mine" / "thesis.tex").write_text("important")
    with pytest.raises(Terminal, match="not an embedded cluster's"):
        await up(ClusterSpec(name="mine"), base=tmp_path)
    assert (tmp_path / "clusters" / "mine" / "thesis.tex").exists()


async def test_of_two_commands_that_start_a_cluster_at_once_one_has_it_and_the_other_is_refused(tmp_path):
    spec = ClusterSpec(name="test")
    try:
        both = await asyncio.gather(up(spec, base=tmp_path), up(spec, base=tmp_path), return_exceptions=True)
        (refused,) = (one for one in both if isinstance(one, Terminal))
        assert "runs already" in str(refused)
        assert load("test", base=tmp_path) in both
    finally:
        await down("test", base=tmp_path)


async def test_an_api_server_that_cannot_start_says_why(tmp_path):
    data = tmp_path / "clusters" / "test" / "data"
    directory = ClusterDirectory(GPUPLANE, "test", tmp_path)
    directory.create(ClusterSpec(name="test", persist=True))
    data.mkdir()
    (data / "objects.sqlite").write_bytes(b"this is no database at all" * 100)
    with pytest.raises(Terminal, match="cannot open the cluster's data"):
        await up(ClusterSpec(name="test", persist=True), base=tmp_path)
    assert processes.of_directory(directory.path) == set()


async def test_any_process_may_be_killed(embedded_cluster):
    handle = await embedded_cluster(persist=True, nodes=NODE)
    async with Client.connect(handle.kubeconfig) as client:

        async def ready():
            node = await client.get(Node, "sim-1")
            return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)

        await until(ready)
        await client.create(configmap("kept"))
        for process in ("kubelet-sim-1", "supervisor", "cluster"):
            await restarted(handle, process, kill(handle, process))
        # With the supervisor's successor everything goes on as before: same address, nothing lost.
        assert (await until(lambda: client.get(ConfigMap, "kept", "default"))).metadata.name == "kept"
        await restarted(handle, "kubelet-sim-1", kill(handle, "kubelet-sim-1"))
        await until(ready)


async def test_a_cluster_that_died_altogether_is_started_again_with_its_objects(embedded_cluster):
    handle = await embedded_cluster(persist=True)
    async with Client.connect(handle.kubeconfig) as client:
        await client.create(configmap("kept"))
    directory = directory_of(handle)
    # The supervisor's record is deleted first, as when a machine is switched off: then no process restarts another.
    noted = directory.processes()
    directory.note_running("supervisor", None)
    for process in ("cluster", "supervisor"):
        processes.signal_(noted[process], signal.SIGKILL)
        await processes.ended(noted[process])
    await until(lambda: asyncio.sleep(0, not directory.supervised()))
    with pytest.raises(NoAnswer, match="not running"):
        load("test", base=directory.base)
    again = await embedded_cluster(persist=True)
    assert again.server == handle.server
    async with Client.connect(again.kubeconfig) as client:
        assert (await client.get(ConfigMap, "kept", "default")).metadata.name == "kept"


async def test_down_ends_containers_too_even_those_of_a_killed_kubelet(embedded_cluster):
    handle = await embedded_cluster(nodes=NODE)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "sleeper", "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "busybox", "command": ["sleep", "86399"]}]},
    }

    def sleepers():
        found = set()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if path.read_bytes() == b"sleep\x0086399\x00":
                    found.add(int(path.parent.name))
            except OSError:
                continue
        return found

    async with Client.connect(handle.kubeconfig) as client:
        await until(lambda: client.get(Node, "sim-1"))
        await until(lambda: client.create(pod))

        async def runs():
            return (await client.get(Pod, "sleeper", "default")).status.phase == "Running"

        await until(runs)
    assert sleepers()
    os.kill(directory_of(handle).running("supervisor").pid, signal.SIGKILL)
    kill(handle, "kubelet-sim-1")
    await down("test", base=handle.directory.parent.parent)
    assert sleepers() == set()


async def test_another_users_pod_reads_its_files_and_down_removes_what_it_left(embedded_cluster):
    before = os.umask(0o077)  # as some administrators have it
    try:
        handle = await embedded_cluster(nodes=NODE)
    finally:
        os.umask(before)
    script = "cat /config/ca.crt && mkdir -m 700 /left/own && touch /left/own/file"
    mounts = [{"name": "config", "mountPath": "/config"}, {"name": "left", "mountPath": "/left"}]
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", script], "volumeMounts": mounts}
    volumes = [{"name": "config", "configMap": {"name": "kube-root-ca.crt"}}, {"name": "left", "emptyDir": {}}]
    spec = {"containers": [container], "volumes": volumes, "restartPolicy": "Never"}
    spec["securityContext"] = {"runAsUser": 1234, "runAsGroup": 1234}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": "default"}, "spec": spec}
    async with Client.connect(handle.kubeconfig) as client:
        await until(lambda: client.get(Node, "sim-1"))
        await until(lambda: client.create(pod))

        async def ended():
            return (await client.get(Pod, "other", "default")).status.phase in ("Succeeded", "Failed")

        await until(ended)
        assert (await client.get(Pod, "other", "default")).status.phase == "Succeeded"
    assert list(handle.directory.glob("nodes/sim-1/root/var/lib/kubelet/pods/*/volumes/*/left/own"))
    await down("test", base=handle.directory.parent.parent)
    assert not handle.directory.exists()
