"""A fault of one node is reported with its cause and its cure, disturbs no other node, and heals."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from gpuplane.api.gpunode import GPUNode, StageName, StageState
from kubekit.api.core import Event, Node, Pod
from simgpu import Faults

OPERANDS_LABEL = "nvidia.com/gpu.deploy.operands"
PLUGIN, EXPORTER, LABELLER = "nvidia-device-plugin-daemonset", "nvidia-dcgm-exporter", "gpu-feature-discovery"


def failed(stage: str, reason: str = ""):
    def holds(node):
        found = node.status.stages.get(stage)
        return found is not None and found.state is StageState.FAILED and reason in ("", found.reason)

    return holds


def is_ready(node):
    return node.status.summary.stage == "ready"


def operands_on(pods: list[Pod]) -> set[str]:
    return {name for name in (PLUGIN, EXPORTER, LABELLER) for pod in pods if pod.metadata.name.startswith(name)}


@contextlib.contextmanager
def faults_of(story, node: str, gpu: int) -> Iterator[Faults]:
    """The faults of one GPU, cleared at the latest at the end of the block."""
    with story.world.faults(node) as faults:
        try:
            yield faults
        finally:
            faults.clear(gpu)


@contextlib.contextmanager
def away(path: Path) -> Iterator[None]:
    """A file that is missing for the block."""
    kept = path.with_name(path.name + ".away")
    path.rename(kept)
    try:
        yield
    finally:
        kept.rename(path)


@contextlib.contextmanager
def overwritten(path: Path, text: str) -> Iterator[None]:
    """A file that says something else for the block."""
    before = path.read_bytes()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_bytes(before)


async def test_a_gpu_that_computes_wrong_stops_its_node_and_nobody_else(story):
    await story.ready()
    await story.opt_out("sim-1")
    before = await story.states(without="sim-1")
    with faults_of(story, "sim-1", 3) as faults:
        faults.wrong_results(3)
        await story.opt_in("sim-1")
        node = await story.node("sim-1", failed("cuda"))
        stage = node.status.stages["cuda"]
        assert stage.reason == "VectorAddFailed"
        assert "GPU 3" in stage.message and "GPU 3" in stage.where
        assert stage.cure
        assert node.status.summary.stage == "cuda"
        assert [name for name in StageName if name.value in node.status.stages] == list(StageName)[:4]
        # The components after the failed stage are not deployed.
        labels = (await story.client.get(Node, "sim-1")).metadata.labels
        assert "nvidia.com/gpu.deploy.device-plugin" not in labels
        assert operands_on(await story.operand_pods("sim-1")) == set()
        assert (await story.client.get(Node, "sim-1")).status.allocatable.get("nvidia.com/gpu", "0") == "0"
        page = story.world.gpuplane("status")
        assert "✗ sim-1   ✓✓✓✗" in page and stage.message in page and stage.cure in page
        await story.until(
            Event,
            lambda found: any(
                e.reason == "StageFailed" and e.type == "Warning" and stage.message in e.message for e in found
            ),
            fields="involvedObject.name=sim-1",
        )
        assert await story.states(without="sim-1") == before
    await story.validate_again("sim-1")
    await story.node("sim-1", is_ready)
    assert await story.states(without="sim-1") == before


async def test_a_fact_seen_to_be_false_takes_its_followers_back_and_no_running_pod(story):
    await story.ready()
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", "3600"],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    spec = {"nodeSelector": {"kubernetes.io/hostname": "sim-3"}, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker"}, "spec": spec}
    await story.client.create(pod, namespace="default")
    running = await story.phase("worker", "Running")
    with faults_of(story, "sim-3", 0) as faults:
        faults.wrong_results(0)
        (story.world.root("sim-3") / "run/nvidia/validations/cuda-ready").unlink()  # as after a boot
        await story.validate_again("sim-3")
        await story.node("sim-3", failed("cuda", "VectorAddFailed"))
        await story.until(
            Pod,
            lambda found: not operands_on(found),
            namespace="gpu-operator",
            fields="spec.nodeName=sim-3",
        )
    await story.validate_again("sim-3")
    await story.node("sim-3", is_ready)
    after = await story.client.get(Pod, "worker", "default")
    assert after.status.phase == "Running"
    assert after.status.container_statuses == running.status.container_statuses
    await story.client.delete(Pod, "worker", "default", grace_seconds=0)


async def test_a_gpu_that_falls_off_the_bus_is_not_offered_and_comes_back(story):
    await story.ready()

    def allocatable(count):
        return lambda found: found and found[0].status.allocatable["nvidia.com/gpu"] == str(count)

    with faults_of(story, "sim-3", 2) as faults:
        faults.off_bus(2)
        await story.until(Node, allocatable(3), fields="metadata.name=sim-3")
        node = await story.node("sim-3", lambda node: node.status.health)
        uuid = next(gpu.uuid for gpu in node.status.gpus if gpu.index == 2)
        assert list(node.status.health) == [uuid]
        assert "79" in node.status.health[uuid] or "lost" in node.status.health[uuid]
        assert (await story.client.get(Node, "sim-3")).status.capacity["nvidia.com/gpu"] == "4"
        node = await story.node("sim-3", lambda node: node.status.summary.gpus == "3/4")
        assert is_ready(node)  # a stage is a fact about the node; the three others work
        page = story.world.gpuplane("status")
        assert "! sim-3   ✓✓✓✓✓✓✓✓✓" in page and "GPU 2 lost; 3 of 4 left" in page
        assert uuid in page and "kubectl drain sim-3" in page
        await story.until(
            Event,
            lambda found: any(e.reason == "GPULost" and uuid in e.message for e in found),
            fields="involvedObject.name=sim-3",
        )
    await story.until(Node, allocatable(4), fields="metadata.name=sim-3")
    node = await story.node("sim-3", lambda node: not node.status.health)
    assert node.status.summary.gpus == "4/4"


async def test_a_lost_gpu_keeps_its_cause_when_driver_and_plugin_start_again(story):
    await story.ready()
    driver, plugin = "nvidia-driver-daemonset", PLUGIN

    def gpus(capacity, allocatable):
        def holds(found):
            status = found[0].status
            amounts = status.capacity["nvidia.com/gpu"], status.allocatable["nvidia.com/gpu"]
            return amounts == (str(capacity), str(allocatable))

        return holds

    def answering(message):
        return lambda node: node.status.stages["driver"].message == message

    with faults_of(story, "sim-3", 2) as faults:
        faults.off_bus(2)
        await story.until(Node, gpus(4, 3), fields="metadata.name=sim-3")
        node = await story.node("sim-3", lambda node: node.status.health)
        uuid = next(gpu.uuid for gpu in node.status.gpus if gpu.index == 2)
        assert node.status.health == {uuid: "Xid 79: fallen off the bus"}
        before = node.status.stages["driver"].message
        assert len(story.world.kill_containers("sim-3", driver, plugin)) == 2
        # NVML does not list the GPU any more, so that the plugin offers three.
        await story.until(Node, gpus(3, 3), fields="metadata.name=sim-3")
        node = await story.node("sim-3", answering("3 of 4 GPUs answer"))
        assert node.status.health == {uuid: "Xid 79: fallen off the bus"}
        assert (node.status.summary.gpus, len(node.status.gpus)) == ("3/4", 4)
        assert is_ready(node)
        assert "Xid 79: fallen off the bus" in story.world.gpuplane("status")
    # Its boot brings a GPU back that had left the bus.
    story.world.kill_containers("sim-3", driver, plugin)
    await story.until(Node, gpus(4, 4), fields="metadata.name=sim-3")
    node = await story.node("sim-3", answering(before))
    node = await story.node("sim-3", lambda node: not node.status.health)
    assert [gpu.index for gpu in node.status.gpus if gpu.uuid == uuid] == [2]
    assert node.status.summary.gpus == "4/4"


async def test_a_machine_that_lacks_something_says_what_and_how_to_mend_it(story):
    await story.ready()
    await story.opt_out("sim-1", "sim-2", "sim-3")
    for name, bare in story.world.bare.items():
        assert story.world.files(name) == bare
        labels = (await story.client.get(Node, name)).metadata.labels
        ours = [label for label in labels if label.startswith("nvidia.com/")]
        assert ours == ["nvidia.com/gpu.deploy.operands"]
    containerd = story.world.root("sim-1") / "etc/containerd/config.toml"
    library = next((story.world.root("sim-2") / "usr/lib").rglob("libcuda.so.1"))
    modprobe = story.world.root("sim-3") / "usr/sbin/modprobe"
    with overwritten(containerd, "version = 2\n[plugins\n"), away(library), away(modprobe):
        await story.opt_in("sim-1", "sim-2", "sim-3")
        stage = (await story.node("sim-1", failed("toolkit"))).status.stages["toolkit"]
        assert stage.reason == "ConfigurationInvalid"
        assert "config.toml" in stage.where
        assert stage.cure
        stage = (await story.node("sim-2", failed("toolkit"))).status.stages["toolkit"]
        assert stage.reason == "DriverIncomplete"
        assert "libcuda.so.1" in stage.message and "535.161.08" in stage.cure
        stage = (await story.node("sim-3", failed("driver"))).status.stages["driver"]
        assert stage.reason == "ModprobeMissing"
        assert "modprobe" in stage.message and "kmod" in stage.cure
    for name in ("sim-1", "sim-2", "sim-3"):
        await story.validate_again(name)
    await story.ready()


async def test_a_node_that_is_let_in_again_half_way_out_becomes_ready(story):
    await story.ready()
    others_before = await story.states(without="sim-1")
    await story.client.patch(Node, "sim-1", {"metadata": {"labels": {OPERANDS_LABEL: "false"}}})
    await story.until(
        GPUNode,
        lambda found: any(
            stage.state is StageState.REMOVED
            for node in found
            for name, stage in node.status.stages.items()
            if name == "toolkit"
        ),
    )
    await story.opt_in("sim-1")
    await story.ready()
    await story.until(
        Pod,
        lambda pods: pods and not any("-removal" in pod.metadata.name for pod in pods),
        namespace="gpu-operator",
    )
    await story.ready()
    assert await story.states(without="sim-1") == others_before
