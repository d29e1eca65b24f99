"""Pods write to volumes that they have by claims, and wait for those that are not bound."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from packages.tinykube.tests.kubelet.conftest import NODE
from tinykube.controllers import Controllers
from tinykube.kubelet.containers import Isolation
from tinykube.scheduler import Scheduler

CLAIMS, VOLUMES = "persistentvolumeclaims", "persistentvolumes"
SIZE = {"storage": "1Gi"}


@pytest.fixture
async def control_plane(api: Any) -> AsyncIterator[None]:
    """Controllers and scheduler, which bind claims and pods."""
    tasks = [asyncio.create_task(one.run()) for one in (Controllers(api.registry, ca="PEM"), Scheduler(api.registry))]
    yield
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def volume(api: Any, name: str = "disk", **source: Any) -> None:
    spec = {"capacity": SIZE, "accessModes": ["ReadWriteOnce"], "storageClassName": "", **source}
    await api.registry.create(VOLUMES, "", {"metadata": {"name": name}, "spec": spec})


async def claim(api: Any, name: str = "data", **fields: Any) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": SIZE}, **fields}
    await api.registry.create(CLAIMS, "default", {"metadata": {"name": name}, "spec": spec})


async def pod(api: Any, name: str, script: str, *, read_only: bool = False, **spec: Any) -> None:
    container = {
        "name": "c",
        "image": "busybox",
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "v", "mountPath": "/data"}],
    }
    source = {"claimName": "data", "readOnly": read_only}
    volumes = [{"name": "v", "persistentVolumeClaim": source}]
    await api.create_pod(name, containers=[container], volumes=volumes, restartPolicy="Never", **spec)


def on_host(name: str) -> dict[str, Any]:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}


def messages(api: Any, reason: str) -> list[str]:
    return [event["message"] for event in api.registry.list("events") if event["reason"] == reason]


async def test_what_a_pod_writes_to_its_claim_the_next_one_reads(api, make_node, control_plane):
    node = await make_node()
    await volume(api, hostPath={"path": "/mnt/disk"})
    await claim(api)
    await pod(api, "writer", "echo hello > /data/file", nodeName=None)
    await api.phase("Succeeded", "writer")
    assert (node.root / "mnt/disk/file").read_text() == "hello\n"
    await api.registry.delete("pods", "default", "writer")
    await pod(api, "reader", "cat /data/file; touch /data/more || echo read-only", nodeName=None, read_only=True)
    await api.phase("Succeeded", "reader")
    lines = set(node.log("reader").splitlines())  # stderr is in the log too, in any order
    assert "hello" in lines
    mounts = node.kubelet.machine.launcher.mode.isolation is not Isolation.NONE
    assert ("read-only" in lines) == mounts
    assert (node.root / "mnt/disk/more").exists() != mounts


async def test_a_local_volume_is_mounted_on_its_node_with_the_first_pod(api, make_node, control_plane):
    node = await make_node()
    (node.root / "mnt/local").mkdir(parents=True)
    metadata = {"name": "slow"}
    body = {"metadata": metadata, "provisioner": "kubernetes.io/no-provisioner"}
    body["volumeBindingMode"] = "WaitForFirstConsumer"
    await api.registry.create(("storage.k8s.io", "storageclasses"), "", body)
    await volume(api, local={"path": "/mnt/local"}, nodeAffinity=on_host(NODE), storageClassName="slow")
    await claim(api, storageClassName="slow")
    await pod(api, "one", "echo there > /data/file", nodeName=None)
    await api.phase("Succeeded")
    assert (node.root / "mnt/local/file").read_text() == "there\n"


async def test_an_ephemeral_volume_has_a_claim_that_ends_with_its_pod(api, make_node, control_plane):
    node = await make_node()
    await volume(api, hostPath={"path": "/mnt/disk"})
    wanted = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": SIZE}}
    volumes = [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": wanted}}}]
    mounts = [{"name": "v", "mountPath": "/data"}]
    command = ["sh", "-c", "echo mine > /data/file"]
    made = {"name": "c", "image": "busybox", "command": command, "volumeMounts": mounts}
    await api.create_pod(containers=[made], volumes=volumes, restartPolicy="Never", nodeName=None)
    await api.phase("Succeeded")
    assert (node.root / "mnt/disk/file").read_text() == "mine\n"
    assert api.registry.get(CLAIMS, "default", "one-v")["status"]["phase"] == "Bound"
    await api.registry.delete("pods", "default", "one")
    await api.until(lambda: api.registry.get(CLAIMS, "default", "one-v") is None, "the claim is gone")


async def test_a_claim_of_another_is_not_mounted_for_an_ephemeral_volume(api, make_node, control_plane):
    await make_node()
    await volume(api, hostPath={"path": "/mnt/disk"})
    await claim(api, "one-v")
    wanted = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": SIZE}}
    volumes = [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": wanted}}}]
    made = {"name": "c", "image": "busybox", "volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    await api.create_pod(containers=[made], volumes=volumes)  # it has a node without a scheduler
    problem = "PVC default/one-v was not created for pod default/one (pod is not owner)"
    await api.until(lambda: any(problem in text for text in messages(api, "FailedMount")), "the event of the kubelet")


async def test_a_pod_waits_until_its_claim_is_bound(api, make_node, control_plane):
    await make_node()
    await pod(api, "one", "true")  # it has a node without a scheduler
    start = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process "
    start += "volumes=[v]: error processing PVC default/data: "
    missing = 'failed to fetch PVC from API server: persistentvolumeclaims "data" not found'
    await api.until(lambda: start + missing in messages(api, "FailedMount"), "the missing claim")
    await claim(api)
    await api.until(lambda: start + "PVC is not bound" in messages(api, "FailedMount"), "the claim that is not bound")
    assert api.container()["state"]["waiting"]["reason"] == "ContainerCreating"
    await volume(api, hostPath={"path": "/mnt/disk"})
    await api.phase("Succeeded")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (
            {"local": {"path": "/mnt/none"}, "nodeAffinity": on_host(NODE)},
            'MountVolume.NewMounter initialization failed for volume "disk" : path "/mnt/none" does not exist',
        ),
        (
            {"local": {"path": "/mnt/none"}, "nodeAffinity": on_host("another")},
            'MountVolume.NodeAffinity check failed for volume "disk" : no matching NodeSelectorTerms',
        ),
        (
            {"hostPath": {"path": "/mnt/none", "type": "Directory"}},
            'MountVolume.SetUp failed for volume "disk" : hostPath type check failed: /mnt/none is not a directory',
        ),
        (
            {"nfs": {"server": "files.example.com", "path": "/"}},
            'volume "disk" is of a kind that simulated nodes do not have',
        ),
    ],
)
async def test_why_a_bound_volume_is_not_mounted(api, make_node, control_plane, source, problem):
    await make_node()
    await volume(api, **source)
    await claim(api)
    await pod(api, "one", "true")
    await api.until(lambda: problem in messages(api, "FailedMount"), problem)


async def test_the_pods_of_a_stateful_set_find_their_own_data_again(api, make_node, control_plane):
    node = await make_node()
    for index in range(2):
        await volume(api, f"disk-{index}", hostPath={"path": f"/mnt/disk-{index}"})
    mounts = [{"name": "data", "mountPath": "/data"}]
    command = ["sh", "-c", "echo $WHO >> /data/names"]
    who = {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    first = {"name": "first", "image": "busybox", "command": command, "volumeMounts": mounts, "env": [who]}
    main = {"name": "c", "image": "busybox", "command": ["sleep", "1000"]}
    pods = {"terminationGracePeriodSeconds": 0, "initContainers": [first], "containers": [main]}
    wanted = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": SIZE}}
    spec = {
        "replicas": 2,
        "serviceName": "peers",
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": pods},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": wanted}],
    }
    await api.registry.create("statefulsets", "default", {"metadata": {"name": "web"}, "spec": spec})
    await api.phase("Running", "web-1")
    before = api.pod("web-1")["metadata"]["uid"]
    await api.registry.delete("pods", "default", "web-1")

    def is_new() -> bool:
        found = api.pod("web-1")
        return found is not None and found["metadata"]["uid"] != before and found["status"].get("phase") == "Running"

    await api.until(is_new, "web-1 again")
    written = sorted(path.read_text() for path in node.root.glob("mnt/disk-*/names"))
    assert written == ["web-0\n", "web-1\nweb-1\n"]
