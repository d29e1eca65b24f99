"""A container's surroundings: its hosts file, names of its variables, volumes that are read-only."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tinykube.images import Images, ash
from tinykube.kubelet.applets import make_applets
from tinykube.kubelet.containers import Isolation
from tinykube.kubelet.containers.launcher import find_mode
from tinykube.kubelet.env import ConfigInvalid
from tinykube.kubelet.hosts import hosts_file
from tinykube.kubelet.pod import HostAlias, KubeletPod, KubeletPodSpec, PodMeta, SpecContainer, VolumeMount
from tinykube.kubelet.volumes import container_mounts

namespaces = pytest.mark.skipif(find_mode().isolation is Isolation.NONE, reason="the kernel refuses namespaces here")


def container(script: str, **more: Any) -> dict[str, Any]:
    return {"name": "c", "image": "busybox:1.36", "command": ["sh", "-c", script], **more}


def pod(**spec: Any) -> KubeletPod:
    return KubeletPod(PodMeta(name="p", namespace="ns"), KubeletPodSpec(**spec))


def test_a_hosts_file_is_a_kubelets() -> None:
    aliases = (HostAlias("10.1.2.3", ("foo", "bar")), HostAlias("10.1.2.4", ("baz",)))
    text = hosts_file(pod(host_aliases=aliases, subdomain="sub"), "127.9.9.9", "p", "")
    lines = text.split("\n")
    assert lines[:2] == ["# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost"]
    assert "127.9.9.9\tp.sub.ns.svc.cluster.local\tp" in lines
    assert lines[-5:] == ["", "# Entries added by HostAliases.", "10.1.2.3\tfoo\tbar", "10.1.2.4\tbaz", ""]
    assert hosts_file(pod(), "127.9.9.9", "p", "").endswith("127.9.9.9\tp\n")


def test_a_pod_on_the_network_of_its_node_has_the_names_of_its_node() -> None:
    text = hosts_file(pod(host_network=True), "127.0.0.1", "p", "127.0.0.1\tlocalhost\n10.0.0.1\tnode\n")
    assert text == "# Kubernetes-managed hosts file (host network).\n127.0.0.1\tlocalhost\n10.0.0.1\tnode\n"


@namespaces
async def test_the_hosts_file_of_a_node_can_be_mounted_and_has_its_name(api: Any, make_node: Any) -> None:
    node = await make_node()
    volume = {"name": "hosts", "hostPath": {"path": "/etc/hosts", "type": "File"}}
    mounted = {**container("cat /node-hosts"), "volumeMounts": [{"name": "hosts", "mountPath": "/node-hosts"}]}
    await api.create_pod(restartPolicy="Never", volumes=[volume], containers=[mounted])
    await api.phase("Succeeded")
    address = api.registry.list("nodes")[0]["status"]["addresses"][0]["address"]
    assert address.startswith("127.") and address.endswith(".1") and address != "127.0.0.1"
    name = api.registry.list("nodes")[0]["metadata"]["name"]
    assert node.log() == f"127.0.0.1\tlocalhost\n{address}\t{name}\n"


@namespaces
async def test_aliases_of_hosts_are_found_in_a_container(api: Any, make_node: Any) -> None:
    node = await make_node()
    aliases = [{"ip": "10.1.2.3", "hostnames": ["foo.example", "bar"]}]
    await api.create_pod(
        restartPolicy="Never", hostAliases=aliases, containers=[container("getent hosts foo.example; cat /etc/hosts")]
    )
    await api.phase("Succeeded")
    assert node.log().startswith("10.1.2.3")
    assert "10.1.2.3\tfoo.example\tbar\n" in node.log()


@namespaces
async def test_volumes_made_of_objects_are_read_only(api: Any, make_node: Any) -> None:
    node = await make_node()
    await api.registry.create("configmaps", "default", {"metadata": {"name": "cfg"}, "data": {"a": "1"}})
    volumes = [{"name": "cfg", "configMap": {"name": "cfg"}}, {"name": "own", "emptyDir": {}}]
    mounts = [{"name": "cfg", "mountPath": "/cfg"}, {"name": "own", "mountPath": "/own"}]
    script = "cat /cfg/a; echo; for d in /cfg /own; do touch $d/x 2>/dev/null && echo $d; done; exit 0"
    made = container(script, volumeMounts=mounts)
    await api.create_pod(restartPolicy="Never", volumes=volumes, containers=[made])
    await api.phase("Succeeded")
    assert node.log() == "1\n/own\n"


@pytest.mark.parametrize(
    ("path", "problem"),
    [("$(WHERE)/x", "must not be an absolute path"), ("a/$(UP)", "must not contain"), ("$(NONE)", 'for "NONE"')],
)
def test_a_path_of_variables_stays_in_its_volume(path: str, problem: str, tmp_path: Any) -> None:
    mount = VolumeMount("v", "/data", sub_path_expr=path)
    with pytest.raises(ConfigInvalid, match=problem):
        container_mounts(SpecContainer("c", volume_mounts=(mount,)), (), {"v": tmp_path}, {"WHERE": "/tmp", "UP": ".."})


async def test_names_of_variables_may_have_dots_and_dashes(api: Any, make_node: Any) -> None:
    node = await make_node()
    await api.registry.create("configmaps", "default", {"metadata": {"name": "cfg"}, "data": {"data-1": "v"}})
    sources = [{"prefix": "p-", "configMapRef": {"name": "cfg"}}]
    made = container("env | sort", envFrom=sources, env=[{"name": "a.b", "value": "c"}, {"name": "!x", "value": "y"}])
    await api.create_pod(restartPolicy="Never", containers=[made])
    await api.phase("Succeeded")
    if not shutil.which("busybox") and ash()[0] == "sh":
        pytest.skip("this machine has neither busybox nor bash")
    assert {"a.b=c", "p-data-1=v", "!x=y"} <= set(node.log().splitlines())


def make_program(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_busybox_is_that_of_the_images_directory_then_of_this_machine(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "machine"))
    for place in (tmp_path / "machine/bash", tmp_path / "machine/busybox", tmp_path / "image/bin/busybox"):
        make_program(place)
    images = Images()
    images.map({"alpine:edge": str(tmp_path / "image")})
    found = {name: images.find(name) for name in ("docker.io/library/busybox:1.36", "alpine:edge", "debian:12")}
    machine, own = tmp_path / "machine/busybox", tmp_path / "image/bin/busybox"
    assert [one.busybox for one in found.values()] == [str(machine), str(own), ""]
    assert not any(one.programs for one in found.values()) and not any(one.borrows for one in found.values())
    machine.unlink()
    assert Images().find("busybox").programs["/bin/sh"] == ("bash", "--posix")
    (tmp_path / "machine/bash").unlink()
    assert Images().find("busybox").programs["/bin/sh"] == ("sh",)


def images_from(busybox: Path) -> Images:
    """Images of their own, whose busybox is in a directory: those of a node are all tests'."""
    images = Images()
    images.map({"busybox*": str(busybox)})
    return images


