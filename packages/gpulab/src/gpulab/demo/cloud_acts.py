"""The acts of `gpuplane demo --cloud`: nodes are bought for pods that wait, shared, and given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from importlib import resources
from typing import Any, Final

import msgspec
import yaml

from gpulab.cloud.catalogue import cloud_types, price
from gpulab.cloud.client import ask
from gpulab.cloud.instances import TERMINATED
from gpulab.cloud.settings import CLUSTER_NAME, CloudAddress, environment
from gpulab.clusters import up
from gpulab.demo.acts import Acts, stage_holds
from gpulab.demo.cloud_verdict import ALLOCATABLE, PODS, CloudMeasured, judge_cloud
from gpulab.demo.verdict import Promise
from gpulab.up import cloud_address
from gpulab.watching import watching
from gpuplane import names
from gpuplane.api.gpunode import GPUNode, StageName
from gpuplane.api.karpenter import POOL_LABEL, Provisioner
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.autoscaler.catalogue import SPOT
from gpuplane.cli.install_objects import apply
from gpuplane.operator.autoscaler_install import AutoscalerInstall
from gpuplane.operator.installation import installation
from kubekit.api.core import Node, Pod
from kubekit.api.kinds import built_in
from kubekit.api.meta import Resource
from kubekit.kube import Client
from tinykube.cluster import ClusterHandle

STEPS: Final = (
    ("up", "API server, scheduler, a simulated AWS, and no GPU node"),
    ("install", "operator and autoscaler, two pools, one of ten replicas a GPU"),
    ("buy", "a pod waits for each pool: two unlike nodes are bought"),
    ("share", "ten pods on one GPU, and nothing more is bought"),
    ("empty", "scaled to zero: the nodes go"),
)
_TAINTS: Final = {"whole": "nvidia.com/gpu", "tenths": "nvidia.com/gpu-shared"}
_POLL_SECONDS: Final = 0.1  # of the cloud, which nothing watches
_SETTINGS: Final = ("devicePlugin.config.name=plugin-configs", "devicePlugin.config.default=whole")


class CloudActs(Acts):
    """The acts, and what was measured in them in `bill`."""

    bill: CloudMeasured = CloudMeasured()
    _address: CloudAddress | None = None

    async def play(self) -> ClusterHandle:
        """All acts in order. Raises DemoFailed, saying which and why."""
        handle = await self._act("up", self._start())
        client = self._client
        assert client is not None
        await self._act("install", self._install(client))
        await self._act("buy", self._buy(client))
        await self._act("share", self._fill(client))
        await self._act("empty", self._scale_to_zero(client))
        return handle

    def promises(self) -> tuple[Promise, ...]:
        return judge_cloud(self.bill)

    def figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = msgspec.to_builtins(self.bill)
        return figures

    def _noted(self, **figures: Any) -> None:
        self.bill = msgspec.structs.replace(self.bill, **figures)

    async def _start(self) -> ClusterHandle:
        handle = await up(self._spec)
        self._client = Client.connect(handle.kubeconfig, user_agent="gpuplane-demo")
        self._opened.append(self._client)
        self._address = await cloud_address(handle)
        return handle

    async def _install(self, client: Client) -> None:
        assert self._address is not None
        found = {"CLUSTER_NAME": CLUSTER_NAME, **environment(self._address)}
        for manifest in installation(admission="", settings=_SETTINGS, autoscaler=AutoscalerInstall(found)):
            if manifest["kind"] == "Deployment":
                manifest["spec"]["replicas"] = 1
            await apply(client, manifest)
        text = resources.files(__package__).joinpath("cloud-pools.yaml").read_text()
        for document in yaml.safe_load_all(text):
            await client.apply(document, "demo", resource=_resource(document))
        await self._follow(client)
        system = names.OPERATOR_NAMESPACE
        async with watching(client, Pod, system) as pods:
            await pods.until(lambda: bool(pods.items()) and all(map(_runs, pods.items())))
        async with watching(client, Provisioner) as pools:
            await pools.until(lambda: sum(map(_is_ready, pools.items())) == len(PODS))

    async def _buy(self, client: Client) -> None:
        began = self._story.clock()
        for pool in PODS:
            await client.create(_deployment(pool), resource=built_in("apps/v1", "Deployment"), namespace="default")
        async with asyncio.TaskGroup() as group:
            running = group.create_task(self._since(began, self._all_run(client, dict.fromkeys(PODS, 1))))
            launched = group.create_task(self._since(began, self._launched()))
            advertised = group.create_task(self._since(began, self._advertise(client)))
        self._noted(
            running_seconds=running.result(),
            launched_seconds=launched.result(),
            placed_seconds=round(max(0.0, running.result() - advertised.result()), 2),
        )
        # NB: ten pods that hold all replicas would leave none to the pod that validates the device plugin.
        async with watching(client, GPUNode) as nodes:
            await nodes.until(lambda: sum(stage_holds(node, StageName.READY) for node in nodes.items()) == len(PODS))

    async def _since(self, began: float, work: Awaitable[Any]) -> float:
        """Return the seconds from `began` to the end of some work."""
        await work
        return round(self._story.clock() - began, 2)

    async def _launched(self) -> None:
        while len((await self._bill())["instances"]) < len(PODS):  # noqa: ASYNC110 - nothing watches a cloud
            await asyncio.sleep(_POLL_SECONDS)

    async def _advertise(self, client: Client) -> None:
        async with watching(client, Node) as nodes:
            await nodes.until(lambda: _advertised(nodes.items()) == {p: [n] for p, n in ALLOCATABLE.items()})
            self._noted(advertised=_advertised(nodes.items()))

    async def _fill(self, client: Client) -> None:
        for pool, replicas in PODS.items():
            await _scale(client, pool, replicas)
        pods = await self._all_run(client, PODS)
        holders = {pool: [pod.spec.node_name for pod in pods if pod.metadata.labels["app"] == pool] for pool in PODS}
        bill = await self._bill()
        bought: dict[str, list[str]] = {}
        for one in bill["instances"]:
            bought.setdefault(one["pool"], []).append(one["machine"])
        cheapest = min(price(name, SPOT) for name, found in cloud_types().items() if found.gpus == 1)
        self._noted(
            holders=holders,
            bought=bought,
            instances=len(bill["instances"]),
            dollars_per_hour=bill["dollarsPerHour"],
            dollars_per_pod=cheapest,
        )
        self._story.lines = [
            f"   {one['machine']:14} {one['capacityType']:10} {one['dollarsPerHour']:.4f} $/h   {one['pool']}"
            for one in bill["instances"]
        ]

    async def _scale_to_zero(self, client: Client) -> None:
        for pool in PODS:
            await _scale(client, pool, 0)
        await self._all_run(client, {})
        began = self._story.clock()
        while True:
            bill = await self._bill()
            left = [one["id"] for one in bill["instances"] if one["state"] != TERMINATED]
            if not left:
                break
            await asyncio.sleep(_POLL_SECONDS)
        async with watching(client, NodeClaim) as claims:
            await claims.until(lambda: not claims.items())
        async with watching(client, Node) as nodes:
            await nodes.until(lambda: not _advertised(nodes.items()))
        self._noted(left=left, gone_seconds=round(self._story.clock() - began, 2), dollars=bill["dollars"])

    async def _all_run(self, client: Client, wanted: dict[str, int]) -> list[Pod]:
        """Return the pods of the Deployments once so many of each run, and no other is there."""

        def hold(found: list[Pod]) -> bool:
            count = {pool: sum(pod.metadata.labels.get("app") == pool for pod in found) for pool in PODS}
            return count == {pool: wanted.get(pool, 0) for pool in PODS} and all(map(_runs, found))

        async with watching(client, Pod, "default") as pods:
            await pods.until(lambda: hold(pods.items()))
            return pods.items()

    async def _bill(self) -> Any:
        assert self._address is not None
        return await asyncio.to_thread(ask, self._address, "GET", "bill")


def _is_ready(pool: Provisioner) -> bool:
    """Return whether nodes can be bought for a pool: the autoscaler has asked the cloud for its types and images."""
    return any(condition.type == "Ready" and condition.status == "True" for condition in pool.status.conditions)


def _runs(pod: Pod) -> bool:
    return pod.status.phase == "Running" and not pod.metadata.deletion_timestamp


def _advertised(nodes: list[Node]) -> dict[str, list[str]]:
    """The GPUs that each pool's nodes advertise."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        if pool := node.metadata.labels.get(POOL_LABEL):
            found.setdefault(pool, []).append(str(node.status.allocatable.get(names.GPU_RESOURCE, "")))
    return found


def _resource(document: dict[str, Any]) -> Resource:
    if document["kind"] == Provisioner.RESOURCE.kind:
        return Provisioner.RESOURCE
    return built_in(document["apiVersion"], document["kind"])


async def _scale(client: Client, name: str, replicas: int) -> None:
    path = built_in("apps/v1", "Deployment").path("default", name)
    body = msgspec.json.encode({"spec": {"replicas": replicas}})
    await client.request("PATCH", path, {"fieldManager": "demo"}, body, content_type="application/merge-patch+json")


def _deployment(pool: str) -> dict[str, Any]:
    labels = {"app": pool}
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", "100000"],
        "resources": {"limits": {names.GPU_RESOURCE: 1}},
    }
    spec = {
        "nodeSelector": {"karpenter.sh/provisioner-name": pool},
        "tolerations": [{"key": _TAINTS[pool], "operator": "Exists", "effect": "NoSchedule"}],
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": pool},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
