"""A healthy installation on an API server of its own, and the parts of it that tests play: controllers, kubelets, and
what gpuplane's components do when they start.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from gpuplane import __version__, names
from gpuplane.admission.trust import announce, plan_of
from gpuplane.api.clusterpolicy import ClusterPolicy, ClusterPolicySpec
from gpuplane.api.gpunode import GPUNode
from gpuplane.cli.doctor.checks.leases import LEASE_OF
from gpuplane.operator.autoscaler_install import AutoscalerInstall
from gpuplane.operator.installation import installation, resource_of
from gpuplane.operator.operands import manifests
from kubekit.api.core import DaemonSet, Deployment, LeaseObject, Namespace, Node, Pod
from kubekit.kube import AlreadyExists, Client, NotFound
from kubekit.kube.auth import StaticAuth
from kubekit.kube.server_certificates import make
from tests.support.extender_world import ACCOUNT, World, gpu_pod, world
from tinykube.apiserver.hooks import User

IMAGE = f"registry:5000/gpuplane:{__version__}"
SPACE = names.OPERATOR_NAMESPACE
PLUGIN = "nvidia-device-plugin-daemonset"
PLUGIN_POD = "device-plugin-x2x9p"
NODE = "gpu-1"
QUOTAS = '{"ml": {"quota": {"T4": 2}}}'
SCHEDULER_POD = "kube-scheduler-cp"


def rfc3339(seconds: float = 0.0) -> str:
    """Return now, moved by `seconds`, as leases have it."""
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class HealthyCluster:
    """The installation and its parts. `config` is the path of an administrator's kubeconfig, `extender` a client with
    the extender's account.
    """

    def __init__(self, made: World, config: Path, extender: Client) -> None:
        self.world = made
        self.extender = extender
        self.client: Client = made.client
        self.config = config

    # -- parts that tests play ---------------------------------------------------------------------------------------

    async def renew(self, name: str, namespace: str = SPACE, *, seconds: float = 0.0, holder: str = "pod-1") -> None:
        """Renew a lease, as its holder does."""
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": rfc3339(seconds)}
        body = {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
        await self.client.apply(body, "test", resource=LeaseObject.RESOURCE)

    async def available(self, name: str, replicas: int | None = None) -> None:
        """Have the pods of a Deployment run, all of them or `replicas`."""
        found = await self.client.get(Deployment, name, SPACE)
        number = found.spec.replicas if replicas is None else replicas
        status = {"availableReplicas": number, "readyReplicas": number, "observedGeneration": found.metadata.generation}
        await self.client.patch(Deployment, name, {"status": status}, SPACE, subresource="status")

    async def starts(self, deployment: str) -> None:
        """Do what a component does when its pods start."""
        await self.available(deployment)
        if deployment in LEASE_OF:
            await self.renew(LEASE_OF[deployment])
        if deployment == names.ADMISSION_NAME:
            made = make(plan_of(SPACE), datetime.datetime.now(datetime.UTC))
            await announce(self.client, made)
        if deployment == "gpu-operator":
            await self.operate()

    async def operate(self) -> None:
        """Apply the operands as the operator does, and report on nodes with GPUs."""
        owner = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy", "uid": "u"}
        for manifest in manifests(ClusterPolicySpec(), {}, image=IMAGE, owner=owner):
            if manifest["kind"] == "DaemonSet":
                await self.client.apply(manifest, "test", resource=DaemonSet.RESOURCE)
                await self.observed(manifest["metadata"]["name"])
        present = await self.client.list(Node, labels=f"{names.GPU_PRESENT_LABEL}=true")
        there = {one.metadata.name for one in await self.client.list(GPUNode)}
        for node in present:
            if node.metadata.name not in there:
                await self.gpus(node.metadata.name)
        with contextlib.suppress(NotFound):
            status = {"state": "ready", "conditions": [{"type": "Error", "status": "False", "reason": "Done"}]}
            await self.client.patch(ClusterPolicy, "cluster-policy", {"status": status}, subresource="status")

    async def observed(self, daemonset: str) -> None:
        """Have the controller manager act on a DaemonSet."""
        found = await self.client.get(DaemonSet, daemonset, SPACE)
        status = {
            "observedGeneration": found.metadata.generation,
            "currentNumberScheduled": 1,
            "numberReady": 1,
            "desiredNumberScheduled": 1,
            "numberMisscheduled": 0,
        }
        await self.client.patch(DaemonSet, daemonset, {"status": status}, SPACE, subresource="status")

    async def plugin_pod(self) -> None:
        """Have the controller manager create the device plugin's pod from its template, and the kubelet run it."""
        found = decoded(await self.client.request("GET", DaemonSet.RESOURCE.path(SPACE, PLUGIN)))
        template = found["spec"]["template"]
        containers = [{"name": c["name"], "image": c["image"]} for c in template["spec"]["containers"]]
        with contextlib.suppress(AlreadyExists):
            await self.pod(PLUGIN_POD, SPACE, containers, labels=template["metadata"]["labels"])
        await self.runs(PLUGIN_POD, containers[0]["name"])

    async def pod(self, name: str, namespace: str, containers: list[dict[str, Any]], **metadata: Any) -> None:
        meta = {"name": name, "namespace": namespace, **metadata}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": {"containers": containers, "nodeName": NODE},
        }
        await self.client.create(body, resource=Pod.RESOURCE)

    async def runs(self, name: str, container: str, state: dict[str, Any] | None = None, **more: Any) -> None:
        """Have the kubelet report a container of a pod in a state, running by default."""
        one = {
            "name": container,
            "state": state or {"running": {}},
            "ready": state is None,
            "restartCount": 0,
            "image": IMAGE,
            "imageID": "",
            **more,
        }
        status = {"phase": "Running", "containerStatuses": [one]}
        await self.client.patch(Pod, name, {"status": status}, SPACE, subresource="status")

    async def gpus(self, node: str, health: dict[str, str] | None = None) -> None:
        """Report two GPUs of a node."""
        listed = [
            {
                "index": index,
                "uuid": f"GPU-{node}-{index}",
                "model": "Tesla T4",
                "memoryMib": 15360,
                "pci": f"0000:0{index}:00.0",
            }
            for index in range(2)
        ]
        status = {"gpus": listed, "health": health or {}}
        await self.client.apply({"metadata": {"name": node}, "status": status}, "test", resource=GPUNode.RESOURCE)

    async def scheduler(self, *arguments: str) -> None:
        """Run kube-scheduler in a pod, as kubeadm does."""
        with contextlib.suppress(NotFound):
            await self.world.delete(SCHEDULER_POD, "kube-system")
        container = {"name": "kube-scheduler", "image": "kube-scheduler", "command": ["kube-scheduler", *arguments]}
        await self.pod(SCHEDULER_POD, "kube-system", [container])

    async def share(self, name: str, *, by_extender: bool) -> str:
        """Bind a pod with a share, by the extender or past it, and return its uid."""
        spec = {} if by_extender else {"nodeName": NODE}
        made = await self.world.pod(gpu_pod(name, (40, 8), **spec))
        if by_extender:
            assigned = {"annotations": {names.ASSIGNMENT_ANNOTATION: "{}"}, "name": name, "namespace": "default"}
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            path = Pod.RESOURCE.path("default", name, "binding")
            await self.extender.request("POST", path, None, {"metadata": assigned, "target": target})
        return str(made["metadata"]["uid"])

    async def quota(self, hard: str, used: str) -> None:
        """A ResourceQuota of the namespace, with its status as the controller manager computes it."""
        path = "/api/v1/namespaces/gpu-operator/resourcequotas"
        body = {"metadata": {"name": "pods", "namespace": SPACE}, "spec": {"hard": {"pods": hard}}}
        await self.client.request("POST", path, None, body)
        status = {"hard": {"pods": hard}, "used": {"pods": used}}
        await self.client.request(
            "PATCH", f"{path}/pods/status", None, {"status": status}, "application/merge-patch+json"
        )


