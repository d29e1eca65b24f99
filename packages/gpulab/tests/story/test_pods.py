"""Pods that request GPUs: the manifest that users try first, on three container runtimes, and a pod's view of GPUs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpulab import demo
from gpuplane import names
from gpuplane.api.gpunode import GPUNode, StageState
from gpuplane.host import Command, invocation
from kubekit.api.core import Pod

SHARED = Path(__file__).parents[5] / "shared" / "manifests" / "gpu-operator" / "cuda-vectoradd.yaml"
OWN = Path(demo.__file__).parent / "cuda-vectoradd.yaml"
EXPECTED_LOG = """\
[Vector addition of 50000 elements]
Copy input data from the host memory to the CUDA device
CUDA kernel launch with 196 blocks of 256 threads
Copy output data from the CUDA device to the host memory
Test PASSED
Done
"""
# A program's view of its GPUs: by NVML, by its environment, by its /dev.
LOOK = """
import json, os, pynvml
seen = {"visible": os.environ.get("NVIDIA_VISIBLE_DEVICES", "")}
names = os.listdir(os.environ.get("SIMGPU_DEV", "/dev"))
seen["dev"] = sorted(name for name in names if name.startswith("nvidia") and name[6:].isdigit())
try:
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    seen["uuids"] = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
except pynvml.NVMLError as error:
    seen["error"] = str(error)
