"""Volumes of containers: modes, owners, memory, files of images; and what a mode lacks."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tinykube.images import Images
from tinykube.kubelet.containers import Isolation
from tinykube.kubelet.pod import ContainerResources as Needs
from tinykube.kubelet.pod import EmptyDir, KubeletPod, KubeletPodSpec, SpecContainer, memory_size

POD = {"restartPolicy": "Never"}


async def run(api: Any, script: str, volume: dict[str, Any], *, mode: str = "Succeeded", **fields: Any) -> None:
    """Run one pod whose volume lies at /v."""
    container = fields.pop("container", {})
    mounts = [{"name": "v", "mountPath": "/v"}]
    made = {"name": "c", "image": "debian", "command": ["sh", "-c", script], "volumeMounts": mounts, **container}
    await api.create_pod(containers=[made], volumes=[{"name": "v", **volume}], **POD, **fields)
    await api.phase(mode)


async def test_files_of_all_sources_have_the_mode_of_their_projected_volume(api: Any, make_node: Any) -> None:
    node = await make_node()
    await api.registry.create("configmaps", "default", {"metadata": {"name": "cfg"}, "data": {"map": "1"}})
    await api.registry.create("secrets", "default", {"metadata": {"name": "key"}, "stringData": {"key": "1"}})
    name = {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}
    sources = [
        {"configMap": {"name": "cfg"}},
        {"secret": {"name": "key", "items": [{"key": "key", "path": "d/key", "mode": 0o440}]}},
        {"downwardAPI": {"items": [name, {**name, "path": "other", "mode": 0o444}]}},
        {"serviceAccountToken": {"path": "token"}},
    ]
    script = "cd /v; stat -Lc '%a %n' map d/key name other token"
    await run(api, script, {"projected": {"defaultMode": 0o400, "sources": sources}})
    assert node.log().splitlines() == ["400 map", "440 d/key", "400 name", "444 other", "400 token"]


async def test_binary_data_is_a_file(api: Any, make_node: Any) -> None:
    node = await make_node()
    data = base64.b64encode(b"\xff\xfe").decode()
    body = {"metadata": {"name": "cfg"}, "data": {"text": "t"}, "binaryData": {"bytes": data}}
    await api.registry.create("configmaps", "default", body)
    await run(api, "cd /v; cat text; od -An -tx1 bytes", {"configMap": {"name": "cfg"}})
    assert node.log() == "t ff fe\n"


async def test_the_group_of_a_pod_owns_its_volumes(api: Any, make_node: Any) -> None:
    node = await make_node()
    if node.kubelet.machine.launcher.mode.isolation not in (Isolation.ROOT, Isolation.USERS):
        pytest.skip("this machine has one user")
    await api.registry.create("secrets", "default", {"metadata": {"name": "key"}, "stringData": {"key": "1"}})
    context = {"runAsUser": 1000, "fsGroup": 2000}
    script = "stat -Lc '%a %g %n' /v /v/key /own /run/token/token; cat /v/key; echo; echo x > /own/f; stat -c %g /own/f"
    mounts = [("v", "/v"), ("own", "/own"), ("token", "/run/token")]
    container = {"volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts]}
    container |= {"name": "c", "image": "debian", "command": ["sh", "-c", script]}
    volumes = [
        {"name": "v", "secret": {"secretName": "key", "defaultMode": 0o400}},
        {"name": "own", "emptyDir": {}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
    ]
    await api.create_pod(containers=[container], volumes=volumes, securityContext=context, **POD)
    await api.phase("Succeeded")
    wanted = ["2777 2000 /v", "440 2000 /v/key", "2777 2000 /own", "640 2000 /run/token/token", "1", "2000"]
    assert node.log().splitlines() == wanted


async def test_a_token_is_readable_by_its_user_alone(api: Any, make_node: Any) -> None:
    node = await make_node()
    if node.kubelet.machine.launcher.mode.isolation not in (Isolation.ROOT, Isolation.USERS):
        pytest.skip("this machine has one user")
    volume = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    await run(api, "stat -Lc '%a %u' /v/token", volume, securityContext={"runAsUser": 1000})
    assert node.log() == "600 1000\n"


async def test_a_volume_in_memory_is_a_tmpfs_with_its_limit_and_ends_with_its_pod(api: Any, make_node: Any) -> None:
    node = await make_node()
    if node.kubelet.machine.launcher.mode.isolation is not Isolation.ROOT:
        pytest.skip("only root may mount on the machine")
    script = "stat -f -c %T /v; df -k --output=size /v | tail -1; stat -c %a /v; "
    script += "head -c 2000000 /dev/zero > /v/big 2> /dev/null || echo full"
    await run(api, script, {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})
    assert node.log().split() == ["tmpfs", "1024", "1777", "full"]
    places = list(node.root.glob("var/lib/kubelet/pods/*/volumes/kubernetes.io~empty-dir/v"))
    assert [place.is_mount() for place in places] == [True], Path("/proc/self/mountinfo").read_text()
    await api.registry.delete("pods", "default", "one")
    await api.until(lambda: api.pod() is None, "the pod is gone")
    await node.kubelet.idle()
    assert not places[0].exists() and str(node.root) not in Path("/proc/self/mountinfo").read_text()


async def test_a_volume_in_memory_outlives_its_containers(api: Any, make_node: Any) -> None:
    node = await make_node()
    container = {"name": "c", "image": "debian", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    container["command"] = ["sh", "-c", "echo x >> /v/f; wc -l < /v/f; sleep 0.2; exit 1"]
    volumes = [{"name": "v", "emptyDir": {"medium": "Memory"}}]
    await api.create_pod(containers=[container], volumes=volumes, restartPolicy="Always")
    await api.until(lambda: node.log(attempt=1), "the second start")
    assert node.log(attempt=1) == "2\n"


@pytest.mark.parametrize("isolation", [Isolation.USERS, Isolation.USER])
async def test_a_mode_without_the_right_to_mount_says_so(api: Any, make_node: Any, isolation: Isolation) -> None:
    node = await make_node(isolation=isolation)
    await run(api, "touch /v/f && stat -f -c %T /v", {"emptyDir": {"medium": "Memory"}})
    await api.until(lambda: "LessIsolated" in api.reasons(), "the event")
    messages = [event["message"] for event in api.registry.list("events") if event["reason"] == "LessIsolated"]
    assert "volumes in memory (what is at /v lies on the disk" in messages[0]
    assert node.log() != ""


@pytest.mark.parametrize(
    ("limit", "containers", "size"),
    [
        (None, ["64Mi", None], 1 << 30),
        ("3Mi", [None], 3 << 20),
        ("2Gi", ["64Mi", "64Mi"], 128 << 20),
        ("0", [None], 1 << 30),
    ],
)
def test_the_size_in_memory_is_the_least_limit(limit: str | None, containers: list[str | None], size: int) -> None:
    made = [SpecContainer("c", resources=Needs(limits={"memory": one} if one else {})) for one in containers]
    pod = KubeletPod(spec=KubeletPodSpec(containers=tuple(made)))
    assert memory_size(EmptyDir("Memory", limit), pod, "1Gi") == size


async def test_a_volume_of_an_image_has_the_files_of_its_directory(
    api: Any, make_node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await make_node()
    image = tmp_path / "image"
    (image / "bin").mkdir(parents=True)
    (image / "data").write_text("kitten\n")
    (image / "image.toml").write_text('files."/etc/data" = "data"\ndirectories = ["/empty"]\n')
    images = Images()
    images.map({"pictures:*": str(image)})
    monkeypatch.setattr(node.kubelet.machine, "images", images)
    script = "cat /v/etc/data; ls /v; touch /v/x 2>/dev/null || echo read-only"
    await run(api, script, {"image": {"reference": "docker.io/library/pictures:1"}})
    mounts = node.kubelet.machine.launcher.mode.isolation is not Isolation.NONE
    assert node.log().splitlines() == ["kitten", "empty", "etc", *(["read-only"] if mounts else [])]
    assert list(image.rglob("x")) == []  # the image's own files stay as they are


@pytest.mark.parametrize(
    ("reference", "text"),
    [("nowhere/none:1", 'Failed to pull image "nowhere/none:1"'), ("debian:12", "has no files here")],
)
async def test_a_volume_of_an_image_without_files_waits(api: Any, make_node: Any, reference: str, text: str) -> None:
    await make_node()
    mounts = [{"name": "v", "mountPath": "/v"}]
    container = {"name": "c", "image": "debian", "command": ["true"], "volumeMounts": mounts}
    await api.create_pod(containers=[container], volumes=[{"name": "v", "image": {"reference": reference}}])
    await api.until(lambda: "ErrImagePull" in str(api.container()["state"]), "the pull that fails")
    assert text in api.container()["state"]["waiting"]["message"]


async def test_a_missing_key_is_named_with_its_volume(api: Any, make_node: Any) -> None:
    await make_node()
    await api.registry.create("configmaps", "default", {"metadata": {"name": "cfg"}, "data": {"a": "1"}})
    items = [{"key": "none", "path": "x"}]
    mounts = [{"name": "v", "mountPath": "/v"}]
    container = {"name": "c", "image": "debian", "command": ["true"], "volumeMounts": mounts}
    volumes = [{"name": "v", "configMap": {"name": "cfg", "items": items}}]
    await api.create_pod(containers=[container], volumes=volumes)
    text = 'MountVolume.SetUp failed for volume "v" : configmap references non-existent config key: none'
    await api.until(lambda: text in [event["message"] for event in api.registry.list("events")], "the event")


async def test_files_of_the_downward_api_follow_their_pod(api: Any, make_node: Any) -> None:
    node = await make_node()
    items = [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]
    script = "until grep -q new /v/labels; do sleep 0.1; done; cat /v/labels"
    mounts = [{"name": "v", "mountPath": "/v"}]
    container = {"name": "c", "image": "debian", "command": ["sh", "-c", script], "volumeMounts": mounts}
    volumes = [{"name": "v", "downwardAPI": {"items": items}}]
    await api.create_pod(containers=[container], volumes=volumes, **POD)
    await api.phase("Running")
    await api.registry.patch("pods", "default", "one", {"metadata": {"labels": {"app": "new"}}}, "merge")
    await api.phase("Succeeded")
    assert node.log() == 'app="new"\n'
