"""Pods and nodes for scheduling tests, written as short as they can be."""

from __future__ import annotations

from typing import Any

import pytest

from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.podinfo import NodeFacts, PodInfo, compile_node, compile_pod


def pod_object(
    name: str, *, namespace: str = "default", labels: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """A pod with one container; `requests` become the container's, `status` the pod's, the rest goes into the spec."""
    requests = spec.pop("requests", {})
    status = spec.pop("status", {})
    created = spec.pop("created", "2026-01-01T00:00:00Z")
    ports = spec.pop("ports", [])
    limits = {name: amount for name, amount in requests.items() if "/" in name}
    resources = {"requests": requests, "limits": limits}
    container = {"name": "main", "image": "app", "resources": resources, "ports": ports}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "labels": labels or {},
            "creationTimestamp": created,
        },
        "spec": {"containers": [container], **spec},
        "status": status,
    }


def node_object(name: str, *, labels: dict[str, str] | None = None, **facts: Any) -> dict[str, Any]:
    """A node with 4 CPUs, 8 GiB and room for 110 pods, unless `allocatable` says more."""
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "110", **facts.pop("allocatable", {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": facts,
        "status": {"allocatable": allocatable},
    }


class World:
    """Builds pods and nodes and a cache of them."""

    def __init__(self) -> None:
        self.cache = SchedulerCache()
        self.cache.set_namespace("default", {"kubernetes.io/metadata.name": "default"})

    def pod(self, name: str, **fields: Any) -> PodInfo:
        return compile_pod(pod_object(name, **fields))

    def node(self, name: str, **fields: Any) -> NodeFacts:
        facts = compile_node(node_object(name, **fields))
        self.cache.set_node(facts)
        return facts

    def placed(self, name: str, node: str, **fields: Any) -> PodInfo:
        pod = self.pod(name, nodeName=node, **fields)
        self.cache.place(pod)
        return pod


@pytest.fixture
def world() -> World:
    return World()


class Objects:
    """Raw objects, for tests on the registry."""

    pod = staticmethod(pod_object)
    node = staticmethod(node_object)


@pytest.fixture
def objects() -> Objects:
    return Objects()
