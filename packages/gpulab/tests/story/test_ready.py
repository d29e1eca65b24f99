"""From bare machines to ready ones: what an administrator sees once the operator has finished."""

from __future__ import annotations

import re

import pytest

from gpuplane.api.gpunode import StageName, StageState
from kubekit.api.core import Event, Node

MACHINES = {
    "sim-1": ("NVIDIA-H100-80GB-HBM3", 8, "81559", "580.82.07", "13.0", "ubuntu", "22.04", "5.15.0-1084-aws"),
    "sim-2": ("Tesla-T4", 1, "15360", "535.161.08", "12.2", "ubuntu", "18.04", "4.15.0-1051-aws"),
    "sim-3": ("NVIDIA-A10G", 4, "23028", "580.82.07", "13.0", "rhel", "9.6", "5.14.0-570.49.1.el9_6.x86_64"),
}
RUNTIMES = {"sim-1": "containerd", "sim-2": "docker", "sim-3": "cri-o"}


async def test_nine_stages_hold_on_three_different_machines(story):
    for node in await story.ready():
        stages = node.status.stages
        assert list(StageName) == [name for name in StageName if name.value in stages]
        driver = stages["driver"].state
        assert driver is (StageState.PRESENT if node.metadata.name == "sim-2" else StageState.DONE)
        assert all(stage.state is StageState.DONE for name, stage in stages.items() if name != "driver")
        assert all(stage.since for stage in stages.values())
        assert node.status.machine.runtime == RUNTIMES[node.metadata.name]
        assert len(node.status.gpus) == MACHINES[node.metadata.name][1]
        assert {condition.type: condition.status for condition in node.status.conditions}["Ready"] == "True"


async def test_gpus_are_capacity_of_the_node(story):
    await story.ready()
    counts = {name: str(machine[1]) for name, machine in MACHINES.items()}
    for kind in ("capacity", "allocatable"):
        await story.until(
            Node,
            lambda found, kind=kind: (
                {n.metadata.name: getattr(n.status, kind).get("nvidia.com/gpu") for n in found} == counts
            ),
        )


@pytest.mark.parametrize("name", MACHINES)
async def test_a_node_carries_the_labels_that_users_select_by(story, name):
    await story.ready()
    product, count, memory, driver, cuda, os_id, os_version, kernel = MACHINES[name]
    labels = (await story.client.get(Node, name)).metadata.labels
    feature = "feature.node.kubernetes.io/"
    version, minor, *_ = re.findall(r"\d+", kernel)
    expected = {
        feature + "cpu-cpuid.ADX": "true",
        feature + "cpu-hardware_multithreading": "true",
        feature + "kernel-version.full": kernel,
        feature + "kernel-version.major": version,
        feature + "kernel-version.minor": minor,
        feature + "kernel-version.revision": "0",
        feature + "kernel-config.NO_HZ": "true",
        feature + "pci-10de.present": "true",
        feature + "storage-nonrotationaldisk": "true",
        feature + "system-os_release.ID": os_id,
        feature + "system-os_release.VERSION_ID": os_version,
        feature + "system-os_release.VERSION_ID.major": os_version.partition(".")[0],
        feature + "system-os_release.VERSION_ID.minor": os_version.partition(".")[2],
        "nvidia.com/gpu.present": "true",
        "nvidia.com/cuda.runtime.major": cuda.partition(".")[0],
        "nvidia.com/cuda.runtime.minor": cuda.partition(".")[2],
        "nvidia.com/cuda.driver.major": driver.split(".")[0],
        "nvidia.com/cuda.driver.minor": driver.split(".")[1],
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.memory": memory,
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.deploy.driver": "pre-installed" if name == "sim-2" else "true",
    }
    assert {key: labels.get(key) for key in expected} == expected
    if os_id == "ubuntu":
        assert labels[feature + "kernel-config.NO_HZ_IDLE"] == "true"


