"""An installation on a real kubelet and containerd: install, use, kill every process, uninstall.

The tests build on each other in this order; each brings the machine to "installed and ready" by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from gpulab import demo
from gpulab.kubernetes.node import KubernetesNode
from gpulab.watching import node_is_ready
from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import GPUNode
from gpuplane.device_plugin.nri import WHY_NOTHING
from kubekit.api.core import Event, Node, Pod
from kubekit.kube import ApiError, Client, NotFound
from tests.support.gpu_programs import LOOK
from tests.support.realkube import files, nri
from tests.support.realkube.inventory import Objects, difference, inventory
from tests.support.realkube.life import until_as
from tests.support.realkube.watching import PATIENCE_S, gpu_node_is_ready, log, phase, until_objects
from tests.support.share_attack import ATTACK, INSIDE, last

MANIFEST = Path(demo.__file__).parent / "cuda-vectoradd.yaml"
NAMESPACE = names.OPERATOR_NAMESPACE


class Bare(NamedTuple):
    """The cluster and its machine before the installation."""

    objects: Objects
    files: files.Files


class Story:
    """The machine, with the commands and the client of its administrator."""

    def __init__(self, node: KubernetesNode, client: Client) -> None:
        self.node = node
        self.client = client

    def gpuplane(self, *arguments: str, code: int = 0) -> str:
        """Return the output of a command; `code` is the expected exit code."""
        environment = {**os.environ, "KUBECONFIG": str(self.node.plane.kubeconfig), "NO_COLOR": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "gpuplane", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, f"gpuplane {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    async def ready(self) -> GPUNode:
        """Return the GPUNode once the machine is installed and ready and offers all its GPUs."""
        try:
            await self.client.get(GPUNode, self.node.name)
        except NotFound:
            self.gpuplane("install", "-q", "--set", f"hostPaths.rootFS={self.node.host_root}")
        return await self.until_ready()

    async def until_ready(self) -> GPUNode:
        found = await until_objects(self.client, GPUNode, lambda nodes: [n for n in nodes if gpu_node_is_ready(n)])
        await self.offers(2)
        return found[0]

    async def offers(self, count: int, resource: str = names.GPU_RESOURCE) -> None:
        """Wait until the kubelet can allocate `count` GPUs, on a Node that is Ready."""
        wanted = str(count)
        await until_objects(
            self.client,
            Node,
            lambda nodes: [n for n in nodes if n.status.allocatable.get(resource) == wanted and node_is_ready(n)],
        )

    async def create(
        self,
        name: str,
        script: str,
        gpus: int,
        share: dict[str, str] | None = None,
        *,
        user: int = 65532,
    ) -> None:
        container = {
            "name": "main",
            "image": names.IMAGE,
            "command": ["/usr/bin/python3.11", "-u", "-c", script],
            "resources": {"limits": share or {names.GPU_RESOURCE: gpus}},
            "securityContext": {"runAsUser": user},
        }
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        await self.client.create(manifest, namespace="default")

    async def admitted(self, name: str, script: str, share: dict[str, str] | None = None) -> None:
        """Create a pod, and create it again after each rejection by a kubelet without a device plugin."""
        await self.create(name, script, 1, share)
        while (await phase(self.client, name, "Running", "Failed")).status.reason == "UnexpectedAdmissionError":
            await self.delete(name)
            await self.create(name, script, 1, share)

    async def listed_devices(self, name: str, environment: dict[str, str], limits: dict[str, str]) -> set[str]:
        """Return the device nodes of GPUs in a container of RuntimeClass nvidia."""
        script = "import os; print(*(f for f in os.listdir('/dev') if f[:6] == 'nvidia' and f[6:].isdigit()))"
        container = {
            "name": "main",
            "image": names.IMAGE,
            "command": ["/usr/bin/python3.11", "-u", "-c", script],
            "env": [{"name": key, "value": value} for key, value in environment.items()],
            "resources": {"limits": limits},
        }
        spec = {"restartPolicy": "Never", "runtimeClassName": "nvidia", "containers": [container]}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        await self.client.create(manifest, namespace="default")
        await phase(self.client, name, "Succeeded", "Failed")
        found = set((await log(self.client, name)).split())
        await self.delete(name)
        return found

    async def delete(self, *pods: str) -> None:
        for name in pods:
            await self.client.delete(Pod, name, "default")
        await until_objects(
            self.client, Pod, lambda found: not {pod.metadata.name for pod in found} & set(pods), namespace="default"
        )

    async def vectoradd(self) -> str:
        """Run the sample's pod again; return its output."""
        manifest = yaml.safe_load(MANIFEST.read_text())
        name = manifest["metadata"]["name"]
        await self.client.create(manifest, namespace="default")
        await phase(self.client, name, "Succeeded", "Failed")
        said = await log(self.client, name)
        await self.delete(name)
        return said


