"""Pods that name gpuplane's scheduler, and what became of them."""

from __future__ import annotations

from typing import Any

from kubekit.api.core import Pod
from tests.support.extender_world import World
from tests.support.until import until_objects


def ours(pod: dict[str, Any], **spec: Any) -> dict[str, Any]:
    pod["spec"] |= {"schedulerName": "gpuplane", **spec}
    return pod


def plain(name: str, cpu: str = "1", **spec: Any) -> dict[str, Any]:
    """A pod without GPUs."""
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    meta = {"name": name, "namespace": "default", **spec.pop("metadata", {})}
    return ours({"metadata": meta, "spec": {"containers": [container]}}, **spec)


async def bound(cluster: World, *wanted: str) -> dict[str, Pod]:
    """The pods by name, once these are bound."""

    def are_bound(pods: list[Pod]) -> bool:
        return {pod.metadata.name for pod in pods if pod.spec.node_name} >= set(wanted)

    await until_objects(cluster.client, Pod, are_bound)
    return {pod.metadata.name: pod for pod in await cluster.client.list(Pod)}


async def refused(cluster: World, name: str) -> str:
    """The message of the condition PodScheduled, once the pod is reported to wait."""

    def waits(pods: list[Pod]) -> str:
        return next((text for pod in pods if pod.metadata.name == name for text in reasons(pod)), "")

    text: str = await until_objects(cluster.client, Pod, waits)
    return text


def reasons(pod: Pod) -> list[str]:
    return [one.message for one in pod.status.conditions if (one.type, one.status) == ("PodScheduled", "False")]
