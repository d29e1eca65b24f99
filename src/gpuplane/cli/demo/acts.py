"""What happens in the demo, act by act, against the API server only; what is measured is kept here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from importlib import resources
from typing import Any, Final, TypeVar

import msgspec
import yaml

from gpuplane import names
from gpuplane.api.core import Node, Pod
from gpuplane.api.gpunode import GPUNode, StageName, StageState
from gpuplane.cli.demo import shares
from gpuplane.cli.demo.following import watching
from gpuplane.cli.demo.story import Story
from gpuplane.cli.explain import read
from gpuplane.cli.explain_answer import Explanation, explain
from gpuplane.cli.install import apply
from gpuplane.cli.status import Follower
from gpuplane.cli.terminal import Terminal
from gpuplane.errors import GpuplaneError
from gpuplane.kube import Client, SystemClock
from gpuplane.operator.installation import installation
from gpuplane.simulator.cluster import ClusterHandle, ClusterSpec, up
from gpuplane.simulator.gpus import Faults

T = TypeVar("T")

SHARED: Final = "sim-2"
BROKEN: Final = "sim-4"
PATIENCE_SECONDS: Final = 60.0


class DemoFailed(GpuplaneError):
    """The story did not go as it should."""


class Acts:
    """The six acts, and what was measured in them. Close it with `aclose`."""

    def __init__(self, spec: ClusterSpec, story: Story, screen: Terminal) -> None:
        self._spec = spec
        self._screen = screen
        self._story = story
        self._opened: list[Client | Follower] = []
        self._follower: Follower | None = None
        self._watching: asyncio.Task[None] | None = None
        self._ready_at: dict[str, float] = {}
        self._pods_lost: set[str] = set()
        self.healthy = tuple(node.name for node in spec.nodes if node.name != BROKEN)
        self.bare_to_ready: dict[str, float] = {}
        self.restarts = 0
        self.vectoradd_node = ""
        self.vectoradd_verdict = ""
        self.vectoradd_seconds = 0.0
        self.shared: tuple[shares.Shared, ...] = ()
        self.waiting: Explanation | None = None
        self.broken_message = ""
        self.healed_seconds = 0.0
        self.disturbed = 0

    async def play(self) -> ClusterHandle:
        """All acts in order. Raises DemoFailed, saying which and why."""
        handle = await self._act("up", self._up())
        client = Client.connect(handle.kubeconfig, user_agent="gpuplane-demo")
        self._opened.append(client)
        Faults(handle.directory / "nodes" / BROKEN / "root" / names.SIMGPU_STATE).wrong_results(0)
        await self._act("prepare", self._prepare(client))
        await self._act("run", self._run(client))
        await self._act("share", self._share(client, handle))
        await self._act("wait", self._wait(client))
        await self._act("break", self._break(client, handle))
        return handle

    async def aclose(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for opened in reversed(self._opened):
            await opened.aclose()

    def measured(self) -> dict[str, Any]:
        """The figures, for JSON."""
        return {
            "bareToReadySeconds": self.bare_to_ready,
            "stageSeconds": {node.name: node.took for node in self._story.nodes},
            "operandRestarts": self.restarts,
            "vectorAdd": {
                "verdict": self.vectoradd_verdict,
                "node": self.vectoradd_node,
                "seconds": round(self.vectoradd_seconds, 2),
            },
            "shared": {"node": SHARED, "pods": msgspec.to_builtins(self.shared)},
            "waiting": msgspec.to_builtins(self.waiting),
            "broken": {
                "node": BROKEN,
                "message": self.broken_message,
                "healedSeconds": round(self.healed_seconds, 2),
                "disturbed": self.disturbed,
            },
        }

    async def _act(self, name: str, act: Awaitable[T]) -> T:
        step = self._story.begin(name)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                result = await act
        except TimeoutError:
            raise DemoFailed(
                f"{step.about}: not done after {PATIENCE_SECONDS:.0f}s",
                where=f"act {name}",
                cure="gpuplane status, and the logs in ~/.gpuplane/clusters/demo/logs",
            ) from None
        self._story.end(step)
        return result

    async def _up(self) -> ClusterHandle:
        handle = await up(self._spec)
        async with (
            Client.connect(handle.kubeconfig, user_agent="gpuplane-demo") as client,
            watching(client, Node) as nodes,
        ):
            await nodes.until(lambda: sum(map(is_ready, nodes.items())) == len(self._spec.nodes))
        return handle

    async def _prepare(self, client: Client) -> None:
        began = self._story.clock()
        for manifest in installation():
            await apply(client, manifest)
        follower = Follower(client)
        await follower.start()
        self._opened.append(follower)
        self._follower = follower
        self._watching = asyncio.create_task(self._watch(follower), name="demo's nodes")
        async with watching(client, GPUNode) as nodes:
            await nodes.until(lambda: self._healthy_are_ready(nodes.items(), began))
        pods = await client.list(Pod, names.OPERATOR_NAMESPACE)
        self.restarts = sum(status.restart_count for pod in pods for status in pod.status.container_statuses)

    def _healthy_are_ready(self, nodes: list[GPUNode], began: float) -> bool:
        for node in nodes:
            ready = node.status.stages.get(StageName.READY.value)
            if ready is not None and ready.state.holds:
                self.bare_to_ready.setdefault(node.metadata.name, round(self._story.clock() - began, 2))
        return set(self.healthy) <= set(self.bare_to_ready)

    async def _watch(self, follower: Follower) -> None:
        while True:
            self._story.nodes = follower.seen().nodes
            await follower.changed()

    async def _told(self, name: str) -> None:
        """Returns when the page shows a node as ready, so that the last picture does not lag behind the story."""
        while self._follower is not None and not any(n.name == name and n.ready for n in self._story.nodes):
            await self._follower.changed()
            self._story.nodes = self._follower.seen().nodes

    async def _run(self, client: Client) -> None:
        began = self._story.clock()
        text = resources.files(__package__).joinpath("cuda-vectoradd.yaml").read_text()
        pod = await client.create(yaml.safe_load(text), namespace="default")
        name = pod["metadata"]["name"]
        async with watching(client, Pod, "default", fields=f"metadata.name={name}") as pods:
            await pods.until(lambda: any(p.status.ended for p in pods.items()))
            self.vectoradd_node = pods.items()[0].spec.node_name
        log = (await client.request("GET", f"/api/v1/namespaces/default/pods/{name}/log")).decode()
        self._story.lines = [f"   {line}" for line in log.splitlines()]
        self.vectoradd_seconds = self._story.clock() - began
        if "Test PASSED" not in log:
            raise DemoFailed("the vectorAdd did not pass", where=f"pod/{name}", cure=log.strip()[-300:])
        self.vectoradd_verdict = "Test PASSED"

    async def _share(self, client: Client, handle: ClusterHandle) -> None:
        await shares.offer_parts(client, SHARED)
        await shares.start(client, SHARED)
        self.shared = await shares.measure(handle.directory / "nodes" / SHARED / "root")
        node = next(node for node in self._story.nodes if node.name == SHARED)
        memory = node.gpus[0].memory_mib / 1024
        self._story.lines += ["", *shares.picture(f"{SHARED}/0", memory, self.shared, self._screen)]

    async def _wait(self, client: Client) -> None:
        await client.create(shares.pod_of(shares.LATE, SHARED), namespace="default")
        name = shares.LATE.name
        async with watching(client, Pod, "default", fields=f"metadata.name={name}") as pods:
            await pods.until(lambda: any(map(is_unscheduled, pods.items())))
        pod, facts = await read(client, "default", name)
        self.waiting = explain(pod, facts, SystemClock().wall())

    async def _break(self, client: Client, handle: ClusterHandle) -> None:
        async with watching(client, GPUNode) as nodes:
            versions = {node.metadata.name: node.metadata.resource_version for node in nodes.items()}
            await nodes.until(lambda: bool(why_failed(nodes.get(BROKEN))))
            self.broken_message = why_failed(nodes.get(BROKEN))
            repaired = self._story.clock()
            Faults(handle.directory / "nodes" / BROKEN / "root" / names.SIMGPU_STATE).clear(0)
            annotations = {"metadata": {"annotations": {names.RETRY_ANNOTATION: "repaired"}}}
            await client.patch(GPUNode, BROKEN, annotations)
            await nodes.until(lambda: stage_holds(nodes.get(BROKEN), StageName.READY))
            self.healed_seconds = self._story.clock() - repaired
            await self._told(BROKEN)
            self.disturbed = sum(
                node.metadata.name != BROKEN and versions[node.metadata.name] != node.metadata.resource_version
                for node in nodes.items()
            )


def is_ready(node: Node) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)


def is_unscheduled(pod: Pod) -> bool:
    return any(condition.type == "PodScheduled" and condition.status == "False" for condition in pod.status.conditions)


def why_failed(node: GPUNode | None) -> str:
    """`cuda: GPU 0 fails ...` of the first stage that failed, else empty."""
    stages = node.status.stages if node is not None else {}
    failed = (f"{n}: {s.message or s.reason}" for n, s in stages.items() if s.state is StageState.FAILED)
    return next(failed, "")


def stage_holds(node: GPUNode | None, name: StageName) -> bool:
    stage = node.status.stages.get(name.value) if node is not None else None
    return stage is not None and stage.state.holds
