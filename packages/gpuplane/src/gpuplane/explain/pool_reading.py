"""Reads node pools, what makes their nodes, and what the autoscaler has done: as far as the user may read it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, chosen
from gpuplane.api.karpenter import (
    CLASS_KINDS,
    NEWER,
    POOL_KINDS,
    AWSNodeTemplate,
    BetaEC2NodeClass,
    DeclaredClass,
    DeclaredPool,
    EC2NodeClass,
    NodePool,
    Provisioner,
    declared_class,
    declared_pool,
)
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.api.nodeoverlay import NodeOverlay
from gpuplane.autoscaler.catalogue import MEMORY_OVERHEAD, REGION_LABEL
from gpuplane.autoscaler.options import SharingSettings
from gpuplane.autoscaler.overlays import is_applied
from gpuplane.autoscaler.policies import policy_sharing
from gpuplane.autoscaler.rival import find_karpenter
from gpuplane.autoscaler.settings import NODE_OVERLAY, memory_overhead, open_gates
from gpuplane.explain.buying import BuyingFacts
from gpuplane.explain.pool_trouble import pool_trouble
from gpuplane.explain.pools import PoolFacts
from gpuplane.explain.reading import listed
from gpuplane.explain.volume_reading import read_volumes
from gpuplane.explain.world import Object
from kubekit.api.core import ConfigMap, DaemonSet, Deployment, Event
from kubekit.errors import InvalidInput
from kubekit.kube import Client, Forbidden, NotFound


async def read_pool_facts(
    client: Client, nodes: Iterable[Object] = (), pods: Sequence[Object] = ()
) -> PoolFacts | None:
    """Return the facts about pools; None where there are none, or the user may not read them.

    Args:
        nodes: the cluster's, whose label tells the region where the autoscaler's setting does not.
        pods: those in question, whose volumes are read.
    """
    found: list[Provisioner | NodePool] = []
    for kind in POOL_KINDS:
        # The same objects may be served in an older version too.
        if kind not in NEWER or not any(isinstance(one, NEWER[kind]) for one in found):
            found += await _objects(client, kind)
    if not found:
        return None
    pools = {pool.metadata.name: pool for pool in found}.values()  # of two generations the newer one counts
    classes = await _class_objects(client)
    policies, daemons, autoscaler, volumes = await asyncio.gather(
        _objects(client, ClusterPolicy),
        _raw(client, DaemonSet.RESOURCE.path(None)),
        _autoscaler(client),
        read_volumes(client, pods),
    )
    overlays = await _objects(client, NodeOverlay) if _has_overlays(autoscaler) else []
    labels = ((node["metadata"].get("labels") or {}).get(REGION_LABEL, "") for node in nodes)
    return PoolFacts(
        pools=_declared(pools, _settings(autoscaler)),
        classes=_classes(classes or ()),
        sharing=await _sharing(client, policies),
        daemons=[_pod_of(daemon) for daemon in daemons],
        region=_region(autoscaler) or next(filter(None, labels), ""),
        overlays=[overlay for overlay in overlays if is_applied(overlay)],
        respect_preferences=_settings(autoscaler).get("PREFERENCE_POLICY") != "Ignore",
        memory_overhead=_memory_overhead(_settings(autoscaler)),
        troubles={pool.metadata.name: why for pool in pools if (why := pool_trouble(pool, classes))},
        volumes=volumes.facts,
        unread_volumes=volumes.unread,
    )


async def read_buying_facts(client: Client, namespace: str, pod: str = "") -> BuyingFacts:
    """Return the autoscaler and its traces, as far as the user may read them.

    Args:
        namespace: of the pods in question; empty for all.
        pod: the only pod in question; empty for all.
    """
    own = f"involvedObject.kind=Pod{f',involvedObject.name={pod}' * bool(pod)}"
    claims, events, of_claims, autoscaler = await asyncio.gather(
        _objects(client, NodeClaim),
        _events(client, namespace or None, own),
        _events(client, None, "involvedObject.kind=NodeClaim"),
        _autoscaler(client),
    )
    facts = BuyingFacts(claims, (*events, *of_claims))
    if autoscaler is None:
        try:
            return msgspec.structs.replace(facts, karpenter=await find_karpenter(client))
        except Forbidden:
            return msgspec.structs.replace(facts, known=False)
    return msgspec.structs.replace(
        facts,
        place=f"{names.OPERATOR_NAMESPACE}/{names.AUTOSCALER_NAME}",
        wanted=autoscaler.spec.replicas,
        ready=autoscaler.status.ready_replicas,
    )


async def _events(client: Client, namespace: str | None, fields: str) -> list[Event]:
    try:
        return await client.list(Event, namespace, fields=fields)
    except (Forbidden, NotFound):
        return []


async def _autoscaler(client: Client) -> Deployment | None:
    try:
        return await client.get(Deployment, names.AUTOSCALER_NAME, names.OPERATOR_NAMESPACE)
    except (Forbidden, NotFound):
        return None


def _settings(autoscaler: Deployment | None) -> dict[str, str]:
    """Return the environment that the autoscaler's Deployment sets."""
    containers = autoscaler.spec.template.spec.containers if autoscaler is not None else ()
    return {variable.name: variable.value for container in containers for variable in container.env}


