"""Find the container that the kubelet is admitting, or starting, from pod-resources and the pods' requests. Pure.

Allocate names no pod. Pod-resources lists the pod that is being admitted without the resource that it requests; no
other pod is in this state for long. Before a container starts, pod-resources lists exactly which container holds which
ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from gpuplane.sharing.findings import count
from kubekit.api.core import Container, Pod


class KubeletContainer(msgspec.Struct, frozen=True):
    """A container in the kubelet's answer: resource -> its ids. Init containers that end are missing."""

    namespace: str
    pod: str
    container: str
    ids: Mapping[str, tuple[str, ...]]


class AdmittedContainer(msgspec.Struct, frozen=True):
    """A container of a pod on this node."""

    pod: Pod
    container: str


class PodLookup(Protocol):
    """The node's pods; see `gpuplane.device_plugin.node_pods.NodePods`."""

    async def shown(self) -> tuple[KubeletContainer, ...]: ...

    async def find(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Pod]: ...

    async def now(self, namespace: str, name: str) -> Pod | None: ...


def asked(container: Container, resource: str) -> int:
    return count(container.resources.limits.get(resource, 0))


def candidates(
    shown: Iterable[KubeletContainer],
    pods: Mapping[tuple[str, str], Pod],
    resource: str,
    size: int,
    passed: Collection[tuple[str, str, str]],
) -> list[AdmittedContainer]:
    """The containers that may be asking for `size` of the resource now, one a pod.

    Args:
        pods: (namespace, name) -> pod, those that the kubelet shows.
        passed: (uid, container, resource) of requests that were answered, for containers that the kubelet never lists.
    """
    held: dict[tuple[str, str], dict[str, Mapping[str, tuple[str, ...]]]] = {}
    for one in shown:
        held.setdefault((one.namespace, one.pod), {})[one.container] = one.ids
    found = []
    for key, containers in held.items():
        pod = pods.get(key)
        if pod is None or pod.status.ended:
            continue
        first = next(_open(pod, containers, resource, passed), None)
        if first is not None and asked(first, resource) == size:
            found.append(AdmittedContainer(pod, first.name))
    return found


def _open(
    pod: Pod,
    shown: Mapping[str, Mapping[str, tuple[str, ...]]],
    resource: str,
    passed: Collection[tuple[str, str, str]],
) -> Iterator[Container]:
    """The containers that ask and have nothing yet, in the order in which the kubelet serves them."""
    for container in pod.spec.init_containers:
        ends = not container.sidecar
        has = (pod.metadata.uid, container.name, resource) in passed if ends else resource in shown.get(
            container.name, {}
        )  # fmt: skip
        if asked(container, resource) and not has:
            # An init container whose pod shows main containers with the resource has had its turn.
            if ends and any(resource in shown.get(main.name, {}) for main in pod.spec.containers):
                continue
            yield container
    for container in pod.spec.containers:
        if asked(container, resource) and resource not in shown.get(container.name, {}):
            yield container


def holder(shown: Iterable[KubeletContainer], resource: str, ids: Collection[str]) -> KubeletContainer | None:
    """Find the container that holds exactly these ids; None when none is listed with them."""
    wanted = frozenset(ids)
    return next((one for one in shown if frozenset(one.ids.get(resource, ())) == wanted), None)
