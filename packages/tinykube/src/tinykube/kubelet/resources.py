"""Amounts of CPU and memory of pods and containers, as a kubelet counts and compares them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kubekit.api.core import Resources
from kubekit.api.pod_requests import PodAmounts
from kubekit.api.quantity import Quantity
from kubekit.scheduling.podinfo import amounts
from tinykube.kubelet.containers.groups import GroupLimits
from tinykube.kubelet.pod import ContainerResources, KubeletPod, SpecContainer, all_containers

RESIZABLE: Final = ("cpu", "memory")


def group_limits(resources: Resources) -> GroupLimits:
    """Return what a container's control groups are set to."""
    limits, requests = _amounts(resources.limits), _amounts(resources.requests)
    return GroupLimits(limits.get("memory"), limits.get("cpu"), requests.get("cpu"))


def _amounts(values: Mapping[str, Quantity]) -> dict[str, int]:
    return dict(amounts({name: values[name] for name in RESIZABLE if name in values}))


def resizable(resources: Resources) -> tuple[dict[str, int], dict[str, int]]:
    """Return the requests and limits that a resize may change, in thousandths of a CPU and in bytes."""
    return _amounts(resources.requests), _amounts(resources.limits)


def pod_requests(pod: KubeletPod) -> dict[str, int]:
    """Return the CPU and memory that a pod takes of its node, in thousandths of a CPU and in bytes."""
    spec = pod.spec
    asked = PodAmounts(
        tuple(_amounts(c.resources.requests) for c in spec.containers),
        tuple((_amounts(c.resources.requests), c.sidecar) for c in spec.init_containers),
        _amounts(spec.resources.requests),
        _amounts(spec.overhead),
    )
    return {name: amount for name, amount in asked.requests().items() if name in RESIZABLE}


def is_guaranteed(pod: KubeletPod) -> bool:
    """Return whether a pod has the QoS class Guaranteed: each container requests its limits of both."""
    for container in all_containers(pod):
        requests, limits = resizable(container.resources)
        if set(limits) != set(RESIZABLE) or requests != limits:
            return False
    return True


def with_resources(pod: KubeletPod, resources: Mapping[str, ContainerResources]) -> KubeletPod:
    """Return a pod whose containers have other resources, by their names."""
    if all(resources.get(c.name, c.resources) == c.resources for c in all_containers(pod)):
        return pod

    def changed(containers: tuple[SpecContainer, ...]) -> tuple[SpecContainer, ...]:
        return tuple(
            msgspec.structs.replace(c, resources=resources[c.name]) if c.name in resources else c for c in containers
        )

    spec = pod.spec
    spec = msgspec.structs.replace(
        spec, containers=changed(spec.containers), init_containers=changed(spec.init_containers)
    )
    return msgspec.structs.replace(pod, spec=spec)


def resources_text(pod: KubeletPod, generation: int, error: str = "") -> str:
    """Return the resources of a pod as the events of a resize have them."""

    def rows(containers: tuple[SpecContainer, ...]) -> list[dict[str, Any]]:
        return [{"name": c.name, "resources": resources_object(c.resources)} for c in containers]

    text: dict[str, Any] = {}
    if pod.spec.init_containers:
        text["initContainers"] = rows(pod.spec.init_containers)
    text |= {"containers": rows(pod.spec.containers), "generation": generation}
    if error:
        text["error"] = error
    return json.dumps(text, separators=(",", ":"))


def resources_object(resources: ContainerResources) -> dict[str, Any]:
    """Return a container's resources in their JSON form, without what is empty."""
    found: dict[str, Any] = {}
    for field in ("limits", "requests"):
        if values := getattr(resources, field):
            found[field] = dict(sorted(values.items()))
    if resources.claims:
        found["claims"] = msgspec.to_builtins(resources.claims)
    return found
