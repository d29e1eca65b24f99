"""One embedded cluster for the whole folder: three different machines, everything on them real, as a user has it.

Every test may rely on this: `story.ready()` brings the cluster to "installed and all nodes ready" (at once when it is
so), and `world.bare` records the objects and files of the nodes before the first installation.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.api.gpunode import GPUNode, GPUNodeStatus, StageName
from kubekit.api.core import Node, Pod
from kubekit.kube import Client, NotFound
from simgpu import STATE_PATH, Faults
from tests.support import find_kubectl
from tests.support.realkube.files import files
from tests.support.until import until, until_objects
from tinykube.kubelet.containers.records import ContainerRecord, is_running

GPUPLANE = (sys.executable, "-m", "gpuplane")
NAMESPACE = names.OPERATOR_NAMESPACE
PATIENCE_SECONDS = 60.0
NODES = ("sim-1", "sim-2", "sim-3")

# Paths that may stay on a node: logs, the kubelet's own state, and the simulated hardware itself.
KEPT = ("var/log/", "var/lib/kubelet/", "var/lib/simgpu/state", "dev/nvidiactl")


# Settings of pods in every installation. test_policy.py needs them: to replace the pods of all operands takes long.
OF_PODS = (
    "daemonsets.labels.team=ml",
    "daemonsets.annotations.owner=ops",
    'daemonsets.tolerations=[{"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}]',
    'dcgmExporter.env=[{"name": "DCGM_EXPORTER_INTERVAL", "value": "5000"}]',
    "dcgmExporter.resources.limits.memory=200Mi",
)


class World:
    """The cluster as its owner has it: command line, kubeconfig, the nodes' roots."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {**os.environ, "GPUPLANE_HOME": str(home), "HOME": str(home), "NO_COLOR": "1"}
        described = json.loads(self.gpuplane("up", "--detach", "--persist", "-q", "-o", "json"))
        self.kubeconfig = Path(described["kubeconfig"])
        self.directory = Path(described["directory"])
        self.environment["KUBECONFIG"] = str(self.kubeconfig)
        self.bare: dict[str, dict[str, str]] = {}
        self.bare_nodes: dict[str, tuple[dict[str, str], list[str]]] = {}
        self.first_pods: list[Pod] = []

    def run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            arguments, input=stdin, env=self.environment, capture_output=True, text=True, timeout=90, check=False
        )

    def gpuplane(self, *arguments: str, code: int = 0) -> str:
        """Return the output of a command; `code` is the expected exit code."""
        done = self.run(*GPUPLANE, *arguments)
        assert done.returncode == code, f"gpuplane {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def install(self, *words: str) -> None:
        """Install, always with the same settings: a change of them replaces the pods of all operands."""
        self.gpuplane("install", "-q", *(word for setting in OF_PODS for word in ("--set", setting)), *words)

    def root(self, node: str) -> Path:
        return self.directory / "nodes" / node / "root"

    def files(self, node: str) -> dict[str, str]:
        return files(self.root(node), KEPT)

    def faults(self, node: str) -> Faults:
        return Faults(self.root(node) / STATE_PATH)

    def labels_and_taints(self, node: Node) -> tuple[dict[str, str], list[str]]:
        return dict(node.metadata.labels), [f"{taint.key}={taint.value}:{taint.effect}" for taint in node.spec.taints]

    def pid(self, process: str) -> int:
        """Of one of the cluster's own processes."""
        pid: int = json.loads((self.directory / "run" / f"{process}.json").read_text())["pid"]
        return pid

    async def kill(self, process: str) -> None:
        """kill -9 of one of the cluster's own processes; returns when another one runs in its place."""
        before = self.pid(process)
        os.kill(before, signal.SIGKILL)
        await until(lambda: self.pid(process) != before, seconds=PATIENCE_SECONDS)

    def kill_containers(self, node: str, *prefixes: str) -> set[str]:
        """kill -9 of the main processes of the pods whose names begin so; the pods' names."""
        killed = set()
        for path in (self.directory / "nodes" / node / "containers").glob("*/record.json"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended, or its record is gone
                record = msgspec.json.decode(path.read_bytes(), type=ContainerRecord)
                if record.pod.startswith(prefixes) and record.pid and is_running(record):
                    os.kill(record.pid, signal.SIGKILL)
                    killed.add(record.pod)
        return killed


class Story:
    """A world and a client in the test's own loop."""

    def __init__(self, world: World, client: Client) -> None:
        self.world = world
        self.client = client
        self._repairs = 0

    async def until(
        self, kind: Any, holds: Callable[[list[Any]], Any], *, namespace: str | None = None, fields: str = ""
    ) -> Any:
        """Return the result of `holds(objects)` once it is true; it is called after each change."""
        return await until_objects(
            self.client, kind, holds, namespace=namespace, fields=fields, seconds=PATIENCE_SECONDS, describe=_seen
        )

    async def node(self, name: str, holds: Callable[[GPUNode], Any]) -> GPUNode:
        """The GPUNode once `holds(it)`."""
        try:
            return await self.until(
                GPUNode,
                lambda found: next((node for node in found if node.metadata.name == name and holds(node)), None),
                fields=f"metadata.name={name}",
            )
        except AssertionError as failure:
            raise AssertionError(f"{failure}\n{await self._why(name)}") from None

    async def _why(self, name: str) -> str:
        """Return what was done about a node: its upgrade, our pods on it, and the end of the operator's log."""
        node = await self.client.get(Node, name)
        pods = await self.client.list(Pod, NAMESPACE)
        lines = [_seen(node), f"  {node.metadata.resource_version} unschedulable={node.spec.unschedulable}"]
        lines += [
            f"  {pod.metadata.name} {pod.status.phase} created={pod.metadata.creation_timestamp} "
            f"ends={pod.metadata.deletion_timestamp}"
            for pod in pods
            if pod.spec.node_name == name
        ]
        for pod in pods:
            if pod.metadata.name.startswith("gpu-operator-"):
                lines += (await self.log(pod.metadata.name, NAMESPACE)).splitlines()[-40:]
        return "\n".join(lines)

    async def ready(self) -> list[GPUNode]:
        """The GPUNodes once the cluster is installed and all three are ready."""
        try:
            await self.client.get(GPUNode, NODES[0])
        except NotFound:
            self.world.install()
        # A test that failed half way may have left nodes out.
        for node in await self.client.list(Node):
            if names.DEPLOY_OPERANDS_LABEL in node.metadata.labels:
                await self.opt_in(node.metadata.name)
        return await self.until(GPUNode, lambda found: len(found) == len(NODES) and all(map(is_ready, found)) and found)

    async def states(self, *, without: str = "") -> dict[str, GPUNodeStatus]:
        """Return the state of each node except `without`, less the fields that follow the pods some seconds later: the
        free GPUs, and their holders.
        """

        def of(node: GPUNode) -> GPUNodeStatus:
            summary = msgspec.structs.replace(node.status.summary, free="")
            return msgspec.structs.replace(node.status, summary=summary, held={})

        nodes = await self.client.list(GPUNode)
        return {node.metadata.name: of(node) for node in nodes if node.metadata.name != without}

    async def opt_out(self, *nodes: str) -> None:
        """Takes nodes out of our hands, and returns when they are as they were before."""
        for node in nodes:
            await self.client.patch(Node, node, {"metadata": {"labels": {names.DEPLOY_OPERANDS_LABEL: "false"}}})
        await self.until(GPUNode, lambda found: not {node.metadata.name for node in found} & set(nodes))

    async def opt_in(self, *nodes: str) -> None:
        for node in nodes:
            await self.client.patch(Node, node, {"metadata": {"labels": {names.DEPLOY_OPERANDS_LABEL: None}}})

    async def validate_again(self, node: str) -> None:
        """Start a validation at once, as an administrator does after a repair."""
        self._repairs += 1
        mark = {"metadata": {"annotations": {"gpuplane.dev/retry": str(self._repairs)}}}
        await self.client.patch(GPUNode, node, mark)

    async def run_pod(self, manifest: dict[str, Any], namespace: str = "default") -> Pod:
        """Creates a pod and returns it at its end."""
        made = await self.client.create(manifest, namespace=namespace)
        return await self.phase(made["metadata"]["name"], "Succeeded", "Failed", namespace=namespace)

    async def phase(self, pod: str, *phases: str, namespace: str = "default") -> Pod:
        return await self.until(
            Pod,
            lambda found: next((pod for pod in found if pod.status.phase in phases), None),
            namespace=namespace,
            fields=f"metadata.name={pod}",
        )

    async def log(self, pod: str, namespace: str = "default") -> str:
        return (await self.client.request("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}/log")).decode()

    async def operand_pods(self, node: str = "") -> list[Pod]:
        pods = await self.client.list(Pod, NAMESPACE, fields=f"spec.nodeName={node}" if node else "")
        return [pod for pod in pods if not pod.metadata.deletion_timestamp]


def _seen(obj: Any) -> str:
    if isinstance(obj, GPUNode):
        stages = {name: stage.state.value for name, stage in obj.status.stages.items()}
        return f"  {obj.metadata.name}: {obj.status.summary.stage} {obj.status.summary.message} {stages}"
    if isinstance(obj, Node):
        marks = {**obj.metadata.labels, **obj.metadata.annotations}
        return f"  {obj.metadata.name}: { {key: value for key, value in marks.items() if 'upgrade' in key} }"
    status = getattr(obj, "status", None)
    return f"  {obj.metadata.name}: {getattr(status, 'phase', '')} {getattr(status, 'reason', '')}"


def is_ready(node: GPUNode) -> bool:
    stage = node.status.stages.get(StageName.READY.value)
    return stage is not None and stage.state.holds


def takes_pods(node: Node) -> bool:
    """Return whether a node is ready, and the taint of its beginning is gone."""
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)
    return ready and not any(taint.key == "node.kubernetes.io/not-ready" for taint in node.spec.taints)


