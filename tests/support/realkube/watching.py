"""Waiting for what shall come about in a cluster: by watching, never by asking again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from gpuplane.api.core import Node, Pod
from gpuplane.api.gpunode import GPUNode, StageName
from gpuplane.kube import Client, Informer

PATIENCE_S: Final = 90.0


async def until(
    client: Client,
    kind: type[Any],
    holds: Callable[[list[Any]], Any],
    *,
    namespace: str | None = None,
    labels: str = "",
    fields: str = "",
    patience_s: float = PATIENCE_S,
) -> Any:
    """What `holds(objects)` gives, once it gives something true; of the objects that are chosen, or all of the kind.

    Raises AssertionError with what there is when the time is over.
    """
    informer = Informer(client, kind, namespace, labels, fields)
    changed = asyncio.Event()
    informer.add_handler(lambda old, new: changed.set())
    informer.start()
    try:
        async with asyncio.timeout(patience_s):
            await informer.synced()
            while not (found := holds(informer.items())):
                await changed.wait()
                changed.clear()
            return found
    except TimeoutError:
        seen = "\n".join(map(describe, informer.items()))
        raise AssertionError(f"did not come about in {patience_s:.0f} s; there is:\n{seen}") from None
    finally:
        await informer.stop()


def describe(obj: Any) -> str:
    """One line on an object, for the message of a test that fails."""
    if isinstance(obj, GPUNode):
        stages = {name: f"{stage.state.value} {stage.message}" for name, stage in obj.status.stages.items()}
        return f"  {obj.metadata.name}: {obj.status.summary.stage} {obj.status.summary.message} {stages}"
    status = getattr(obj, "status", None)
    return f"  {obj.metadata.name}: {getattr(status, 'phase', '')} {getattr(status, 'reason', '')}"


async def phase(client: Client, pod: str, *phases: str, namespace: str = "default") -> Pod:
    """A pod, once it is in one of these phases."""
    found: Pod = await until(
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


def node_is_ready(node: Node) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)