print(json.dumps(seen))
"""
MACHINES = ("sim-1", "sim-2", "sim-3")


def vectoradd() -> Any:
    return yaml.safe_load((SHARED if SHARED.exists() else OWN).read_text())


def pod(name: str, node: str, gpus: int, *command: str, image: str = "python:3.11") -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": image, "command": list(command)}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [container],
        },
    }


def test_the_copy_in_the_demo_is_the_manifest_that_everybody_knows():
    if not SHARED.exists():
        pytest.skip("no shared manifests beside this checkout")
    assert OWN.read_bytes() == SHARED.read_bytes()


async def test_the_vectoradd_manifest_passes_verbatim(story, kubectl):
    await story.ready()
    manifest = str(SHARED if SHARED.exists() else OWN)
    made = kubectl("apply", "-f", manifest)
    assert made.returncode == 0, made.stderr
    done = await story.phase("cuda-vectoradd", "Succeeded", "Failed")
    assert done.status.phase == "Succeeded"
    assert kubectl("logs", "cuda-vectoradd").stdout == EXPECTED_LOG
    assert kubectl("delete", "-f", manifest).returncode == 0


async def test_the_vectoradd_passes_with_every_container_runtime(story):
    await story.ready()
    manifests = []
    for node in MACHINES:
        manifest = vectoradd()
        manifest["metadata"]["name"] = f"vectoradd-{node}"
        manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        manifests.append(manifest)
    for done in await asyncio.gather(*map(story.run_pod, manifests)):
        name = done.metadata.name
        assert done.status.phase == "Succeeded", await story.log(name)
        assert await story.log(name) == EXPECTED_LOG
        await story.client.delete(Pod, name, "default")


@pytest.mark.parametrize(("node", "count"), [("sim-1", 3), ("sim-2", 1), ("sim-3", 2)])
async def test_a_pod_sees_the_gpus_it_was_given_and_no_others(story, node, count):
    gpunode = next(found for found in await story.ready() if found.metadata.name == node)
    name = f"look-{node}"
    done = await story.run_pod(pod(name, node, count, sys.executable, "-c", LOOK))
    seen = json.loads(await story.log(name))
    assert done.status.phase == "Succeeded"
    assert len(seen["uuids"]) == count
    assert len(seen["dev"]) == count
    assert set(seen["uuids"]) <= {gpu.uuid for gpu in gpunode.status.gpus}
    # "void" is what a CDI specification sets, so that no other hook injects the GPUs a second time.
    assert seen["visible"] == "void" or sorted(seen["visible"].split(",")) == sorted(seen["uuids"])
    await story.client.delete(Pod, name, "default")


@pytest.mark.parametrize("node", MACHINES)
async def test_nvidia_smi_in_a_container_lists_the_gpus_that_it_was_given(story, node):
    gpunode = next(found for found in await story.ready() if found.metadata.name == node)
    name = f"smi-{node}"
    done = await story.run_pod(
        pod(name, node, 1, "sh", "-c", "nvidia-smi -L && nvidia-smi", image="nvidia/cuda:12.2.0")
    )
    text = await story.log(name)
    assert done.status.phase == "Succeeded", text
    [listed] = re.findall(r"^GPU 0: .* \(UUID: (GPU-[-0-9a-f]+)\)$", text, re.MULTILINE)
    assert listed in {gpu.uuid for gpu in gpunode.status.gpus}
    assert f"Driver Version: {gpunode.status.machine.driver} " in text
    await story.client.delete(Pod, name, "default")


@pytest.mark.parametrize("node", ["sim-1", "sim-3"])  # the third had its driver before
async def test_nvidia_smi_in_the_driver_pod_is_that_of_the_nodes_driver(story, kubectl, node):
    gpunode = next(found for found in await story.ready() if found.metadata.name == node)
    driver = next(p for p in await story.operand_pods(node) if p.metadata.name.startswith("nvidia-driver-daemonset-"))
    place = ("-n", driver.metadata.namespace, driver.metadata.name)
    shown = kubectl("exec", *place, "--", "nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
    assert shown.returncode == 0, shown.stderr
    assert sorted(shown.stdout.split()) == sorted(gpu.uuid for gpu in gpunode.status.gpus)
    refused = kubectl("exec", *place, "--", "nvidia-smi", "--no-such-option")
    assert refused.returncode == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter the root of a node with chroot")
@pytest.mark.parametrize("node", MACHINES)
async def test_nvidia_smi_works_on_a_node_by_its_name_and_in_the_root_of_its_driver(story, node):
    gpunode = next(found for found in await story.ready() if found.metadata.name == node)
    present = gpunode.status.stages["driver"].state is StageState.PRESENT
    for inside in {"", "" if present else names.DRIVER_ROOT}:
        argv, environment = invocation(Command(("nvidia-smi", "-L"), story.world.root(node), inside=inside))
        words = {"env": environment, "capture_output": True, "text": True, "timeout": 20}
        shown = await asyncio.to_thread(subprocess.run, argv, **words)
        assert shown.stdout.count("(UUID: GPU-") == len(gpunode.status.gpus), shown


@pytest.mark.parametrize("node", MACHINES)
async def test_a_pod_that_asks_for_none_sees_none(story, node):
    await story.ready()
    name = f"none-{node}"
    await story.run_pod(pod(name, node, 0, sys.executable, "-c", LOOK))
    seen = json.loads(await story.log(name))
    assert seen["dev"] == []
    assert "error" in seen and "uuids" not in seen
    await story.client.delete(Pod, name, "default")


async def test_a_pod_that_fits_nowhere_is_told_why(story):
    await story.ready()
    await story.client.create(pod("too-large", "sim-2", 2, "true", image="busybox"), namespace="default")

    def told(pods):
        conditions = [c for p in pods for c in p.status.conditions if c.type == "PodScheduled" and c.status == "False"]
        return conditions and conditions[0].message

    message = await story.until(Pod, told, namespace="default", fields="metadata.name=too-large")
    assert "1 Insufficient nvidia.com/gpu" in message and message.startswith("0/3 nodes are available")
    await story.client.delete(Pod, "too-large", "default", grace_seconds=0)


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.parametrize(("node", "privileged"), [("sim-1", False), ("sim-2", True), ("sim-3", False)])
async def test_the_exporter_measures_every_gpu_without_privilege_where_the_runtime_adds_them(story, node, privileged):
    gpunode = next(found for found in await story.ready() if found.metadata.name == node)
    pods = await story.operand_pods(node)
    exporter = next(p for p in pods if p.metadata.name.startswith("nvidia-dcgm-exporter-"))
    path = Pod.RESOURCE.path(exporter.metadata.namespace, exporter.metadata.name)
    spec = json.loads(await story.client.request("GET", path))["spec"]
    assert [bool(c["securityContext"].get("privileged")) for c in spec["containers"]] == [privileged]
    assert (spec.get("runtimeClassName") == "nvidia") is not privileged
    text = fetch(f"http://{exporter.status.pod_ip}:9400/metrics")
    measured = re.findall(r'^DCGM_FI_DEV_POWER_USAGE\{.*UUID="([^"]+)"', text, re.MULTILINE)
    assert sorted(measured) == sorted(gpu.uuid for gpu in gpunode.status.gpus)
    assert text.count("\ngpuplane_gpu_lost{") == len(gpunode.status.gpus)
    profiled = re.findall(r"^DCGM_FI_PROF_GR_ENGINE_ACTIVE\{", text, re.MULTILINE)
    assert len(profiled) == len(gpunode.status.gpus)


async def test_the_exporter_names_the_pod_that_holds_a_gpu(story):
    await story.ready()
    name = "holder"
    await story.client.create(pod(name, "sim-3", 1, "sleep", "3600", image="busybox"), namespace="default")
    await story.phase(name, "Running")
    pods = await story.operand_pods("sim-3")
    exporter = next(p for p in pods if p.metadata.name.startswith("nvidia-dcgm-exporter-"))
    text = fetch(f"http://{exporter.status.pod_ip}:9400/metrics")
    lines = [line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_GPU_TEMP{")]
    assert len(lines) == 4
    assert sum('pod="holder"' in line and 'namespace="default"' in line for line in lines) == 1
    assert all("UUID=" in line and 'modelName="NVIDIA A10G"' in line for line in lines)
    await story.client.delete(Pod, name, "default", grace_seconds=0)


async def test_the_operator_tells_how_far_the_nodes_are(story):
    await story.ready()
    operator = next(p for p in await story.operand_pods() if p.metadata.name.startswith("gpu-operator-"))
    text = fetch(f"http://{operator.status.pod_ip}:8080/metrics")
    assert "gpu_operator_gpu_nodes_total 3" in text
    assert "gpu_operator_reconciliation_status 1" in text
    assert 'gpuplane_nodes_by_stage{stage="ready"} 3' in text
    for name in MACHINES:
        assert f'gpu_operator_node_cuda_ready{{node="{name}"}} 1' in text
    assert fetch(f"http://{operator.status.pod_ip}:8080/readyz") == "ok\n"


async def test_what_gpus_cost_is_read_from_the_exporters(story):
    await story.ready()
    text = await asyncio.to_thread(story.world.gpuplane, "cost", "-o", "json")
    answer = json.loads(text)
    assert (answer["source"], answer["silent"], answer["complete"]) == ("3 exporters", [], False)
    page = await asyncio.to_thread(story.world.gpuplane, "cost", "-n", "ml")
    assert "since the exporters started" in page and "No container held a GPU in this time." in page


async def test_top_has_the_use_of_every_gpu_of_every_machine(story):
    await story.ready()
    text = await asyncio.to_thread(story.world.gpuplane, "top", "--all", "--once", "-o", "json")
    answer = json.loads(text)
    assert (answer["source"], answer["notMeasured"]) == ("3 exporters", "")
    gpus = {gpu.uuid for name in MACHINES for gpu in (await story.client.get(GPUNode, name)).status.gpus}
    assert len(answer["rows"]) == len(gpus) and {row["node"] for row in answer["rows"]} == set(MACHINES)
    for row in answer["rows"]:
        assert row["busy"] is not None and row["memoryMib"] is not None and row["powerWatts"] > 0, row["name"]
