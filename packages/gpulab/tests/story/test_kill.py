"""kill -9 of any process at any moment: the cluster settles, no stage is taken back, no running GPU pod notices."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from gpuplane.api.gpunode import GPUNode, StageName
from kubekit.api.core import Node, Pod
from kubekit.kube import Informer

OPERANDS = (
    "node-feature-discovery-worker",
    "nvidia-driver-daemonset",
    "nvidia-container-toolkit-daemonset",
    "nvidia-operator-validator",
    "nvidia-device-plugin-daemonset",
    "nvidia-dcgm-exporter",
    "gpu-feature-discovery",
)
CONTROL_PLANE, SUPERVISOR, KUBELET = "cluster", "supervisor", "kubelet-sim-1"


@contextlib.asynccontextmanager
async def never_unready(story) -> AsyncIterator[None]:
    """Every version of every GPUNode in the block is ready, with stages that hold since when they did."""
    since = {
        node.metadata.name: {name: stage.since for name, stage in node.status.stages.items()}
        for node in await story.ready()
    }
    dips = []

    def look(old, new):
        if new is None or {name: stage.since for name, stage in new.status.stages.items()} != since[new.metadata.name]:
            dips.append(new and new.status.stages)

    informer = Informer(story.client, GPUNode)
    informer.add_handler(look)
    informer.start()
    await informer.synced()
    try:
        yield
    finally:
        await informer.stop()
    assert dips == []


async def working(story) -> None:
    """The whole cluster answers: its nodes are Ready with their GPUs, and every operand's pod runs."""

    def whole(nodes):
        counts = {node.metadata.name: node.status.allocatable.get("nvidia.com/gpu") for node in nodes}
        ready = [c.status for node in nodes for c in node.status.conditions if c.type == "Ready"]
        return counts == {"sim-1": "8", "sim-2": "1", "sim-3": "4"} and ready == ["True"] * 3

    await story.until(Node, whole)
    await story.until(
        Pod,
        lambda pods: (
            pods
            and all(
                pod.status.phase == "Succeeded" or any(c.ready for c in pod.status.container_statuses) for pod in pods
            )
        ),
        namespace="gpu-operator",
    )


async def kill(story, node: str, *prefixes: str) -> Callable[[], Awaitable[None]]:
    """Kill the containers; await what is returned to wait until each runs again."""
    before = {p.metadata.name: p.status.container_statuses[0].restart_count for p in await story.operand_pods(node)}
    killed = story.world.kill_containers(node, *prefixes)
    assert len(killed) == len(prefixes)

    def again(pods):
        after = {p.metadata.name: p.status.container_statuses[0] for p in pods if p.metadata.name in killed}
        return len(after) == len(killed) and all(s.restart_count > before[n] and s.ready for n, s in after.items())

    async def are_back() -> None:
        await story.until(Pod, again, namespace="gpu-operator", fields=f"spec.nodeName={node}")

    return are_back


async def operators_node(story) -> str:
    pods = await story.operand_pods()
    return next(pod.spec.node_name for pod in pods if pod.metadata.name.startswith("gpu-operator-"))


async def new_operator(story) -> None:
    """Replace the operator's pod: a kubelet delays the restart of a container that was killed before."""

    def operator(pods):
        return next((p for p in pods if p.metadata.name.startswith("gpu-operator-")), None)

    old = operator(await story.operand_pods())
    await story.client.delete(Pod, old.metadata.name, "gpu-operator", grace_seconds=0)
    await story.until(
        Pod,
        lambda pods: (
            (new := operator(pods))
            and new.metadata.uid != old.metadata.uid
            and any(c.ready for c in new.status.container_statuses)
        ),
        namespace="gpu-operator",
    )


async def operator_works(story) -> None:
    """The operator restores an object that a test deletes."""
    await story.client.patch(Node, "sim-2", {"metadata": {"labels": {"nvidia.com/gpu.present": None}}})
    await story.until(
        Node,
        lambda found: found and found[0].metadata.labels.get("nvidia.com/gpu.present") == "true",
        fields="metadata.name=sim-2",
    )


async def gpu_pod(story, name: str, node: str) -> Pod:
    resources = {"limits": {"nvidia.com/gpu": 1}}
    container = {"name": "main", "image": "busybox", "command": ["sleep", "3600"], "resources": resources}
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "containers": [container],
        "terminationGracePeriodSeconds": 0,
    }
    await story.client.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, namespace="default"
    )
    return await story.phase(name, "Running")


async def test_processes_may_be_killed_while_nodes_are_prepared(story):
    await story.ready()
    await story.opt_out("sim-2", "sim-3")
    operators = await operators_node(story)
    await story.opt_in("sim-2", "sim-3")

    async def holds(name: str, stage: StageName) -> None:
        await story.node(name, lambda node: stage.value in node.status.stages)

    await holds("sim-3", StageName.DISCOVERED)
    story.world.kill_containers(operators, "gpu-operator-")
    await holds("sim-3", StageName.DRIVER)
    story.world.kill_containers(
        "sim-3", "nvidia-driver-daemonset", "nvidia-container-toolkit", "nvidia-operator-validator"
    )
    await holds("sim-2", StageName.DRIVER)
    await story.world.kill("kubelet-sim-2")
    await holds("sim-3", StageName.TOOLKIT)
    await story.world.kill(CONTROL_PLANE)
    await story.world.kill(SUPERVISOR)
    await holds("sim-2", StageName.DEVICE_PLUGIN)
    story.world.kill_containers("sim-2", "nvidia-device-plugin", "nvidia-operator-validator")
    await story.ready()
    await working(story)


async def test_any_process_may_be_killed_once_all_is_ready(story):
    await story.ready()
    await new_operator(story)
    worker = await gpu_pod(story, "survivor", "sim-1")
    async with never_unready(story):
        # No node needs the operator meanwhile.
        operator_is_back = await kill(story, await operators_node(story), "gpu-operator-")
        operands_are_back = await kill(story, "sim-1", *OPERANDS)
        await operands_are_back()
        for process in (SUPERVISOR, KUBELET, CONTROL_PLANE):
            await story.world.kill(process)
            await working(story)
        await operator_is_back()
    await operator_works(story)
    after = await story.client.get(Pod, "survivor", "default")
    assert after.status.container_statuses == worker.status.container_statuses
    # And the cluster still works for who comes now.
    await gpu_pod(story, "newcomer", "sim-1")
    for name in ("survivor", "newcomer"):
        await story.client.delete(Pod, name, "default", grace_seconds=0)
