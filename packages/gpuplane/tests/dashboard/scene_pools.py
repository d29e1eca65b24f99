"""A cluster with node pools in all states of their nodes, and drivers in all states of an upgrade."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from gpuplane import names
from gpuplane.api.karpenter import NodePool
from gpuplane.api.karpenter_crds import karpenter_crds
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.operator.installation import resource_of
from kubekit.api.core import DaemonSet, Event, Node
from packages.gpuplane.tests.cli.status_clusters import installed
from packages.gpuplane.tests.dashboard.scene import ANSI, HTML, node
from tests.support.extender_world import World

SPOT, OWN, FULL, BROKEN = "h100-spot", "t4-share", "a10-batch", "l4-new"
STATES = (
    "upgrade-done",
    "upgrade-done",
    "upgrade-required",
    "wait-for-jobs-required",
    "pod-restart-required",
    "upgrade-failed",
)
NO_CAPACITY = "We currently do not have sufficient p5.48xlarge capacity in the zone us-east-1b"


def ago(**time: float) -> str:
    return f"{datetime.now(UTC) - timedelta(**time):%Y-%m-%dT%H:%M:%SZ}"


@contextlib.asynccontextmanager
async def pooled(tmp_path: Path) -> AsyncIterator[World]:
    """Six nodes of two pools; two claims on their way, one that ends; a pool at its limit and one that is not ready."""
    async with installed(tmp_path) as world:
        for definition in karpenter_crds():
            await world.client.apply(definition, "test", resource=resource_of(definition))
        for name, limits, resources, trouble in (
            (SPOT, {"nvidia.com/gpu": "64"}, {"nvidia.com/gpu": "32"}, ""),
            (OWN, {}, {}, ""),
            (FULL, {"cpu": "96"}, {"cpu": "96"}, ""),
            (BROKEN, {}, {}, f"no subnet has the tag team=ml {HTML}; tag one of the subnets"),
        ):
            await pool(world, name, limits, resources, trouble)
        for number in range(1, 7):
            pool_name = SPOT if number < 5 else OWN
            machine = "p5.48xlarge" if number < 5 else "g4dn.12xlarge"
            await bought(world, f"gpu-{number:02}", number, pool_name, machine)
        await claim(world, f"{SPOT}-7f2c81aa90", SPOT, "p5.48xlarge", Launched="True")
        await claim(world, f"{SPOT}-e0417a22c5", SPOT, "", Launched=NO_CAPACITY)
        await claim(world, f"{OWN}-51b2f00d17", OWN, "g4dn.12xlarge", Launched="True", Registered="True")
        await happened(world, "NodeClaim", f"{SPOT}-e0417a22c5", "InsufficientCapacityError", NO_CAPACITY)
        await happened(world, "NodePool", BROKEN, "NodeClassNotReady", f"no subnet has the tag {ANSI}")
        await operand(world, "nvidia-device-plugin-daemonset", 6, 6)
        await operand(world, "nvidia-dcgm-exporter", 6, 4)
        yield world


async def bought(world: World, name: str, number: int, pool_name: str, machine: str) -> None:
    """A node of a pool, with its price at launch but for one, in a state of an upgrade."""
    h100 = machine.startswith("p5")
    await node(world, name, "NVIDIA H100 80GB HBM3" if h100 else "Tesla T4", 8 if h100 else 4, 81559 if h100 else 15360)
    state = STATES[number - 1]
    reasons = {
        "wait-for-jobs-required": "1 pod of a Job runs: ml/train-2",
        "upgrade-failed": f"the driver 580.65.06 does not load {HTML}",
    }
    record = {"since": ago(minutes=7 * number), "reason": reasons.get(state, "")}
    labels = {
        "karpenter.sh/nodepool": pool_name,
        "karpenter.sh/capacity-type": "spot" if h100 else "on-demand",
        "node.kubernetes.io/instance-type": machine,
        "topology.kubernetes.io/zone": f"us-east-1{'abc'[number % 3]}",
        names.UPGRADE_STATE_LABEL: state,
    }
    annotations = {names.UPGRADE_RECORD_ANNOTATION: msgspec.json.encode(record).decode()}
    if number != 6:
        annotations[names.PRICE_ANNOTATION] = "19.42" if h100 else "3.1"
    await world.client.patch(Node, name, {"metadata": {"labels": labels, "annotations": annotations}})
    conditions = {"Launched": "True", "Registered": "True", "Initialized": "True"}
    await claim(world, f"{pool_name}-{number:010}", pool_name, machine, name, **conditions)


async def pool(world: World, name: str, limits: dict[str, str], resources: dict[str, str], trouble: str) -> None:
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"}
    template = {"spec": {"nodeClassRef": reference, "requirements": []}}
    body = {
        "apiVersion": NodePool.RESOURCE.api_version,
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {"template": template, "limits": limits},
    }
    await world.client.create(body, resource=NodePool.RESOURCE)
    ready = {"type": "Ready", "status": "False" if trouble else "True", "reason": "Ready", "message": trouble}
    status = {"conditions": [{**ready, "lastTransitionTime": ago(hours=1)}], "resources": resources}
    await world.client.patch(NodePool, name, {"status": status}, subresource="status")


async def claim(world: World, name: str, pool_name: str, machine: str, on: str = "", **conditions: str) -> None:
    """A claim; a condition that is not True has its text as message."""
    labels = {"karpenter.sh/nodepool": pool_name}
    labels |= {"node.kubernetes.io/instance-type": machine, "karpenter.sh/capacity-type": "spot"} if machine else {}
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"}
    body: dict[str, Any] = {
        "apiVersion": NodeClaim.RESOURCE.api_version,
        "kind": "NodeClaim",
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeClassRef": reference, "requirements": []},
    }
    await world.client.create(body, resource=NodeClaim.RESOURCE)
    listed = [
        {
            "type": kind,
            "status": "True" if text == "True" else "Unknown",
            "reason": kind,
            "message": "" if text == "True" else text,
            "lastTransitionTime": ago(minutes=2),
        }
        for kind, text in conditions.items()
    ]
    status = {"conditions": listed, "nodeName": on}
    await world.client.patch(NodeClaim, name, {"status": status}, subresource="status")


async def happened(world: World, kind: str, name: str, reason: str, message: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.1", "namespace": "default"},
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "message": message,
        "lastTimestamp": ago(minutes=3),
        "type": "Warning",
    }
    await world.client.create(body, resource=Event.RESOURCE)


async def operand(world: World, name: str, nodes: int, updated: int) -> None:
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "registry.example/gpuplane:0.0.8"}]},
    }
    body = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": names.OPERATOR_NAMESPACE},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    made = await world.client.create(body, resource=DaemonSet.RESOURCE)
    status = {
        "observedGeneration": made["metadata"]["generation"],
        "desiredNumberScheduled": nodes,
        "currentNumberScheduled": nodes,
        "numberMisscheduled": 0,
        "updatedNumberScheduled": updated,
        "numberReady": nodes - 1 if updated < nodes else nodes,
    }
    await world.client.patch(DaemonSet, name, {"status": status}, names.OPERATOR_NAMESPACE, subresource="status")
