"""Light nodes against an API server: registration, pods, operands, devices, and what they write."""

from __future__ import annotations

import asyncio
import copy
import os
import stat
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpulab.light import LightNodes
from gpulab.light.gpus import SimulatedGPUs
from gpulab.light.operands import is_program, node_path, operand_name
from gpulab.light.world import LightHardware, LightHost, LightKubelet, LightRoot
from gpuplane import names
from gpuplane.api.crds import crds
from gpuplane.device_plugin import Allocation, PluginDevice
from gpuplane.host import Command
from kubekit.errors import InvalidInput, Retryable, Terminal
from kubekit.kube.config import load
from simgpu import profile
from simgpu.machines import machine
from tinykube.kubelet.kubelet import read_cluster
from tinykube.kubelet.pod import KubeletPod, SpecContainer


@pytest.fixture
async def nodes(api: Any, tmp_path: Path) -> AsyncIterator[LightNodes]:
    found = LightNodes(
        endpoint=load(api.kubeconfig, None),
        cluster=read_cluster(api.kubeconfig),
        directory=tmp_path / "light",
        count=3,
        machine=machine("t4-light"),
    )
    task = asyncio.create_task(found.run())
    await found.registered.wait()
    yield found
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_registration(api: Any, nodes: LightNodes) -> None:
    found = {n["metadata"]["name"]: n for n in api.registry.list("nodes")}
    assert sorted(found) == ["light-0", "light-1", "light-2"]
    status = found["light-0"]["status"]
    assert status["nodeInfo"]["containerRuntimeVersion"] == "containerd://1.7.28"
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"
    assert api.registry.get("leases", "kube-node-lease", "light-2")["spec"]["holderIdentity"] == "light-2"


async def test_a_report_retains_the_time_of_a_condition_that_did_not_change(api: Any, nodes: LightNodes) -> None:
    long_ago = "2026-01-01T00:00:00Z"

    def times() -> dict[str, str]:
        found = api.registry.get("nodes", None, "light-1")["status"]["conditions"]
        return {c["type"]: c["lastTransitionTime"] for c in found if c["type"] != "Ready" or c["status"] == "True"}

    conditions = [
        {"type": kind, "status": status, "reason": "Old", "lastTransitionTime": long_ago}
        for kind, status in (("MemoryPressure", "False"), ("Ready", "Unknown"))
    ]
    await api.registry.patch(
        "nodes", None, "light-1", {"status": {"conditions": conditions}}, "strategic", subresource="status"
    )
    await api.until(lambda: "Ready" in times())
    assert times()["MemoryPressure"] == long_ago < times()["Ready"]


async def test_a_pod_costs_one_status_and_goes_when_it_is_told(api: Any, nodes: LightNodes) -> None:
    writes: Counter[str] = Counter()
    api.registry.subscribe("pods", lambda kind, obj, old: writes.update([kind]))
    await api.create_pod("web", "light-1", containers=[{"name": "c", "image": "nginx"}])
    await api.until(lambda: api.status("web").get("phase") == "Running")
    assert {c["type"]: c["status"] for c in api.status("web")["conditions"]}["Ready"] == "True"
    assert writes == {"ADDED": 1, "MODIFIED": 1}
    await api.registry.delete("pods", "default", "web")
    await api.until(lambda: writes["DELETED"])


async def test_unknown_images_wait_and_vector_add_passes(api: Any, nodes: LightNodes) -> None:
    await api.create_pod("bad", "light-0", containers=[{"name": "c", "image": "example.com/x"}])
    await api.create_pod("cuda", "light-0", restartPolicy="OnFailure", containers=[
        {"name": "c", "image": "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda11.7.1"}])  # fmt: skip
    await api.until(lambda: api.status("cuda").get("phase") == "Succeeded")
    state = (await api.until(lambda: api.status("bad").get("containerStatuses")))[0]["state"]
    assert state["waiting"]["reason"] == "ErrImagePull"


@pytest.fixture
async def rights(api: Any) -> None:
    """GPUNodes are served, light-0 has one, and every pod may everything."""
    crd = next(c for c in crds() if c["spec"]["names"]["plural"] == "gpunodes")
    await api.registry.create("customresourcedefinitions", None, crd)
    await api.until(lambda: _served(api))
    # The operand speaks as its pod's service account, which may nothing by itself.
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    binding = {"metadata": {"name": "all"}, "subjects": [subject], "roleRef": role}
    await api.registry.create("clusterrolebindings", None, binding)
    await api.registry.create(("gpuplane.dev", "gpunodes"), None, {
        "apiVersion": "gpuplane.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": "light-0"}})  # fmt: skip


