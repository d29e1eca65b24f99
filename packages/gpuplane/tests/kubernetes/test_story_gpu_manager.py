"""The manifests of gpu-manager and gpu-admission on real Kubernetes, with gpuplane: shares of GPUs, and quotas.

kube-scheduler asks the extender in gpu-admission's pod, by the address of the manifest's Service.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator

import pytest

from gpuplane import names
from gpuplane.sharing import of_pod
from kubekit.api.core import Node, Pod
from kubekit.api.kinds import built_in
from kubekit.kube import Client
from tests.support.gpu_programs import LOOK
from tests.support.realkube.stories import GPUS, WITH_MANIFESTS, StoryCluster, asked_extender
from tests.support.realkube.watching import PATIENCE_S
from tests.support.realkube.workloads import PYTHON
from tests.support.until import until

pytestmark = WITH_MANIFESTS
MANAGER = ("gpu-manager/gpu-manager.yaml", "gpu-manager/gpuquota.yaml", "gpu-manager/gpu-admission.yaml")
PODS = ("gpu-manager/pods.yaml", "gpu-manager/vcuda-test.yaml")
SERVICE = built_in("v1", "Service")
UNITS_PER_GPU = 44  # of 256 MiB in the 11,441 MiB of a K80
SYSTEM = "kube-system"


@pytest.fixture
async def extender(stories: StoryCluster, client: Client) -> AsyncIterator[str]:
    """The address of gpu-admission's Service, which kube-scheduler asks, on a node that offers shares."""
    await stories.installed(client)
    node = stories.node.name
    await client.patch(Node, node, {"metadata": {"labels": {names.SHARE_LABEL: "enable"}}})
    said = stories.apply(*MANAGER)
    assert "gpuplane run gpu-manager runs here" in said and "gpuplane run scheduler runs here" in said
    await stories.of_label(client, "k8s-app=gpu-quota-admission", namespace=SYSTEM)
    service = json.loads(await client.request("GET", SERVICE.path(SYSTEM, "gpu-quota-admission")))
    address = service["spec"]["clusterIP"]
    stories.node.reach(address)
    url = f"http://{address}:3456"
    await until(lambda: asyncio.to_thread(get, f"{url}/version"), ignored=OSError, seconds=PATIENCE_S)
    async with asked_extender(stories, url):
        await stories.offers(client, 100 * GPUS, names.VCUDA_CORE)
        yield url
        stories.kubectl("delete", "deployments,pods", "--all", "--now")  # while the extender still answers
    stories.clean()
    await client.patch(Node, node, {"metadata": {"labels": {names.SHARE_LABEL: None}}})
    await stories.offers(client, GPUS)


def get(url: str | urllib.request.Request) -> str:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return str(reply.read().decode())


async def test_pods_get_their_parts_of_gpus_and_the_services_answer(
    stories: StoryCluster, client: Client, extender: str
) -> None:
    [node] = await client.list(Node)
    assert node.status.capacity[names.VCUDA_MEMORY] == str(UNITS_PER_GPU * GPUS)
    stories.apply(*PODS)
    whole, part = await stories.named(client, "one-card", "part-card")
    deployed = await stories.of_label(client, "k8s-app=vcuda-test")
    held = {pod.metadata.name: holds(pod) for pod in (whole, part, deployed)}
    assert held["one-card"][0] == 100
    assert held["part-card"] == (30, 20 * 256)
    assert held[deployed.metadata.name] == (50, 32 * 256)
    assert {pod.metadata.annotations[names.GPU_ASSIGNED_ANNOTATION] for pod in (whole, part, deployed)} == {"true"}
    # A program in the container finds its part of the GPU's memory, by the driver's own API.
    program = LOOK.replace("time.sleep(3600)", "")
    seen = json.loads(stories.kubectl("exec", deployed.metadata.name, "--", PYTHON, "-c", program))
    assert (seen["gpus"], seen["memory"], seen["why"]) == (1, 32 * 256, None)
    await metrics_have(stories, client, "part-card", 20 * 256.0)
    # The extender answers as gpu-admission did, at its own path.
    asks = {"Pod": {"metadata": {"name": "x", "namespace": "default", "uid": "u"}, "spec": {"containers": []}}}
    body = json.dumps(asks | {"Nodes": None, "NodeNames": [node.metadata.name]}).encode()
    request = urllib.request.Request(f"{extender}/scheduler/predicates", body, {"Content-Type": "application/json"})
    assert json.loads(await asyncio.to_thread(get, request))["NodeNames"] == [node.metadata.name]


def holds(pod: Pod) -> tuple[int, int]:
    """(percent of core, MiB) of the only GPU that a pod's only container holds."""
    placed = of_pod(pod)
    assert placed is not None
    [[part]] = placed.containers.values()
    return part.core, part.memory_mib


async def metrics_have(stories: StoryCluster, client: Client, pod: str, mib: float) -> None:
    """gpu-manager's Service leads to metrics under its names, with the request of a pod."""
    manager = await stories.of_label(client, "name=gpu-manager-ds", namespace=SYSTEM)

    async def is_there() -> bool:
        text = await asyncio.to_thread(get, f"http://{manager.status.pod_ip}:5678/metric")
        rows = [row for row in text.splitlines() if row.startswith("container_request_gpu_memory{") and pod in row]
        return bool(rows) and float(rows[0].rpartition(" ")[2]) == mib

    await until(is_there, what=f"metrics of {pod}", ignored=OSError, seconds=PATIENCE_S)


@pytest.mark.skip(
    reason="kube-scheduler.yaml is a pod of kube-scheduler 1.19, which is in no registry here; its policy file is "
    "read in gpulab/tests/cluster/test_gpu_manager.py"
)
def test_kube_scheduler_of_1_19_reads_the_policy_file() -> None:
    """Names what this machine cannot have."""
