"""A cluster for the autoscaler in one process and virtual time: registry, cloud, kubelets and scheduler are played.

Played is the world around the autoscaler: an instance boots and joins as a node, pods are found unschedulable or bound,
evicted pods go. The autoscaler itself is production code.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from gpuplane.api.crds import crds
from gpuplane.api.karpenter_crds import karpenter_crds
from gpuplane.autoscaler.catalogue import InstanceType, aws_catalogue
from gpuplane.autoscaler.options import admits_pod
from gpuplane.autoscaler.overhead import allocatable
from gpuplane.autoscaler.process import AutoscalerProcess
from gpuplane.autoscaler.providers.provider import CloudInstance, LaunchRequest
from gpuplane.autoscaler.quantities import as_quantities
from gpuplane.autoscaler.settings import AutoscalerSettings
from kubekit.scheduling import filters
from kubekit.scheduling.podinfo import compile_node, compile_pod
from tests.support.fake_cloud import FakeCloud
from tests.support.node_taints import follow_conditions
from tests.support.registry_client import RegistryClient
from tests.support.virtual_time import VirtualClock, settle
from tinykube.apiserver.extensions import install
from tinykube.apiserver.registry import Registry
from tinykube.apiserver.subresources import bind
from tinykube.apiserver.writes import WriteOptions

NOW = 1_795_000_000.0
CLAIMS, PROVISIONERS = ("karpenter.sh", "nodeclaims"), ("karpenter.sh", "provisioners")
POOLS = ("karpenter.sh", "nodepools")
TYPES: dict[str, InstanceType] = {machine.name: machine for machine in aws_catalogue()}
FOUR = ("g4dn.xlarge", "g4dn.2xlarge", "g4dn.4xlarge", "g4dn.12xlarge")


class SkewedClock:
    """The clock of the autoscaler's machine: its time of day may be wrong by `skew` seconds."""

    def __init__(self, clock: VirtualClock) -> None:
        self.skew = 0.0
        self.now, self.call_later, self.sleep = clock.now, clock.call_later, clock.sleep

    def wall(self) -> str:
        return datetime.datetime.fromtimestamp(self.now() + self.skew, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class AutoscalerWorld:
    """`offered` is what a device plugin makes of a node's GPUs; `joins` says whether an instance ever joins."""

    def __init__(self, machines: Sequence[InstanceType] = tuple(TYPES.values()), now: float = NOW) -> None:
        self.clock = VirtualClock(now)
        self.registry = Registry(clock=self.clock.now)
        install(self.registry, clock=self.clock.now)
        self.cloud = FakeCloud(self.clock, machines, launching=self._boot, ending=self._end)
        self.settings = AutoscalerSettings("demo")
        self.machine = SkewedClock(self.clock)
        self.boot_seconds = 30.0
        self.joins: Callable[[CloudInstance], bool] = lambda instance: True
        self.offered: Callable[[CloudInstance], dict[str, str]] = lambda instance: {
            "nvidia.com/gpu": str(TYPES[instance.machine].gpus)
        }
        self._numbers: dict[str, int] = {}
        self._owned: dict[str, dict[str, Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def furnish(self) -> None:
        """Make the kinds of the cluster."""
        for crd in (*crds(), *karpenter_crds()):
            await self.registry.create("customresourcedefinitions", None, crd)
        await self.registry.create("namespaces", None, {"metadata": {"name": "gpu-operator"}})

    # -- objects ---------------------------------------------------------------------------------------------------

    async def add_provisioner(self, name: str, **spec: Any) -> None:
        labels = spec.pop("labels", {})
        requirements = spec.pop(
            "requirements", [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(FOUR)}]
        )
        body = {
            "apiVersion": "karpenter.sh/v1alpha5",
            "kind": "Provisioner",
            "metadata": {"name": name},
            "spec": {
                "labels": labels,
                "requirements": requirements,
                "provider": {"launchTemplate": "gpu", "subnetSelector": {"a": "b"}},
                **spec,
            },
        }
        await self.registry.create(PROVISIONERS, None, body)

    async def add_pods(self, count: int, gpus: int = 1, *, cpu: str = "100m", disk: str = "", **spec: Any) -> list[str]:
        """Add pods that a scheduler has found unschedulable; returns their names."""
        names = []
        for _ in range(count):
            number = self._numbers["pod"] = self._numbers.get("pod", 0) + 1
            name = f"p-{number}"
            names.append(name)
            self._owned[name] = {"gpus": gpus, "cpu": cpu, "disk": disk, **spec}
            resources: dict[str, Any] = {"cpu": cpu} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
            resources |= {"ephemeral-storage": disk} if disk else {}
            container = {"name": "main", "image": "i", "resources": {"requests": resources, "limits": resources}}
            body = {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
            await self.registry.create("pods", "default", body)
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            status = {"phase": "Pending", "conditions": [condition]}
            await self.registry.patch("pods", "default", name, {"status": status}, "merge", subresource="status")
        return names

    def claims(self) -> list[dict[str, Any]]:
        return self.registry.list(CLAIMS)

    def nodes(self) -> list[dict[str, Any]]:
        return self.registry.list("nodes")

    def bound(self) -> dict[str, str]:
        """Return pod -> node."""
        pods = self.registry.list("pods", "default")
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}

    def events(self, reason: str) -> list[str]:
        return [event["message"] for event in self.registry.list("events") if event["reason"] == reason]

    # -- playing ---------------------------------------------------------------------------------------------------

    def _boot(self, instance: CloudInstance, request: LaunchRequest) -> None:
        if self.joins(instance):
            self.clock.call_later(self.boot_seconds, lambda: self._later(self.join(instance, request)))

    def _end(self, instance: CloudInstance) -> None:
        self._later(self._leave(instance))

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def join(self, instance: CloudInstance, request: LaunchRequest) -> None:
        """A kubelet registers its node, and the device plugin reports its GPUs."""
        if instance.provider_id not in {one.provider_id for one in self.cloud.running()}:
            return
        name = instance.provider_id.rpartition("/")[2]
        offers = as_quantities(allocatable(TYPES[instance.machine])) | self.offered(instance)
        taints = [{"key": key, "value": value, "effect": effect} for key, value, effect in request.taints]
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
        body = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"providerID": instance.provider_id, "taints": taints},
        }
        await self.registry.create("nodes", None, body)
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": self.registry.now()}
        capacity = offers | {"cpu": str(TYPES[instance.machine].vcpu)}
        status = {"conditions": [ready], "capacity": capacity, "allocatable": offers}
        await self.registry.patch("nodes", None, name, {"status": status}, "merge", subresource="status")
        await follow_conditions(self.registry, name)

    async def _leave(self, instance: CloudInstance) -> None:
        name = instance.provider_id.rpartition("/")[2]
        if self.registry.get("nodes", None, name) is not None:
            status = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
            await self.registry.patch("nodes", None, name, {"status": status}, "merge", subresource="status")

    async def schedule(self) -> None:
        """A scheduler's pass: bind what fits. Evicted pods go, and their owner makes new ones."""
        for pod in self.registry.list("pods", "default"):
            meta = pod["metadata"]
            if "deletionTimestamp" in meta:
                await self.registry.delete("pods", "default", meta["name"], grace=0)
                await self.add_pods(1, **self._owned[meta["name"]])
        for pod in self.registry.list("pods", "default"):
            if pod["spec"].get("nodeName"):
                continue
            info = compile_pod({**pod, "metadata": {**pod["metadata"], "namespace": "default"}})
            for node in self.nodes():
                facts = compile_node(node)
                there = [one for one in self.registry.list("pods") if one["spec"].get("nodeName") == facts.name]
                requested: dict[str, int] = {}
                for one in there:
                    for resource, amount in compile_pod(one).requests.items():
                        requested[resource] = requested.get(resource, 0) + amount
                fits = filters.check_resources(info, facts.allocatable, requested, len(there), frozenset()) is None
                if fits and admits_pod(info, facts) and not facts.unschedulable:
                    await self.bind(pod["metadata"]["name"], facts.name)
                    break

    async def bind(self, pod: str, node: str) -> None:
        """Bind a pod, as a scheduler does; no update may set a pod's node."""
        await bind(self.registry, "default", pod, {"target": {"kind": "Node", "name": node}}, WriteOptions())

    # -- time ------------------------------------------------------------------------------------------------------

    async def until(self, holds: Callable[[], Any], seconds: float = 120.0, step: float = 0.5) -> Any:
        """Let time pass until a condition is true; the scheduler passes in between."""
        end = self.clock.now() + seconds
        while True:
            await settle()
            if found := holds():
                return found
            assert self.clock.now() < end, f"did not come about in {seconds:g} s: {self.seen()}"
            await self.clock.advance(step)
            await self.schedule()

    async def pass_time(self, seconds: float, step: float = 0.5) -> None:
        end = self.clock.now() + seconds
        await self.until(lambda: self.clock.now() >= end, seconds + step, step)

    def seen(self) -> str:
        claims = [(one["metadata"]["name"], one.get("status", {}).get("conditions")) for one in self.claims()]
        return f"claims {claims}; running {self.cloud.running()}; bound {self.bound()}"

    @contextlib.asynccontextmanager
    async def autoscaling(self, client: RegistryClient | None = None) -> AsyncIterator[AutoscalerProcess]:
        """An autoscaler at work for the block; its end is that of a process."""
        life = self.start(client or RegistryClient(self.registry, self.clock))
        try:
            yield life.process
        finally:
            await life.end()

    def start(self, client: RegistryClient) -> ProcessLife:
        """Start an autoscaler; end it with `end`."""
        process = AutoscalerProcess(client, self.cloud, self.settings, identity="test", clock=self.machine)  # type: ignore[arg-type]  # the face of a client
        return ProcessLife(process, asyncio.create_task(process.run()))


class ProcessLife:
    """An autoscaler that runs."""

    def __init__(self, process: AutoscalerProcess, task: asyncio.Task[None]) -> None:
        self.process = process
        self._task = task

    async def end(self) -> None:
        """End it as a process ends. Raises AssertionError if it has ended by itself."""
        ended = self._task.exception() if self._task.done() and not self._task.cancelled() else None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        watch, informers = self.process.watch, self.process.informers
        for informer in (*watch.informers, *informers._informers.values()):
            await informer.stop()
        assert ended is None, ended
