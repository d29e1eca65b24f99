"""A cluster for the manifests of other projects, whole and as printed: one machine with eight GPUs and every image.

Its control plane reaches pods and Services, kube-proxy forwards to them, and containerd pulls from a registry of the
test. A test begins with `installed` or with `bare`: each leads to the same state, whatever an earlier test has left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from gpulab.kubernetes import images
from gpulab.kubernetes.control_plane import ControlPlane
from gpulab.kubernetes.node import KubernetesNode, wait_ready
from gpulab.kubernetes.unavailable import Unavailable
from gpulab.watching import node_is_ready
from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from kubekit.api.core import Namespace, Node, Pod
from kubekit.kube import Client
from tests.support import find_kubectl
from tests.support.realkube import files, workloads
from tests.support.realkube.inventory import Objects, difference, inventory
from tests.support.realkube.life import COMMAND_S, until_as
from tests.support.realkube.registry import Registry
from tests.support.realkube.watching import gpu_node_is_ready, log, until_objects

SHARED: Final = Path(__file__).parents[4] / "shared" / "manifests"
WITH_MANIFESTS: Final = [
    pytest.mark.deadline(900),  # the first test of all makes the cluster
    pytest.mark.skipif(not SHARED.exists(), reason="no shared manifests beside this checkout"),
]
HARDWARE: Final = "k80-boards-ubuntu22"
GPUS: Final = 8
NAMESPACE: Final = names.OPERATOR_NAMESPACE
_OPERATOR: Final = ("gpu-operator", "gpuplane-admission", "gpuplane-scheduler")


class StoryCluster:
    """The cluster as its administrator has it. `before` and `files` are what it was before anything was installed."""

    def __init__(self, node: KubernetesNode, registry: Registry, folder: Path) -> None:
        self.node = node
        self.plane = node.plane
        self.registry = registry
        self.folder = folder
        self.before: Objects = {}
        self.files: files.Files = {}
        self._applied: list[str] = []
        self.environment = {**os.environ, "KUBECONFIG": str(self.plane.kubeconfig), "NO_COLOR": "1"}

    # -- what its administrator calls ------------------------------------------------------------------------------
    def run(self, *arguments: str, code: int = 0) -> str:
        """Return the output of a gpuplane command, both streams; `code` is the expected exit code."""
        done = subprocess.run(
            arguments, env=self.environment, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
        assert done.returncode == code, f"{' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def gpuplane(self, *arguments: str, code: int = 0) -> str:
        return self.run(sys.executable, "-m", "gpuplane", *arguments, code=code)

    def kubectl(self, *arguments: str, code: int = 0) -> str:
        return self.run(str(find_kubectl.find()), *arguments, code=code)

    def apply(self, *manifests: str) -> str:
        """`kubectl apply` of files below `SHARED`, as they are, until `clean`."""
        self._applied += manifests
        return self.kubectl("apply", *(f"--filename={SHARED / name}" for name in manifests))

    def clean(self) -> None:
        """Takes away what was applied, and returns when its pods are gone: at once, they have nothing to finish."""
        if self._applied:
            names_in = [f"--filename={SHARED / name}" for name in self._applied]
            self.kubectl("delete", "--ignore-not-found", "--now", *names_in)
            self._applied.clear()

    # -- states ----------------------------------------------------------------------------------------------------
    async def installed(self, client: Client) -> None:
        """`gpuplane install`, and all that it brings is ready."""
        if not await self._has_namespace(client):
            await asyncio.to_thread(self.gpuplane, "install", "-q", "--set", f"hostPaths.rootFS={self.node.host_root}")
        await self.ready(client)

    async def ready(self, client: Client) -> None:
        await until_objects(client, GPUNode, lambda found: any(map(gpu_node_is_ready, found)))
        await self.offers(client, GPUS)
        for name in _OPERATOR:
            waits = ("wait", "--for=condition=Available", "--timeout=240s", f"deployment/{name}")
            await asyncio.to_thread(self.kubectl, "-n", NAMESPACE, *waits)

    async def offers(self, client: Client, count: int, resource: str = names.GPU_RESOURCE) -> None:
        """Returns when pods may have so many of a resource on the node, which is Ready."""

        def offered(nodes: list[Node]) -> list[Node]:
            wanted = str(count)
            return [n for n in nodes if n.status.allocatable.get(resource) == wanted and node_is_ready(n)]

        await until_objects(client, Node, offered)

    async def bare(self, client: Client) -> None:
        """Nothing is installed: no object, label or file that was not there before."""
        if await self._has_namespace(client):
            await asyncio.to_thread(self.gpuplane, "uninstall", "-q")
        assert difference(self.before, await until_as(client, self.before)) == ""
        assert files.difference(self.files, files.of_machine(self.node)) == {}

    async def look(self) -> None:
        """Put on record what there is."""
        async with Client.connect(self.plane.kubeconfig) as client:
            self.before = await inventory(client)
        self.files = files.of_machine(self.node)

    async def _has_namespace(self, client: Client) -> bool:
        return NAMESPACE in {found.metadata.name for found in await client.list(Namespace)}

    # -- pods ------------------------------------------------------------------------------------------------------
    async def of_label(self, client: Client, label: str, *, namespace: str = "default", ended: bool = False) -> Pod:
        """A pod of this label that is ready, or whose container has `ended`."""

        def is_there(pod: Pod) -> bool:
            return (has_ended if ended else is_ready)(pod) and not pod.metadata.deletion_timestamp

        found: Pod = await until_objects(
            client, Pod, lambda pods: next(filter(is_there, pods), None), namespace=namespace, labels=label
        )
        return found

    async def named(self, client: Client, *pods: str, namespace: str = "default") -> list[Pod]:
        """The pods of these names, once all are ready."""

        def all_ready(found: list[Pod]) -> list[Pod] | None:
            there = {pod.metadata.name: pod for pod in found if is_ready(pod)}
            return [there[name] for name in pods] if set(pods) <= there.keys() else None

        ready: list[Pod] = await until_objects(client, Pod, all_ready, namespace=namespace)
        return ready

    async def first_log(self, client: Client, label: str) -> str:
        """Return the log of a Deployment's pod after its container has ended with 0."""
        pod = await self.of_label(client, label, ended=True)
        return await log(client, pod.metadata.name)


