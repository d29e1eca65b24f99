"""Reads node pools and what makes their nodes, where their kinds are served and the user may read them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, chosen
from gpuplane.api.karpenter import (
    AWSNodeTemplate,
    DeclaredClass,
    EC2NodeClass,
    NodePool,
    Provisioner,
    declared_class,
    declared_pool,
)
from gpuplane.autoscaler.options import SharingSettings
from gpuplane.autoscaler.policies import policy_sharing
from gpuplane.explain.pools import PoolFacts
from gpuplane.explain.reading import listed
from gpuplane.explain.world import Object
from kubekit.api.core import ConfigMap, DaemonSet
from kubekit.errors import InvalidInput
from kubekit.kube import Client, Forbidden, NotFound


async def read_pool_facts(client: Client) -> PoolFacts | None:
    """Return the facts about pools; None where there are none, or the user may not read them."""
    provisioners, pools = await asyncio.gather(_objects(client, Provisioner), _objects(client, NodePool))
    if not provisioners and not pools:
        return None
    templates, classes, policies, daemons = await asyncio.gather(
        _objects(client, AWSNodeTemplate),
        _objects(client, EC2NodeClass),
        _objects(client, ClusterPolicy),
        _raw(client, DaemonSet.RESOURCE.path(None)),
    )
    return PoolFacts(
        pools=[declared_pool(pool) for pool in (*provisioners, *pools)],
        classes=_classes([*templates, *classes]),
        sharing=await _sharing(client, policies),
        daemons=[_pod_of(daemon) for daemon in daemons],
    )


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


def _classes(found: Sequence[AWSNodeTemplate | EC2NodeClass]) -> list[DeclaredClass]:
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
