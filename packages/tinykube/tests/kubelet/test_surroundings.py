"""A container's surroundings: its hosts file, names of its variables, volumes that nobody may write to."""

from __future__ import annotations

from typing import Any

import pytest

from tinykube.images import Images, ash
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
    if ash()[0] == "sh":
        pytest.skip("this machine has neither busybox nor bash")
    assert {"a.b=c", "p-data-1=v", "!x=y"} <= set(node.log().splitlines())


def test_the_shell_of_busybox_is_its_own_where_this_machine_has_it(tmp_path: Any, monkeypatch: Any) -> None:
    def shell(image: str) -> tuple[str, ...]:
        return Images().find(image).programs.get("/bin/sh", ())

    for name in ("bash", "busybox"):
        program = tmp_path / name
        program.touch()
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (shell("alpine:3"), shell("debian:12")) == (("busybox", "sh"), ())
    (tmp_path / "busybox").unlink()
    assert shell("docker.io/library/busybox:1.36") == ("bash", "--posix")
    (tmp_path / "bash").unlink()
    assert shell("busybox") == ("sh",)