def is_ready(pod: Pod) -> bool:
    statuses = pod.status.container_statuses
    return bool(statuses) and all(status.ready for status in statuses)


def has_ended(pod: Pod) -> bool:
    return any(
        ended.exit_code == 0
        for status in pod.status.container_statuses
        for state in (status.state, status.last_state)
        if (ended := state.terminated) is not None
    )


@contextlib.contextmanager
def story_cluster(folder: Path) -> Iterator[StoryCluster]:
    """The cluster, with nothing installed. Raises Unavailable where this machine cannot have one."""
    try:
        find_kubectl.find()
    except find_kubectl.NoKubectl as problem:
        raise Unavailable(str(problem), where="PATH") from problem
    plane = ControlPlane(folder / "plane", fake_nodes=False)
    node = KubernetesNode(plane, hardware=HARDWARE)
    try:
        plane.start(print)
        node.start(print)
        with Registry(node.registry).serving() as registry:
            workloads.offer(registry, folder / "images")
            images.make(folder / "machine-images", print)
            images.load(node, folder / "machine-images")
            wait_ready(node)
            cluster = StoryCluster(node, registry, folder)
            asyncio.run(cluster.look())
            yield cluster
    finally:
        node.stop()
        plane.stop()


@contextlib.asynccontextmanager
async def asked_extender(cluster: StoryCluster, url: str) -> AsyncIterator[None]:
    """While in the context kube-scheduler asks the extender at `url`, by the configuration that gpuplane prints."""
    config = cluster.folder / "kube-scheduler.yaml"
    config.write_text(cluster.gpuplane("run", "scheduler", "--print-config", "kube", "--url", url))

    def restart(chosen: Path | None) -> None:
        cluster.plane.kill("kube-scheduler")
        cluster.plane.scheduler_config = chosen
        cluster.plane.start_part("kube-scheduler")

    await asyncio.to_thread(restart, config)
    try:
        yield
    finally:
        await asyncio.to_thread(restart, None)