async def test_the_device_plugin_is_the_production_one(api: Any, nodes: LightNodes, rights: None) -> None:
    plugin = {
        "name": "p",
        "image": "gpuplane/gpuplane",
        "args": ["run", "device-plugin", "--host-root=/host", "--kubelet-dir=/host/var/lib/kubelet"],
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
    }
    await api.create_pod(
        "plugin", "light-0", containers=[plugin], volumes=[{"name": "host", "hostPath": {"path": "/"}}]
    )

    def allocatable() -> str | None:
        amount: str | None = api.registry.get("nodes", None, "light-0")["status"]["allocatable"].get(names.GPU_RESOURCE)
        return amount

    await api.until(lambda: allocatable() == "1")
    wants = [{"name": "c", "image": "nginx", "resources": {"limits": {names.GPU_RESOURCE: "1"}}}]
    await api.create_pod("first", "light-0", containers=wants)
    await api.until(lambda: api.status("first").get("phase") == "Running")
    await api.create_pod("second", "light-0", containers=wants)
    await api.until(lambda: api.status("second").get("phase") == "Failed")
    assert api.status("second")["reason"] == "UnexpectedAdmissionError"
    await api.registry.delete("pods", "default", "plugin")
    await api.until(lambda: allocatable() == "0")


async def test_the_device_plugin_follows_the_nodes_configuration(api: Any, nodes: LightNodes, rights: None) -> None:
    plugin = {
        "name": "p",
        "image": "gpuplane/gpuplane",
        "args": ["run", "device-plugin", "--host-root=/host", "--config=/configs"],
        "env": [{"name": "DEFAULT_CONFIG", "value": "tenths"}],
        "volumeMounts": [{"name": "host", "mountPath": "/host"}, {"name": "configs", "mountPath": "/configs"}],
    }
    volumes = [{"name": "host", "hostPath": {"path": "/"}}, {"name": "configs", "configMap": {"name": "configs"}}]
    sliced = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: %s}]}}\n"
    data = {"tenths": sliced % 10, "thirds": sliced % 3}
    await api.registry.create("configmaps", "default", {"metadata": {"name": "configs"}, "data": data})
    await api.create_pod("plugin", "light-0", containers=[plugin], volumes=volumes)

    async def allocatable(**wanted: str) -> None:
        def now() -> Any:
            return api.registry.get("nodes", None, "light-0")["status"]["allocatable"]

        named = {
            f"nvidia.com/{name}" if name == "gpu" else f"tencent.com/vcuda-{name}": n for name, n in wanted.items()
        }
        await api.until(lambda: all(now().get(name) == amount for name, amount in named.items()))

    async def label(name: str, value: str) -> None:
        node = copy.deepcopy(api.registry.get("nodes", None, "light-0"))
        node["metadata"]["labels"][name] = value
        await api.registry.update("nodes", None, "light-0", node)

    await allocatable(gpu="10")
    await label("nvidia.com/device-plugin.config", "thirds")
    await allocatable(gpu="3")
    await label("nvidia-device-enable", "enable")
    await allocatable(core="100", memory="60", gpu="0")


def _served(api: Any) -> bool:
    crd = api.registry.list("customresourcedefinitions")[0]
    conditions = {c["type"]: c["status"] for c in crd.get("status", {}).get("conditions", [])}
    return conditions.get("Established") == "True"


# -- the world of one node -------------------------------------------------------------------------------------------


@pytest.fixture
def host(tmp_path: Path) -> LightHost:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/modules").touch()
    (tmp_path / "dev").mkdir()
    return LightHost(tmp_path, "570.133.20", 1)


async def test_modules(host: LightHost, tmp_path: Path) -> None:
    assert (await host.run(Command(("modprobe", "nvidia")))).code == 0
    assert host.loaded
    assert (tmp_path / "sys/module/nvidia/version").read_text() == "570.133.20\n"
    assert LightHost(tmp_path, "x", 1).loaded  # a new process finds it so
    assert (await host.run(Command(("rmmod", "nvidia")))).code == 0
    assert not (tmp_path / "sys/module/nvidia").exists()
    assert (await host.run(Command(("nvidia-smi",)))).code == 127