@pytest.fixture(scope="session")
def bare(machine: KubernetesNode) -> Bare:
    async def look() -> Objects:
        async with Client.connect(machine.plane.kubeconfig) as client:
            return await inventory(client)

    return Bare(asyncio.run(look()), files.of_machine(machine))


@pytest.fixture
async def story(machine: KubernetesNode, bare: Bare) -> AsyncIterator[Story]:
    async with Client.connect(machine.plane.kubeconfig) as client:
        story = Story(machine, client)
        yield story
        # Objects that a failed test has left would disturb its second try.
        await story.delete(*(pod.metadata.name for pod in await client.list(Pod, "default")))
        await client.patch(Node, machine.name, {"metadata": {"labels": {names.SHARE_LABEL: None}}})


# A program that holds a GPU and prints its UUID; it loads the CUDA library that CDI put into its container.
HOLD = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
device, context, uuid = ctypes.c_int(), ctypes.c_void_p(), (ctypes.c_ubyte * 16)()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0 and cuda.cuDeviceGetUuid_v2(uuid, device) == 0
print("GPU", bytes(uuid).hex(), flush=True)
time.sleep(3600)
"""


async def until_said(story: Story, pod: str) -> str:
    """Return the first line of a running pod's log, once it is written."""
    found = await phase(story.client, pod, "Running", "Failed")
    assert found.status.phase == "Running", f"{found.status.reason}: {found.status.message}"
    async with asyncio.timeout(PATIENCE_S):
        while not (said := await log(story.client, pod)):  # noqa: ASYNC110 - a log is not watched
            await asyncio.sleep(0.1)
    return said.splitlines()[0]


async def test_a_bare_machine_becomes_ready_and_prints_test_passed(story: Story) -> None:
    found = await story.ready()
    assert {stage.state.value for stage in found.status.stages.values()} == {"done"}
    assert "Test PASSED" in await story.vectoradd()
    labels = (await story.client.get(Node, story.node.name)).metadata.labels
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-L4"
    assert "ready" in story.gpuplane("status")


async def test_each_pod_has_its_own_gpu_and_a_third_one_waits(story: Story) -> None:
    await story.ready()
    for name in ("one", "two", "three"):
        await story.create(name, HOLD, 1)
    first, second = await until_said(story, "one"), await until_said(story, "two")
    assert first.startswith("GPU ") and first != second
    waiting = await story.client.get(Pod, "three", "default")
    assert waiting.status.phase == "Pending"
    await story.delete("one")
    assert await until_said(story, "three") == first
    await story.delete("two", "three")


async def test_pods_of_runtime_class_nvidia_get_their_gpus_from_nvidias_own_runtime(story: Story) -> None:
    await story.ready()
    installed = {path.name for path in (story.node.root / names.TOOLKIT_DIR).iterdir()}
    assert {"nvidia-container-runtime", "nvidia-container-runtime.real", "nvidia-ctk", "nvidia-cdi-hook"} <= installed
    assert await story.listed_devices("none", {}, {}) == set()
    assert await story.listed_devices("all", {"NVIDIA_VISIBLE_DEVICES": "all"}, {}) == {"nvidia0", "nvidia1"}
    assert len(await story.listed_devices("one", {}, {names.GPU_RESOURCE: "1"})) == 1