def test_operands_are_listed_by_the_names_that_users_know(world):
    on_each = (
        "node-feature-discovery-worker",
        "nvidia-container-toolkit-daemonset",
        "nvidia-operator-validator",
        "nvidia-device-plugin-daemonset",
        "gpu-feature-discovery",
    )
    exporters = ("nvidia-dcgm-exporter", "nvidia-dcgm-exporter-privileged")
    for name, machine in MACHINES.items():
        pods = [pod for pod in world.first_pods if pod.spec.node_name == name]
        own = [re.sub(r"-[a-z0-9]{5}$", "", pod.metadata.name) for pod in pods]
        assert sorted(n for n in own if n in on_each) == sorted(on_each)
        # docker offers pods no runtime of NVIDIA's, which adds the GPUs elsewhere.
        assert [n for n in own if n in exporters] == [exporters[RUNTIMES[name] == "docker"]]
        drivers = [n for n in own if n.startswith("nvidia-driver-daemonset-")]
        assert len(drivers) == (0 if name == "sim-2" else 1)  # where the host has its own, ours steps aside
        assert all(machine[5] in n for n in drivers)
        validators = [pod for pod in pods if pod.metadata.name.startswith("nvidia-cuda-validator-")]
        assert [pod.status.phase for pod in validators] == ["Succeeded"]
        assert all(pod.status.phase == "Running" for pod in pods if pod not in validators)
    assert sum(pod.metadata.name.startswith("gpu-operator-") for pod in world.first_pods) == 1
    restarts = {p.metadata.name: s.restart_count for p in world.first_pods for s in p.status.container_statuses}
    assert not any(restarts.values()), restarts


async def test_kubectl_get_gpunodes_is_a_status_page(story, kubectl):
    await story.ready()
    done = kubectl("get", "gpunodes")
    assert done.returncode == 0, done.stderr
    head, *rows = (re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines())
    assert head == ["NAME", "STAGE", "WAITS-FOR", "SINCE", "GPUS", "FREE", "DRIVER", "RUNTIME"]
    by_name = {row[0]: row for row in rows}
    for name, machine in MACHINES.items():
        # WAITS-FOR is empty, so it is no column of its own after the split.
        _, stage, _, gpus, free, driver, runtime = by_name[name]
        assert (stage, gpus, driver, runtime) == ("ready", f"{machine[1]}/{machine[1]}", machine[3], RUNTIMES[name])
        assert free == str(machine[1])
    wide = kubectl("get", "gpn", "-o", "wide").stdout
    assert "NVIDIA H100 80GB HBM3" in wide and "ubuntu18.04" in wide


async def test_status_and_the_policy_say_that_all_is_ready(story, kubectl):
    await story.ready()
    assert "✓ all ready" in story.world.gpuplane("status")
    assert story.world.gpuplane("ls").splitlines()[1].split()[1:3] == ["running", "3"]
    assert "T4 15 GiB ×1" in story.world.gpuplane("status", "gpus")
    assert story.world.gpuplane("status", "-o", "name").split() == [f"gpunode/{name}" for name in MACHINES]
    waited = kubectl("wait", "--for=condition=Ready", "gpunode", "--all", "--timeout=10s")
    assert waited.returncode == 0, waited.stderr
    policy = kubectl("get", "clusterpolicy", "cluster-policy", "-o", "jsonpath={.status.state}")
    assert policy.stdout == "ready"


async def test_each_stage_is_told_by_an_event(story):
    await story.ready()

    def told(events):
        done = {(e.involved_object.name, e.message.partition(":")[0]) for e in events if e.reason == "StageDone"}
        return {
            (name, stage.value) for name in MACHINES for stage in StageName if stage is not StageName.DISCOVERED
        } <= done

    await story.until(Event, told, fields="involvedObject.kind=GPUNode")


async def test_installing_twice_changes_nothing(story):
    await story.ready()
    before = await story.states()
    story.world.install("--wait", "--timeout", "30s")
    await story.ready()
    assert await story.states() == before
