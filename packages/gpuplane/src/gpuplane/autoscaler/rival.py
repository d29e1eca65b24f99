"""Karpenter on the same cluster. Two autoscalers would buy for the same pods, so gpuplane's stands aside."""

from __future__ import annotations

from typing import Final

from kubekit.api.core import Deployment
from kubekit.errors import Terminal
from kubekit.kube import Client

LABEL: Final = "app.kubernetes.io/name=karpenter"  # of Karpenter's chart, in all its releases
CURE: Final = "gpuplane uninstall --only=autoscaler removes gpuplane's; or remove Karpenter: helm uninstall karpenter"


async def find_karpenter(client: Client) -> str:
    """Return Karpenter's Deployment as NAMESPACE/NAME, empty where none works. One scaled to zero buys nothing."""
    found = await client.list(Deployment, labels=LABEL)
    return next((f"{one.metadata.namespace}/{one.metadata.name}" for one in found if one.spec.replicas), "")


async def stand_aside(client: Client) -> None:
    """Raises Terminal where Karpenter works on the cluster."""
    if found := await find_karpenter(client):
        raise Terminal("Karpenter works on this cluster, and buys nodes for the same pods", where=found, cure=CURE)
