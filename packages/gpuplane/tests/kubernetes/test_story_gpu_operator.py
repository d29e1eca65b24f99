"""The manifests of the GPU operator's users on real Kubernetes: the CUDA sample, and a notebook behind a node port."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpulab.kubernetes.unavailable import Unavailable
from gpuplane import names
from kubekit.api.core import Node, Pod
from kubekit.kube import Client
from tests.support.notebooks import Kernel, ask, compute_beyond
from tests.support.realkube import workloads
from tests.support.realkube.stories import GPUS, NAMESPACE, WITH_MANIFESTS, StoryCluster
from tests.support.realkube.watching import PATIENCE_S, log, phase
from tests.support.until import until

pytestmark = WITH_MANIFESTS
NODE_PORT = 30001
# Pods in the operator's namespace, by the beginning of their names; the driver's has kernel and system.
PODS = (
    *("gpu-feature-discovery-", "gpu-operator-", "node-feature-discovery-worker-"),
    *("nvidia-container-toolkit-daemonset-", "nvidia-dcgm-exporter-", "nvidia-device-plugin-daemonset-"),
    *("nvidia-driver-daemonset-5.15.0-1084-aws-ubuntu22.04-", "nvidia-operator-validator-"),
)
LABELS = {
    "feature.node.kubernetes.io/cpu-cpuid.ADX": "true",
    "feature.node.kubernetes.io/kernel-version.full": "5.15.0-1084-aws",
    "feature.node.kubernetes.io/kernel-version.major": "5",
    "feature.node.kubernetes.io/kernel-config.NO_HZ": "true",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "feature.node.kubernetes.io/storage-nonrotationaldisk": "true",
    "feature.node.kubernetes.io/system-os_release.ID": "ubuntu",
    "feature.node.kubernetes.io/system-os_release.VERSION_ID": "22.04",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/cuda.driver.major": "470",
    "nvidia.com/gpu.product": "Tesla-K80",
    "nvidia.com/gpu.memory": "11441",
    "nvidia.com/gpu.deploy.driver": "true",
}
SAID = """\
[Vector addition of 50000 elements]
Copy input data from the host memory to the CUDA device
CUDA kernel launch with 196 blocks of 256 threads
Copy output data from the CUDA device to the host memory
Test PASSED
Done
"""


@pytest.fixture(autouse=True)
async def _installed(stories: StoryCluster, client: Client) -> AsyncIterator[None]:
    await stories.installed(client)
    yield
    stories.clean()


async def test_the_cuda_sample_prints_test_passed(stories: StoryCluster, client: Client) -> None:
    stories.apply("gpu-operator/cuda-vectoradd.yaml")
    await phase(client, "cuda-vectoradd", "Succeeded", "Failed")
    assert await log(client, "cuda-vectoradd") == SAID


async def test_the_node_and_the_namespace_are_as_an_administrator_knows_them(client: Client) -> None:
    [node] = await client.list(Node)
    assert {name: node.metadata.labels.get(name) for name in LABELS} == LABELS
    assert node.status.capacity[names.GPU_RESOURCE] == node.status.allocatable[names.GPU_RESOURCE] == str(GPUS)
    pods = [pod.metadata.name for pod in await client.list(Pod, NAMESPACE)]
    assert [name for name in PODS if not any(pod.startswith(name) for pod in pods)] == []


async def test_nvidia_smi_answers_in_the_pod_of_the_driver(stories: StoryCluster, client: Client) -> None:
    [driver] = [pod for pod in await client.list(Pod, NAMESPACE) if pod.metadata.name.startswith("nvidia-driver-")]
    said = stories.kubectl("exec", "-n", NAMESPACE, driver.metadata.name, "--", "nvidia-smi", "-L")
    listed = [line for line in said.splitlines() if line.startswith("GPU ")]  # kubectl may log about its streams
    assert len(listed) == GPUS, said
    assert all(re.fullmatch(r"GPU \d: Tesla K80 \(UUID: GPU-[0-9a-f-]{36}\)", line) for line in listed), listed


async def test_a_notebook_answers_on_its_node_port_and_computes_on_its_gpu(
    stories: StoryCluster, client: Client
) -> None:
    try:
        workloads.offer_notebook(stories.registry, stories.folder / "images")
    except Unavailable as problem:
        pytest.skip(str(problem))
    stories.apply("gpu-operator/notebook-example.yaml")
    await stories.named(client, "tf-notebook")

    async def token() -> str:
        found = re.search("token=([0-9a-f]{48})", await log(client, "tf-notebook"))
        return found[1] if found else ""

    key = await until(token, what="the notebook prints its token", seconds=PATIENCE_S)
    address = f"{stories.node.address}:{NODE_PORT}"

    async def status() -> Any:
        """NB: kube-proxy refuses the port until it has seen that the pod is ready."""
        return await asyncio.to_thread(ask, address, "/api/status", key)

    answer = await until(status, what="the node port answers", ignored=OSError, seconds=PATIENCE_S)
    assert answer["kernels"] == 0
    kernel = await asyncio.to_thread(Kernel, address, key)
    try:
        lists = "import os; print(sorted(f for f in os.listdir('/dev') if f[:6] == 'nvidia' and f[6:].isdigit()))"
        assert len(json.loads((await asyncio.to_thread(kernel.run, lists)).replace("'", '"'))) == 1
        computed = await asyncio.to_thread(kernel.run, compute_beyond(16 << 30))
        assert computed == "[2.0, 4.0, 6.0, 8.0] 2\n", "computed; 2 is CUDA_ERROR_OUT_OF_MEMORY"
    finally:
        kernel.close()