def decoded(body: bytes) -> Any:
    """Return the data of an answer."""
    from kubekit.kube.codec import decode_any

    return decode_any(body)


def account(made: World) -> Client:
    """Return a client with the extender's account."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{SPACE}", "system:authenticated")
    made.server.extensions.identity.add("extender", User(name=ACCOUNT, groups=groups))
    return Client(msgspec.structs.replace(made.client.endpoint, auth=StaticAuth(token="extender")))


@contextlib.asynccontextmanager
async def healthy_cluster(directory: Path) -> AsyncIterator[HealthyCluster]:
    """A cluster with all parts of an installation, in which the doctor finds nothing."""
    async with world(directory) as made, account(made) as extender:
        config = directory / "config"
        config.write_text(made.kubeconfig())
        cluster = HealthyCluster(made, config, extender)
        client = made.client
        for name in (SPACE, "kube-system", "kube-node-lease"):
            with contextlib.suppress(AlreadyExists):
                body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
                await client.create(body, resource=Namespace.RESOURCE)
        await made.node(NODE, labels={names.GPU_PRESENT_LABEL: "true"}, gpunode=False)
        await cluster.renew(NODE, "kube-node-lease")
        autoscaler = AutoscalerInstall({"CLUSTER_NAME": "demo"})
        for manifest in installation(image=IMAGE, autoscaler=autoscaler):
            if manifest["kind"] != "CustomResourceDefinition":
                await client.apply(manifest, "test", resource=resource_of(manifest))
        for deployment in await client.list(Deployment, SPACE):
            await cluster.starts(deployment.metadata.name)
        await cluster.plugin_pod()
        await cluster.scheduler("--config=/etc/kubernetes/scheduler.yaml")
        await cluster.share("tune", by_extender=True)
        await made.quota(QUOTAS)
        yield cluster