async def test_the_exporter_measures_without_privilege_and_names_the_pod_that_holds_a_gpu(story: Story) -> None:
    gpunode = await story.ready()
    await story.create("holder", HOLD, 1)
    held = await until_said(story, "holder")
    (exporter,) = await story.client.list(Pod, NAMESPACE, labels="app.kubernetes.io/component=dcgm-exporter")
    spec = json.loads(await story.client.request("GET", Pod.RESOURCE.path(NAMESPACE, exporter.metadata.name)))["spec"]
    [container] = spec["containers"]
    assert "privileged" not in container["securityContext"] and spec["runtimeClassName"] == "nvidia"
    process = story.node.run("pgrep", "--oldest", "--full", "run exporter").stdout.strip()
    status = story.node.run("cat", f"/proc/{process}/status").stdout
    found = dict(line.split(":\t", 1) for line in status.splitlines())
    assert (int(found["CapEff"], 16), found["NoNewPrivs"], found["Seccomp"]) == (0, "1", "2")
    fetch = (
        f"import urllib.request as r; print(r.urlopen('http://{exporter.status.pod_ip}:9400/metrics').read().decode())"
    )
    text = story.node.run("python3", "-c", fetch).stdout
    lines = [line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_POWER_USAGE{")]
    assert len(lines) == len(gpunode.status.gpus)
    assert all(any(f'UUID="{gpu.uuid}"' in line for line in lines) for gpu in gpunode.status.gpus)
    [named] = [line for line in lines if 'pod="holder"' in line]
    assert held.removeprefix("GPU ") in named.replace("-", "")
    await story.delete("holder")


async def registrations(story: Story) -> int:
    """Count the registrations of the device plugin's container; -1 while no kubelet returns its log."""
    try:
        (plugin,) = await story.client.list(Pod, NAMESPACE, labels="app.kubernetes.io/component=device-plugin")
        return (await log(story.client, plugin.metadata.name, NAMESPACE)).count("registered with kubelet")
    except (ApiError, ValueError):
        return -1


async def kill_kubelet(story: Story) -> None:
    """Kill the kubelet, and wait until the plugin is registered again: until then, the kubelet rejects all pods."""
    async with asyncio.timeout(PATIENCE_S):
        while (before := await registrations(story)) < 1:  # noqa: ASYNC110 - a log is not watched
            await asyncio.sleep(0.1)
        story.node.kill("kubelet")
        while await registrations(story) <= before:  # noqa: ASYNC110 - a log is not watched
            await asyncio.sleep(0.1)


async def kill_containerd(story: Story) -> None:
    story.node.kill("containerd")


async def kill_plugin(story: Story) -> None:
    """Kill the plugin, and wait until it is registered again: until then, the kubelet rejects all pods."""

    async def plugin() -> Pod:
        found: Pod = (await story.client.list(Pod, NAMESPACE, labels="app.kubernetes.io/component=device-plugin"))[0]
        return found

    before = await plugin()
    story.node.run("pkill", "-KILL", "-f", "run device-plugin")
    restarts = before.status.container_statuses[0].restart_count + 1
    await until_objects(
        story.client,
        Pod,
        lambda pods: [pod for pod in pods if pod.status.container_statuses[0].restart_count >= restarts],
        namespace=NAMESPACE,
        fields=f"metadata.name={before.metadata.name}",
    )
    await until_plugin_says(story, "registered with kubelet")


@pytest.mark.parametrize("kill", [kill_kubelet, kill_containerd, kill_plugin])
async def test_a_restart_loses_nothing(story: Story, kill: Callable[[Story], Any]) -> None:
    await story.ready()
    await story.create("holder", HOLD, 1)
    said = await until_said(story, "holder")
    before = (await story.client.get(Pod, "holder", "default")).status.container_statuses[0]
    await kill(story)
    await story.create("next", HOLD, 1)
    assert (await until_said(story, "next")) not in ("", said)
    await story.ready()
    after = (await story.client.get(Pod, "holder", "default")).status.container_statuses[0]
    assert (after.container_id, after.restart_count) == (before.container_id, 0)
    assert await log(story.client, "holder") == said + "\n"
    await story.delete("holder", "next")
    assert "Test PASSED" in await story.vectoradd()


async def test_after_a_reboot_it_is_ready_again_by_itself(story: Story) -> None:
    await story.ready()
    before = (await story.client.get(Node, story.node.name)).status.node_info.boot_id
    story.node.reboot()
    await until_objects(story.client, Node, lambda nodes: [n for n in nodes if n.status.node_info.boot_id != before])
    await story.ready()
    assert "Test PASSED" in await story.vectoradd()


async def test_uninstall_leaves_nothing(story: Story, bare: Bare) -> None:
    await story.ready()
    assert files.of_machine(story.node) != bare.files
    story.gpuplane("uninstall", "-q")
    assert difference(bare.objects, await until_as(story.client, bare.objects)) == ""
    assert files.difference(bare.files, files.of_machine(story.node)) == {}


async def test_gpus_and_shares_come_by_nri_or_not_at_all(story: Story, bare: Bare) -> None:
    await story.ready()
    asks = {"spec": {"cdi": {"nriPluginEnabled": True}}}
    [policy] = await story.client.list(ClusterPolicy)
    await story.client.patch(ClusterPolicy, policy.metadata.name, asks)
    await until_plugin_says(story, "NRI connected", "registered with kubelet resource=nvidia.com/gpu")
    await story.ready()

    async def seen(name: str, share: dict[str, str] | None = None) -> Any:
        await story.admitted(name, LOOK, share)
        return json.loads(await until_said(story, name))

    whole = await seen("whole")
    assert (whole["gpus"], whole["limits"], whole["why"]) == (1, None, None)
    await story.delete("whole")
    changed = files.difference(bare.files, files.of_machine(story.node))
    assert not [path for path in changed if "containerd" in path], "its configuration is nobody's business now"

    labels = {"metadata": {"labels": {names.SHARE_LABEL: "enable"}}}
    await story.client.patch(Node, story.node.name, labels)
    share = {names.VCUDA_CORE: "30", names.VCUDA_MEMORY: "20"}
    await until_plugin_says(story, *(f"registered with kubelet resource={resource}" for resource in share))
    await story.offers(200, names.VCUDA_CORE)
    held = {"gpus": 1, "memory": 5120, "limits": names.LIMITS_MOUNT, "why": None}
    assert await seen("share", share) == held
    story.node.kill("containerd")
    assert await seen("restarted", share) == held

    def kill(pod: str) -> None:
        """Kill the device plugin after the answer to PreStartContainer and before the answer to CreateContainer."""
        if pod == "alone":
            story.node.run("pkill", "-KILL", "-f", "run device-plugin")

    async with nri.plugged(story.node, nri.BEFORE, kill):
        assert await seen("alone", share) == {"why": WHY_NOTHING, "limits": None, "gpus": 0}
    told = await until_objects(
        story.client, Event, lambda all_: [e for e in all_ if e.reason == "StartedWithoutGPU"], namespace="default"
    )
    assert {event.involved_object.name for event in told} == {"alone"}
    await until_plugin_says(story, *(f"registered with kubelet resource={resource}" for resource in share))
    assert await seen("after", share) == held
    await story.delete("share", "restarted", "alone", "after")
    await story.client.patch(Node, story.node.name, {"metadata": {"labels": {names.SHARE_LABEL: None}}})
    await story.offers(2)


async def printed(story: Story, pod: str, wanted: Callable[[str], Any]) -> Any:
    """Return the result of `wanted` for a pod's log, once it is true."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(ApiError):  # its container has no log yet
                if found := wanted(await log(story.client, pod)):
                    return found
            await asyncio.sleep(0.2)


def pages_mounted(story: Story) -> list[str]:
    """Return the mount points of usage pages below the machine's own root, which are also listed below /machine."""
    points = [line.split()[4] for line in story.node.run("cat", "/proc/1/mountinfo").stdout.splitlines()]
    return [point for point in points if point.startswith(f"/{names.LIMITS_DIR}/")]


async def until_pages(story: Story, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(pages_mounted(story)) != count:  # noqa: ASYNC110 - mounts are not watched
            await asyncio.sleep(0.2)


async def test_a_tenant_cannot_fill_the_disk_of_its_node(story: Story, bare: Bare) -> None:
    await story.ready()
    await story.client.patch(Node, story.node.name, {"metadata": {"labels": {names.SHARE_LABEL: "enable"}}})
    share = {names.VCUDA_CORE: "30", names.VCUDA_MEMORY: "20"}
    await until_plugin_says(story, *(f"registered with kubelet resource={resource}" for resource in share))
    await story.offers(200, names.VCUDA_CORE)
    await story.create("neighbour", HOLD, 1, share)
    said = await until_said(story, "neighbour")
    free = os.statvfs(story.node.root)
    # Without the bound it would take 8 GiB at a time.
    script = f"import os; os.environ['MOST_BYTES'] = str(8 << 30)\n{ATTACK}"
    await story.create("thief", script, 1, share, user=0)
    taken = await printed(story, "thief", last)
    assert taken.done >= INSIDE and taken.done.isdisjoint(
        {"directory", "file", "symbolic link", "link", "node", "name"}
    )
    assert taken.most_blocks <= 1_200_000 and taken.most_attributes <= 4096
    # Other programs write to this disk too.
    assert free.f_bavail * free.f_frsize - taken.least_free < 4 << 30
    both = pages_mounted(story)
    assert len(both) == 2

    await kill_plugin(story)
    await story.offers(200, names.VCUDA_CORE)
    again = await printed(story, "thief", lambda text: (now := last(text)) and now.rounds > taken.rounds and now)
    assert again.most_blocks <= 1_200_000 and pages_mounted(story) == both, "found again, and none twice"
    await story.delete("thief")
    await until_pages(story, 1)
    neighbour = (await story.client.get(Pod, "neighbour", "default")).status
    assert (neighbour.phase, neighbour.container_statuses[0].restart_count) == ("Running", 0)
    assert await log(story.client, "neighbour") == said + "\n"

    before = (await story.client.get(Node, story.node.name)).status.node_info.boot_id
    story.node.reboot()
    await until_objects(story.client, Node, lambda nodes: [n for n in nodes if n.status.node_info.boot_id != before])
    await story.delete("neighbour")  # the kubelet rejected the pod for good: at the boot there was no device plugin
    await story.admitted("after", HOLD, share)
    await until_said(story, "after")
    await until_pages(story, 1)
    await story.delete("after")
    await story.client.patch(Node, story.node.name, {"metadata": {"labels": {names.SHARE_LABEL: None}}})
    await story.ready()
    story.gpuplane("uninstall", "-q")
    assert difference(bare.objects, await until_as(story.client, bare.objects)) == ""
    assert pages_mounted(story) == [] and files.difference(bare.files, files.of_machine(story.node)) == {}


async def until_plugin_says(story: Story, *words: str) -> None:
    """Wait until the log of the device plugin's running container has all of `words`."""

    async def said() -> bool:
        pods = await story.client.list(Pod, NAMESPACE, labels="app.kubernetes.io/component=device-plugin")
        try:
            text = "".join([await log(story.client, pod.metadata.name, NAMESPACE) for pod in pods])
        except ApiError:  # the container has no log yet
            return False
        return all(word in text for word in words)

    async with asyncio.timeout(PATIENCE_S):
        while not await said():  # noqa: ASYNC110 - a log is not watched
            await asyncio.sleep(0.2)