async def _prepare(world: World) -> None:
    async with Client.connect(world.kubeconfig) as client:
        story = Story(world, client)
        nodes = await story.until(Node, lambda found: len(list(filter(takes_pods, found))) == len(NODES) and found)
        world.bare_nodes = {node.metadata.name: world.labels_and_taints(node) for node in nodes}
        world.bare = {name: world.files(name) for name in NODES}
        await story.ready()
        world.first_pods = await story.operand_pods()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # Unix sockets lie below it, whose paths are short.
    home = tmp_path_factory.mktemp("s")
    world = World(home)
    try:
        asyncio.run(_prepare(world))
        yield world
    finally:
        world.gpuplane("down", "-q")


@pytest.fixture
async def story(world: World) -> AsyncIterator[Story]:
    async with Client.connect(world.kubeconfig) as client:
        yield Story(world, client)


@pytest.fixture(scope="session")
def kubectl(world: World) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs kubectl; the exit status is for the test to judge."""
    try:
        binary = shutil.which("kubectl") or str(find_kubectl.find())
    except find_kubectl.NoKubectl as problem:
        pytest.skip(str(problem))
    return lambda *arguments, stdin=None: world.run(binary, *arguments, stdin=stdin)


@pytest.fixture
async def cleanup() -> AsyncIterator[Callable[[Awaitable[Any]], None]]:
    """Takes what to await after the test, whatever happened in it; last in, first out."""
    later: list[Awaitable[Any]] = []
    yield later.append
    for work in reversed(later):
        await work