async def test_hardware_answers_with_a_driver_only(host: LightHost) -> None:
    gpus = SimulatedGPUs(profile("1x-t4"), "n", "570.133.20")
    hardware = LightHardware(gpus, host)
    with pytest.raises(Retryable):
        hardware.open()
    host.load("nvidia")
    uuid = hardware.open().inventory()[0].uuid
    assert "Test PASSED" in await hardware.vector_add(uuid)
    hardware.broken.add(uuid)
    with pytest.raises(Terminal, match="verification failed"):
        await hardware.vector_add(uuid)


class FakePlugin:
    def __init__(self, *ids: str) -> None:
        self.ids = ids

    async def watch(self) -> AsyncIterator[tuple[PluginDevice, ...]]:
        yield tuple(PluginDevice(id=i, healthy=True) for i in self.ids)
        await asyncio.Event().wait()

    def preferred(self, available: Sequence[str], must: Sequence[str], size: int) -> tuple[str, ...]:
        return tuple(available[-size:])

    def allocate(self, ids: Sequence[str]) -> Allocation:
        return Allocation()


async def test_a_main_container_gets_the_device_of_the_init_container_that_ended() -> None:
    changed = asyncio.Event()
    kubelet = LightKubelet(changed.set)
    serving = asyncio.create_task(kubelet.serve("example.com/x", FakePlugin("a")))
    await changed.wait()
    ends = frozenset({"first"})
    assert kubelet.allocate("p", "first", "example.com/x", 1, ends) == ""
    assert kubelet.allocate("p", "main", "example.com/x", 1, ends) == ""
    assert "Available: 0" in kubelet.allocate("p", "other", "example.com/x", 1, ends)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_pods_from_before_hold_their_devices_first() -> None:
    changed = asyncio.Event()
    kubelet = LightKubelet(changed.set)
    assert kubelet.allocate("old", "c", "example.com/x", 1) == ""  # as after a restart: no plugin has come yet
    assert kubelet.amounts() == {}
    serving = asyncio.create_task(kubelet.serve("example.com/x", FakePlugin("a", "b")))
    await changed.wait()
    assert kubelet.amounts() == {"example.com/x": (2, 2)}
    assert "Available: 1" in kubelet.allocate("new", "c", "example.com/x", 2)
    kubelet.release("old")
    assert kubelet.allocate("new", "c", "example.com/x", 2) == ""
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert kubelet.amounts() == {"example.com/x": (2, 0)}


@pytest.mark.parametrize(
    ("container", "name", "program"),
    [
        ({"args": ["run", "driver", "--host-root=/host"]}, "driver", False),
        ({"command": ["gpuplane"], "args": ["run", "toolkit"]}, "toolkit", False),
        ({"args": ["run", "operator"]}, "", True),
        ({"args": ["--help"]}, "", True),
    ],
)
def test_which_operand_a_container_is(container: dict[str, Any], name: str, program: bool) -> None:
    found = msgspec.convert({"name": "c", "image": "gpuplane/gpuplane", **container}, SpecContainer)
    assert operand_name(found) == name
    assert is_program(found) is program


def test_paths_lead_through_volumes() -> None:
    body = {
        "metadata": {"name": "p"},
        "spec": {
            "containers": [{"name": "c", "volumeMounts": [{"name": "h", "mountPath": "/host"}]}],
            "volumes": [{"name": "h", "hostPath": {"path": "/"}}],
        },
    }
    pod = msgspec.convert(body, KubeletPod)
    container = pod.spec.containers[0]
    assert node_path(pod, container, Path("/r"), "/host/etc") == Path("/r/etc")
    with pytest.raises(InvalidInput):
        node_path(pod, container, Path("/r"), "/etc")


async def test_the_drivers_nodes_come_and_go_with_it_and_are_character_devices(host: LightHost, tmp_path: Path) -> None:
    root = LightRoot(tmp_path, host)
    await root.run("modprobe", "nvidia")
    assert root.list("dev") == ("nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl")
    found = root.stat("dev/nvidiactl")
    assert found is not None
    assert stat.S_ISCHR(found.st_mode)
    assert (os.major(found.st_rdev), os.minor(found.st_rdev)) == (195, 255)
    await root.run("rmmod", "nvidia")
    assert root.list("dev") == ()
