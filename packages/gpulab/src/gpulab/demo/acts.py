"""The acts of the demo, against the API server only, with their measurements."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from gpulab.clusters import up
from gpulab.demo import shares
from gpulab.demo.reasons import FULL_BYTES, Reason, ask, disk_reasons
from gpulab.demo.shares import LATE
from gpulab.demo.story import Story
from gpulab.demo.verdict import PASSED, Break, Measured, Promise, Sharing, VectorAddVerdict, is_held_to_its_part, judge
from gpulab.distribution import GPUPLANE
from gpulab.up import MACHINE_ROOT, directory_of, make_images
from gpulab.watching import node_is_ready, watching
from gpuplane import names
from gpuplane.api.gpunode import GPUNode, StageName, StageState
from gpuplane.cli.install_objects import apply
from gpuplane.cli.status_reading import Follower
from gpuplane.cli.terminal import Console
from gpuplane.explain.answer import explain
from gpuplane.explain.reading import read
from gpuplane.operator.installation import installation
from kubekit.api.core import Node, Pod
from kubekit.errors import KubekitError
from kubekit.kube import Client, SystemClock
from simgpu import STATE_PATH, Faults
from tinykube.cluster import ClusterHandle, ClusterSpec

T = TypeVar("T")

SHARED: Final = "sim-2"
BROKEN: Final = "sim-4"
ASKING_SECONDS: Final = 10.0
# A share that is off its part is measured again: a machine that was asleep or very busy for a moment is no verdict.
MEASUREMENTS: Final = 3


class DemoFailed(KubekitError):
    """An act did not get done. `findings` are further reasons, one a line."""

    def __init__(self, what: str, *, where: str = "", cure: str = "", findings: tuple[str, ...] = ()) -> None:
        super().__init__(what, where=where, cure=cure)
        self.findings = findings


class Acts:
    """The six acts, and what was measured in them. Close it with `aclose`."""

    def __init__(self, spec: ClusterSpec, story: Story, screen: Console, *, patience_seconds: float) -> None:
        self._spec = spec
        self._screen = screen
        self._story = story
        self._patience = patience_seconds
        self._opened: list[Client | Follower] = []
        self._client: Client | None = None
        self._follower: Follower | None = None
        self._watching: asyncio.Task[None] | None = None
        self._way = shares.pod_way(spec)
        self.measured = Measured(healthy=tuple(node.name for node in spec.nodes if node.name != BROKEN))

    async def play(self) -> ClusterHandle:
        """All acts in order. Raises DemoFailed, saying which and why."""
        handle = await self._act("up", self._up())
        assert self._client is not None
        client = self._client
        with broken_machine(handle) as faults:
            faults.wrong_results(0)
        await self._act("prepare", self._prepare(client))
        await self._act("run", self._run(client))
        await self._act("share", self._share(client, handle))
        await self._act("wait", self._wait(client))
        await self._act("break", self._break(client, handle))
        return handle

    def promises(self) -> tuple[Promise, ...]:
        """Compare what was measured with what was promised."""
        return judge(self.measured)

    def figures(self) -> dict[str, Any]:
        """Return what was measured, for `-o json`."""
        figures: dict[str, Any] = msgspec.to_builtins(self.measured)
        return figures

    async def aclose(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for opened in reversed(self._opened):
            await opened.aclose()

    async def reasons(self) -> tuple[Reason, ...]:
        """Return the cluster's reasons for everything that is not as it should be; empty when it does not answer."""
        home = GPUPLANE.home()
        full = disk_reasons(home, shutil.disk_usage(home).free, FULL_BYTES)
        if full or self._client is None:
            return full
        # The machine with the fault and the pod without room are in trouble on purpose.
        expected = {LATE.name} | ({BROKEN} if not self._story.has_begun("break") else set())
        try:
            async with asyncio.timeout(ASKING_SECONDS):
                return await ask(self._client, expected=expected)
        except (KubekitError, TimeoutError):
            return ()

    def _measured(self, **figures: Any) -> None:
        self.measured = msgspec.structs.replace(self.measured, **figures)

    async def _act(self, name: str, act: Awaitable[T]) -> T:
        step = self._story.begin(name)
        try:
            async with asyncio.timeout(self._patience):
                result = await act
        except TimeoutError:
            self._story.fail(step)
            raise await self._not_done(step.about) from None
        except KubekitError:
            self._story.fail(step)
            raise
        self._story.end(step)
        return result

    async def _not_done(self, about: str) -> DemoFailed:
        what = f"{about}: not done after {self._patience:.0f}s"
        found = await self.reasons()
        if not found:
            return DemoFailed(what, where=str(self._spec.name), cure="gpuplane status, kubectl get pods,events -A")
        first, *others = found
        return DemoFailed(
            f"{what}: {first.what}",
            where=first.where,
            cure=first.cure,
            findings=tuple(f"{reason.where}: {reason.what}" for reason in others),
        )

    async def _up(self) -> ClusterHandle:
        handle = await up(self._spec, timeout=self._patience)
        if self._spec.containerd:
            await make_images(handle)
        self._client = Client.connect(handle.kubeconfig, user_agent="gpuplane-demo")
        self._opened.append(self._client)
        async with watching(self._client, Node) as nodes:
            await nodes.until(lambda: sum(map(node_is_ready, nodes.items())) == len(self._spec.nodes))
        return handle

    async def _prepare(self, client: Client) -> None:
        began = self._story.clock()
        settings = (MACHINE_ROOT,) if self._spec.containerd else ()
        for manifest in installation(admission="", pod_scheduler=bool(self._way.scheduler), settings=settings):
            if manifest["kind"] == "Deployment":
                manifest["spec"]["replicas"] = 1  # a second extender would only take time from the machines
            await apply(client, manifest)
        await self._follow(client)
        async with watching(client, GPUNode) as nodes:
            await nodes.until(lambda: self._healthy_are_ready(nodes.items(), began))
        pods = await client.list(Pod, names.OPERATOR_NAMESPACE)
        restarts = sum(status.restart_count for pod in pods for status in pod.status.container_statuses)
        self._measured(operand_restarts=restarts)

    def _healthy_are_ready(self, nodes: list[GPUNode], began: float) -> bool:
        took = round(self._story.clock() - began, 2)
        ready = {node.metadata.name: took for node in nodes if stage_holds(node, StageName.READY)}
        self._measured(bare_to_ready_seconds=ready | self.measured.bare_to_ready_seconds)
        return set(self.measured.healthy) <= set(self.measured.bare_to_ready_seconds)

    async def _follow(self, client: Client) -> None:
        """Show the GPU nodes from now on."""
        follower = Follower(client)
        await follower.start()
        self._opened.append(follower)
        self._follower = follower
        self._watching = asyncio.create_task(self._watch(follower), name="demo's nodes")

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
            node = pods.items()[0].spec.node_name
        log = (await client.request("GET", f"/api/v1/namespaces/default/pods/{name}/log")).decode()
        self._story.lines = [f"   {line}" for line in log.splitlines()]
        verdict = PASSED if PASSED in log else (log.strip().splitlines() or ["no output"])[-1]
        self._measured(vector_add=VectorAddVerdict(verdict, node, round(self._story.clock() - began, 2)))

    async def _share(self, client: Client, handle: ClusterHandle) -> None:
        await shares.offer_parts(client, SHARED)
        await shares.start(client, SHARED, self._way)
        for _ in range(MEASUREMENTS):
            pods = await shares.measure(*machine_place(handle, SHARED))
            self._measured(shared=Sharing(SHARED, pods))
            if all(map(is_held_to_its_part, pods)):
                break
        node = next(node for node in self._story.nodes if node.name == SHARED)
        memory = node.gpus[0].memory_mib / 1024
        self._story.lines += ["", *shares.picture(f"{SHARED}/0", memory, pods, self._screen)]

    async def _wait(self, client: Client) -> None:
        await client.create(shares.pod_of(shares.LATE, SHARED, self._way), namespace="default")
        name = shares.LATE.name
        async with watching(client, Pod, "default", fields=f"metadata.name={name}") as pods:
            await pods.until(lambda: any(map(is_unscheduled, pods.items())))
        pod, facts = await read(client, "default", name)
        self._measured(waiting=explain(pod, facts, SystemClock().wall()))

    async def _break(self, client: Client, handle: ClusterHandle) -> None:
        async with watching(client, GPUNode) as nodes:
            versions = {node.metadata.name: node.metadata.resource_version for node in nodes.items()}
            await nodes.until(lambda: bool(why_failed(nodes.get(BROKEN))))
            message = why_failed(nodes.get(BROKEN))
            self._measured(broken=Break(BROKEN, message))
            repaired = self._story.clock()
            with broken_machine(handle) as faults:
                faults.clear(0)
            annotations = {"metadata": {"annotations": {names.RETRY_ANNOTATION: "repaired"}}}
            await client.patch(GPUNode, BROKEN, annotations)
            await nodes.until(lambda: stage_holds(nodes.get(BROKEN), StageName.READY))
            healed = round(self._story.clock() - repaired, 2)
            await self._told(BROKEN)
            others = (node.metadata for node in nodes.items() if node.metadata.name != BROKEN)
            disturbed = tuple(sorted(meta.name for meta in others if versions[meta.name] != meta.resource_version))
            self._measured(broken=Break(BROKEN, message, healed, disturbed))


def broken_machine(handle: ClusterHandle) -> Faults:
    return Faults(handle.directory / "nodes" / BROKEN / "root" / STATE_PATH)


def is_unscheduled(pod: Pod) -> bool:
    return any(condition.type == "PodScheduled" and condition.status == "False" for condition in pod.status.conditions)


def machine_place(handle: ClusterHandle, node: str) -> tuple[Path, tuple[str, ...]]:
    """Return the root of a node's machine as its operands see it, and the command that enters its namespaces."""
    if not handle.spec.containerd:
        return handle.directory / "nodes" / node / "root", ()
    from gpulab.kubernetes.machine import machine_of

    machine = machine_of(directory_of(handle), node)
    return Path(machine.host_root), machine.enter()


def why_failed(node: GPUNode | None) -> str:
    """`cuda: GPU 0 fails ...` of the first stage that failed, else empty."""
    stages = node.status.stages if node is not None else {}
    failed = (f"{n}: {s.message or s.reason}" for n, s in stages.items() if s.state is StageState.FAILED)
    return next(failed, "")


def stage_holds(node: GPUNode | None, name: StageName) -> bool:
    stage = node.status.stages.get(name.value) if node is not None else None
    return stage is not None and stage.state.holds
