"""Moves on a real control plane: real Deployments, disruption budgets and evictions; by the command and by itself."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane import names
from gpuplane.sharing import of_pod
from kubekit.api.core import Deployment, Event, Pod
from kubekit.api.raw import RawBudget
from kubekit.kube import Client
from tests.support.extender_world import gpu_pod
from tests.support.realkube.started import started
from tests.support.realkube.watching import until_objects
from tests.support.replaced_pods import workloads
from tests.support.scheduled_pods import ours, reasons
from tests.support.share_burst import add_nodes, extending, free_port, verdict


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    with started(ControlPlane(tmp_path / "plane")) as made:
        yield made


async def deploy(client: Client, name: str, core: int, **annotations: str) -> None:
    """A Deployment of one pod that holds a part of a GPU, with a disruption budget of one eviction."""
    pod = ours(gpu_pod(name, (core, 0)), terminationGracePeriodSeconds=1)
    labels = {"app": name}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    meta = {"name": name, "namespace": "default"}
    await client.create({"metadata": meta, "spec": spec}, resource=Deployment.RESOURCE)
    budget = {"metadata": meta, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}}}
    await client.create(budget, resource=RawBudget.RESOURCE)


def on(pods: list[Pod], app: str) -> list[str]:
    """The GPUs of the running pods of an app."""
    found: list[str] = []
    for pod in pods:
        runs = pod.status.phase == "Running" and not pod.metadata.deletion_timestamp
        if runs and pod.metadata.labels.get("app") == app:
            assignment = of_pod(pod)
            assert assignment is not None, "a running pod without its share"
            found += assignment.uuids()
    return found


async def fragments(client: Client) -> None:
    """A node with two GPUs: 40% of the one and 50% of the other are held, so a pod with a whole GPU waits."""
    await add_nodes(client, 1, 2)
    here = {names.GPU_UUIDS_ANNOTATION: "GPU-gpu-00-0"}
    first = ours(gpu_pod("first", (60, 0), metadata={"annotations": here}), terminationGracePeriodSeconds=0)
    await client.create(first, resource=Pod.RESOURCE)
    await deploy(client, "stays", 50, **{names.GPU_UUIDS_ANNOTATION: "GPU-gpu-00-1"})
    await until_objects(client, Pod, lambda pods: len(on(pods, "stays")) == 1 and sum(map(bound, pods)) == 2)
    await deploy(client, "serve", 40, **{names.MOVABLE_ANNOTATION: "true"})
    await until_objects(client, Pod, lambda pods: on(pods, "serve") == ["GPU-gpu-00-0"])
    await client.delete(Pod, "first", "default")
    budgets = lambda found: all((one.status or {}).get("disruptionsAllowed") == 1 for one in found)  # noqa: E731
    await until_objects(client, RawBudget, budgets)
    await client.create(ours(gpu_pod("train", (100, 0))), resource=Pod.RESOURCE)


def bound(pod: Pod) -> bool:
    return bool(pod.spec.node_name)


def moved(pods: list[Pod]) -> bool:
    """Return whether the waiting pod has GPU 0, and the pod that was there runs on GPU 1."""
    train = [pod for pod in pods if pod.metadata.name == "train" and bound(pod)]
    return bool(train) and on(pods, "serve") == ["GPU-gpu-00-1"]


async def test_the_command_moves_a_pod_of_a_deployment(plane: ControlPlane, tmp_path: Path) -> None:
    async with (
        Client.connect(plane.kubeconfig) as client,
        extending(client, plane.kubeconfig, free_port(), pod_scheduler=True),
        workloads(client) as kubelet,
    ):
        await fragments(client)
        await until_objects(
            client, Pod, lambda pods: any(pod.metadata.name == "train" and reasons(pod) for pod in pods)
        )
        for words, last in (("--dry-run", "✓ 1 move: make room for 1 pod"), ("-v", "✓ 1 move: make room for 1 pod")):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gpuplane", "defrag", words, "--kubeconfig", str(plane.kubeconfig)),
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONUTF8": "1"},
            )
            out, _ = await process.communicate()
            assert (process.returncode, out.decode().splitlines()[-1]) == (0, last), out.decode()
        pods = await until_objects(client, Pod, lambda pods: pods if moved(pods) else [])
        serve = next(pod for pod in pods if pod.metadata.labels.get("app") == "serve")
        assert names.MOVED_ANNOTATION in serve.metadata.annotations
        assert await verdict(client) == []
        assert not kubelet.failures
        await until_objects(client, Event, lambda events: any(event.reason == "Moved" for event in events))


async def test_a_pod_gets_room_by_itself(plane: ControlPlane) -> None:
    more = ("--defragment", "--move-after=0s")
    async with (
        Client.connect(plane.kubeconfig) as client,
        extending(client, plane.kubeconfig, free_port(), pod_scheduler=True, more=more),
        workloads(client),
    ):
        await fragments(client)
        await until_objects(client, Pod, moved)
        assert await verdict(client) == []