def _has_overlays(autoscaler: Deployment | None) -> bool:
    try:
        return NODE_OVERLAY in open_gates(_settings(autoscaler).get("FEATURE_GATES", ""))
    except InvalidInput:
        return False  # the autoscaler does not start with such gates


def _declared(pools: Iterable[Provisioner | NodePool], settings: Mapping[str, str]) -> list[DeclaredPool]:
    """Return what pools declare, with the autoscaler's policy of minValues."""
    relaxes = settings.get("MIN_VALUES_POLICY") == "BestEffort"
    return [msgspec.structs.replace(declared_pool(pool), relaxes_min_values=relaxes) for pool in pools]


def _memory_overhead(settings: Mapping[str, str]) -> float:
    try:
        return memory_overhead(settings)
    except InvalidInput:
        return MEMORY_OVERHEAD  # the autoscaler does not start with such a value


def _region(autoscaler: Deployment | None) -> str:
    """Return the region that the autoscaler's Deployment is set to; empty where its instance tells it."""
    values = _settings(autoscaler)
    return values.get("AWS_REGION") or values.get("AWS_DEFAULT_REGION") or ""


async def _class_objects(client: Client) -> list[AWSNodeTemplate | EC2NodeClass] | None:
    """Return the classes of every generation; None where the user may not read some of them."""
    found: list[AWSNodeTemplate | EC2NodeClass] = []
    for kind in CLASS_KINDS:
        if kind is BetaEC2NodeClass and any(isinstance(one, EC2NodeClass) for one in found):
            continue
        try:
            found += await client.list(kind)
        except NotFound:
            continue
        except Forbidden:
            return None
    return found


async def _objects(client: Client, kind: type[Any]) -> list[Any]:
    try:
        return await client.list(kind)
    except (Forbidden, NotFound):
        return []


async def _raw(client: Client, path: str) -> list[Object]:
    try:
        return await listed(client, path)
    except (Forbidden, NotFound):
        return []


def _classes(found: Iterable[AWSNodeTemplate | EC2NodeClass]) -> list[DeclaredClass]:
    """Return the classes that can be read; a pool whose class cannot counts as one without settings of the kubelet."""
    read = []
    for one in found:
        try:
            read.append(declared_class(one))
        except InvalidInput:
            continue
    return read


async def _sharing(client: Client, policies: Sequence[ClusterPolicy]) -> SharingSettings:
    policy, _ = chosen(policies)
    if policy is None:
        return SharingSettings(known=False)
    config = policy.spec.device_plugin.config
    data: dict[str, str] = {}
    if config is not None and config.name:
        try:
            data = (await client.get(ConfigMap, config.name, names.OPERATOR_NAMESPACE)).data
        except (Forbidden, NotFound):
            data = {}
    return policy_sharing(policy.spec, data)


def _pod_of(daemon: Object) -> dict[str, Any]:
    template, meta = daemon["spec"]["template"], daemon["metadata"]
    labels = (template.get("metadata") or {}).get("labels") or {}
    own = {"name": meta["name"], "namespace": meta["namespace"], "labels": labels}
    return {"metadata": own, "spec": template["spec"]}