# The stand-in for busybox in tests: it prints the name of its applet, and has a list of applets.
BUSYBOX = """#!/usr/bin/bash
[ "$1" = --list ] && printf '%s\\n' sh nc hush && exit
[ "${0##*/}" = sh ] && exec bash --posix "$@"
echo "applet ${0##*/} $*"
"""


@pytest.mark.parametrize("isolation", list(Isolation))
async def test_images_that_say_busybox_have_its_applets_as_their_bin(
    api: Any, make_node: Any, tmp_path: Path, isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_program(tmp_path / "image/bin/busybox", BUSYBOX)
    node = await make_node(isolation=isolation)
    monkeypatch.setattr(node.kubelet.machine, "images", images_from(tmp_path / "image"))
    script = "nc -z; /bin/nc 1; ls /bin | tr '\n' ' '; id -u >/dev/null && echo machine"
    made = {"name": "c", "image": "busybox:1.36", "command": ["/bin/sh", "-c", script]}
    await api.create_pod(restartPolicy="Never", containers=[made])
    await api.phase("Succeeded")
    assert node.log().splitlines() == ["applet nc -z", "applet nc 1", "busybox hush nc sh machine"]


def test_containers_that_start_at_the_same_time_share_one_bin(tmp_path: Path) -> None:
    busybox, home, tasks = tmp_path / "busybox", tmp_path / "home", 16
    names = [f"applet{number}" for number in range(200)]
    make_program(busybox, "#!/bin/sh\necho " + " ".join(names))
    together = threading.Barrier(tasks)

    def start(_: int) -> tuple[Path, int]:
        together.wait()
        made = make_applets(busybox, home)
        return made, len(list(made.iterdir()))

    with ThreadPoolExecutor(tasks) as pool:
        found = set(pool.map(start, range(tasks)))
    ((made, count),) = found
    assert count == len(names) + 1
    assert list(home.iterdir()) == [made]
    assert made.stat().st_mode & 0o777 == 0o755


async def test_a_busybox_that_does_not_run_is_named(
    api: Any, make_node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_program(tmp_path / "image/bin/busybox", "#!/nowhere\n")
    node = await make_node()
    monkeypatch.setattr(node.kubelet.machine, "images", images_from(tmp_path / "image"))
    await api.create_pod(containers=[container("true")])
    await api.until(lambda: "busybox --list" in str(api.registry.list("events")), "the event")
