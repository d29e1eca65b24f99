"""Reads from the API server what an explanation depends on: pods, nodes, GPUNodes, namespaces and quotas.

Most pods of a cluster are bound and only take up space: of them, those fields are decoded that a scheduler counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypedDict

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.explain.scheduling_reading import read_scheduling
from gpuplane.explain.world import ClusterFacts, Object
from gpuplane.names import (
    QUOTA_KEY,
    QUOTA_NAMESPACE,
    QUOTA_SETTINGS_CONFIGMAP,
    QUOTA_SETTINGS_KEY,
)
from gpuplane.scheduler.queues.reading import read_queues
from gpuplane.scheduler.quota import NamespaceQuota, QuotaSettings, parse_quotas, parse_settings
from kubekit.api.core import ConfigMap, Pod
from kubekit.errors import InvalidInput
from kubekit.kube import Client, Forbidden, NotFound
from kubekit.kube.codec import decode_any, decode_deep
from kubekit.kube.discovery import serves

__all__ = ["decode_pod", "listed", "nearest_pod", "read", "read_facts", "read_pod", "serves", "unreadable"]

EVERY: Final = "*"  # as a namespace: all of them
_PAGE: Final = "500"
# Two thirds of a pod's size, and no part of any answer.
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_MOUNTS: Final = ("volumeMounts", "volumeDevices")
_UNREAD_OF_CONTAINERS: Final = frozenset(("command", "args", "env", "envFrom", "lifecycle", *_MOUNTS, *_PROBES))
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")


class _Metadata(TypedDict, total=False):
    name: Any
    namespace: Any
    uid: Any
    creationTimestamp: Any
    deletionTimestamp: Any
    labels: Any
    annotations: Any
    ownerReferences: Any


class _Container(TypedDict, total=False):
    name: Any
    image: Any
    resources: Any
    restartPolicy: Any
    ports: Any


class _Spec(TypedDict, total=False):
    nodeName: Any
    containers: list[_Container]
    initContainers: list[_Container]
    resources: Any
    overhead: Any
    priority: Any
    priorityClassName: Any
    preemptionPolicy: Any
    schedulerName: Any
    nodeSelector: Any
    affinity: Any
    tolerations: Any
    topologySpreadConstraints: Any
    schedulingGates: Any
    schedulingGroup: Any


class _Status(TypedDict, total=False):
    phase: Any
    nominatedNodeName: Any


class _BoundPod(TypedDict, total=False):
    """Fields of a bound pod that `kubekit.scheduling` and the ledger of GPUs count."""

    metadata: _Metadata
    spec: _Spec
    status: _Status


class _Page(msgspec.Struct):
    items: list[msgspec.Raw] | None = None
    metadata: dict[str, Any] = {}

    @property
    def more(self) -> str:
        """Return the token of the next page, empty after the last one."""
        return self.metadata.get("continue") or ""


_page: Final = msgspec.json.Decoder(_Page)
_bound: Final = msgspec.json.Decoder(_BoundPod)


async def read(client: Client, namespace: str, name: str) -> tuple[Object, ClusterFacts]:
    """The pod as it is stored, and all that is asked about it. Raises InvalidInput where there is no such pod."""
    pod = await read_pod(client, namespace, name)
    return pod, await read_facts(client)


async def read_pod(client: Client, namespace: str, name: str) -> Object:
    """Return the pod as it is stored. Raises InvalidInput where there is no such pod."""
    try:
        body = await client.request("GET", Pod.RESOURCE.path(namespace, name))
    except NotFound as error:
        raise InvalidInput(
            f"there is no pod {name}", where=f"namespace {namespace}", cure="kubectl get pods -A shows those there are"
        ) from error
    pod: Object = decode_any(body)
    return pod


async def nearest_pod(client: Client, namespace: str, name: str) -> str:
    """Return NAMESPACE/NAME of the pod that a mistyped name most likely means; empty for none.

    Only pods that the client's user may list are considered: those of all namespaces, else those of the namespace.
    """
    for space in ("", namespace):
        try:
            found = await listed(client, Pod.RESOURCE.path(space or None))
        except Forbidden:
            continue
        own = [raw["metadata"]["name"] for raw in found if raw["metadata"]["namespace"] == namespace]
        from difflib import get_close_matches  # late: only after a mistake

        if near := get_close_matches(name, own, n=1):
            return f"{namespace}/{near[0]}"
        spaces = {raw["metadata"]["name"]: raw["metadata"]["namespace"] for raw in found}
        near = get_close_matches(name, spaces, n=1)
        return f"{spaces[near[0]]}/{near[0]}" if near else ""
    return ""


async def read_facts(client: Client, whole: str = "") -> ClusterFacts:
    """Read one list of each kind, without the optional kinds that the user may not read. Raises Forbidden.

    Args:
        whole: the namespace whose bound pods may be asked about, EVERY for all; of others' there is only what they take
            up.
    """
    read_all = asyncio.gather(
        _listed(client, "/api/v1/pods", lambda item: decode_pod(item, whole)),
        listed(client, "/api/v1/nodes"),
        _gpunodes(client),
        _namespaces(client),
        read_quotas(client),
        read_queues(client),
    )
    scheduling, (pods, nodes, gpunodes, namespaces, (naming, quotas), queues) = await asyncio.gather(
        read_scheduling(client), read_all
    )
    return ClusterFacts(pods, nodes, gpunodes, namespaces, quotas, naming, queues, scheduling)


async def unreadable(client: Client) -> list[str]:
    """Return the kinds of the cluster that the user may not list."""
    found = []
    for kind, path in (
        ("pods of all namespaces", "/api/v1/pods"),
        ("nodes", "/api/v1/nodes"),
        ("gpunodes", GPUNode.RESOURCE.path()),
    ):
        try:
            await client.request("GET", path, {"limit": "1"})
        except Forbidden:
            found.append(kind)
        except NotFound:
            continue
    return found


async def listed(client: Client, path: str) -> list[Object]:
    """Return all objects of a path, read in pages, without the large parts that no explanation reads."""
    return await _listed(client, path, _object)


async def _listed(client: Client, path: str, decode: Callable[[msgspec.Raw], Object]) -> list[Object]:
    found: list[Object] = []
    params = {"limit": _PAGE}
    while True:
        page = decode_deep(_page.decode, await client.request("GET", path, params))
        found += map(decode, page.items or ())
        if not page.more:
            return found
        params = {"limit": _PAGE, "continue": page.more}


def _object(item: msgspec.Raw) -> Object:
    return _slim(decode_any(bytes(item)))


def decode_pod(item: msgspec.Raw, whole: str = "") -> Object:
    """Return a pod: what one takes up that is bound, all of one that waits or is of the namespace `whole`."""
    try:
        pod: Object = dict(decode_deep(_bound.decode, bytes(item)))
    except msgspec.ValidationError:  # no pod as the API server writes them
        return _object(item)
    bound = (pod.get("spec") or {}).get("nodeName")
    # NB: a gang's time-out counts from the time at which its pods were bound, which is in their conditions.
    of_round = names.GANG_ROUND_ANNOTATION in (pod["metadata"].get("annotations") or {})
    slim = bound and not of_round and whole not in (EVERY, pod["metadata"].get("namespace"))
    return pod if slim else _object(item)


def _slim(found: Object) -> Object:
    found["metadata"].pop("managedFields", None)
    spec, status = found.get("spec"), found.get("status")
    if isinstance(status, dict):
        status.pop("images", None)  # of a node
    if isinstance(spec, dict):
        for kind in _CONTAINERS:
            for container in spec.get(kind) or ():
                for name in _UNREAD_OF_CONTAINERS & container.keys():
                    del container[name]
    return found


async def _gpunodes(client: Client) -> list[GPUNode]:
    try:
        return await client.list(GPUNode)
    except NotFound:
        return []  # gpuplane is not installed: node capacities tell of GPUs


async def _namespaces(client: Client) -> dict[str, dict[str, str]]:
    try:
        found = await listed(client, "/api/v1/namespaces")
    except Forbidden:
        return {}
    return {one["metadata"]["name"]: one["metadata"].get("labels") or {} for one in found}


async def read_quotas(client: Client) -> tuple[QuotaSettings, dict[str, NamespaceQuota]]:
    """Those in force as they stand; none where they cannot be read or parsed."""
    naming, quotas = QuotaSettings(), {}
    try:
        settings = await client.get(ConfigMap, QUOTA_SETTINGS_CONFIGMAP, QUOTA_NAMESPACE)
        naming = parse_settings(settings.data[QUOTA_SETTINGS_KEY])
    except (NotFound, Forbidden, KeyError, InvalidInput):
        pass
    try:
        found = await client.get(ConfigMap, naming.name, naming.namespace)
        quotas = parse_quotas(found.data[QUOTA_KEY])
    except (NotFound, Forbidden, KeyError, InvalidInput):
        pass
    return naming, quotas
