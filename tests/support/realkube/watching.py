"""Waiting for what shall come about in a cluster: by watching, never by asking again and again."""

from __future__ import annotations

import functools
from typing import Any, Final

from gpuplane.api.gpunode import GPUNode, StageName
from kubekit.api.core import Pod
from kubekit.kube import Client
from tests.support import until

PATIENCE_S: Final = 240.0  # ready takes a tenth; a computer that is busy with others fails no test


def describe(obj: Any) -> str:
    """One line on an object, for the message of a test that fails."""
    if isinstance(obj, GPUNode):
        stages = {name: f"{stage.state.value} {stage.message}" for name, stage in obj.status.stages.items()}
        return f"  {obj.metadata.name}: {obj.status.summary.stage} {obj.status.summary.message} {stages}"
    status = getattr(obj, "status", None)
    return f"  {obj.metadata.name}: {getattr(status, 'phase', '')} {getattr(status, 'reason', '')}"


until_objects = functools.partial(until.until_objects, seconds=PATIENCE_S, describe=describe)


async def phase(client: Client, pod: str, *phases: str, namespace: str = "default") -> Pod:
    """A pod, once it is in one of these phases."""
    found: Pod = await until_objects(
        client,
        Pod,
        lambda pods: next((pod for pod in pods if pod.status.phase in phases), None),
        namespace=namespace,
        fields=f"metadata.name={pod}",
    )
    return found


async def log(client: Client, pod: str, namespace: str = "default") -> str:
    return (await client.request("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}/log")).decode()


def gpu_node_is_ready(node: GPUNode) -> bool:
    stage = node.status.stages.get(StageName.READY.value)
    return stage is not None and stage.state.holds
