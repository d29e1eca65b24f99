"""`gpuplane install --autoscaler` on a real API server: it takes every rule of Karpenter's kinds, and uninstall leaves
nothing of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import yaml

from gpuplane.api.karpenter import EC2NodeClass, NodePool, Provisioner
from gpuplane.api.nodeclaim import NodeClaim
from kubekit.kube import Client, Invalid, NotFound
from packages.gpuplane.tests.api.test_karpenter_crds import (
    ADMITTED,
    CLAIM,
    CLASS,
    POOL,
    PROVISIONER,
    REFUSED,
    TEMPLATE,
    changed,
)
from tests.support.realkube.control_plane import ControlPlane
from tests.support.realkube.inventory import difference
from tests.support.realkube.life import PATIENCE_S, gpuplane, settled, until_as
from tests.support.until import until

pytestmark = pytest.mark.deadline(300)
PATHS = {
    "Provisioner": Provisioner.RESOURCE.path(),
    "NodePool": NodePool.RESOURCE.path(),
    "NodeClaim": NodeClaim.RESOURCE.path(),
    "EC2NodeClass": EC2NodeClass.RESOURCE.path(),
    "AWSNodeTemplate": "/apis/karpenter.k8s.aws/v1alpha1/awsnodetemplates",
}


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    async with Client.connect(control_plane.kubeconfig) as client:
        yield client


async def served(client: Client) -> bool:
    try:
        for path in PATHS.values():
            await client.request("GET", path)
    except NotFound:
        return False
    return True


async def test_a_real_api_server_admits_and_refuses_as_check_does_and_uninstall_leaves_nothing(
    control_plane: ControlPlane, client: Client
) -> None:
    before = await settled(client)
    await asyncio.to_thread(gpuplane, control_plane, "install", "-q", "--autoscaler", "--cluster-name", "demo")
    await until(lambda: served(client), what="Karpenter's kinds", seconds=PATIENCE_S)
    for text in (PROVISIONER, TEMPLATE, POOL, CLASS, CLAIM):
        data = yaml.safe_load(text)
        await client.request("POST", PATHS[data["kind"]], {"dryRun": "All", "fieldValidation": "Strict"}, data)
    for text, path, value in ADMITTED:
        data = changed(text, path, value)
        await client.request("POST", PATHS[data["kind"]], {"dryRun": "All"}, data)
    for text, path, value, _ in REFUSED:
        data = changed(text, path, value)
        with pytest.raises(Invalid):
            await client.request("POST", PATHS[data["kind"]], {"dryRun": "All"}, data)
    await client.request("POST", PATHS["NodePool"], None, yaml.safe_load(POOL))
    stored = json.loads(await client.request("GET", f"{PATHS['NodePool']}/gpu"))["spec"]
    assert stored["disruption"] == {
        "consolidateAfter": "0s",
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "budgets": [{"nodes": "10%"}],
    }
    assert stored["template"]["spec"]["expireAfter"] == "720h"
    await client.request("POST", PATHS["NodeClaim"], None, yaml.safe_load(CLAIM))
    late = {"spec": {"expireAfter": "1h"}}
    with pytest.raises(Invalid, match="spec never changes"):
        await client.patch(NodeClaim, "gpu-1", late, manager="test")
    await asyncio.to_thread(gpuplane, control_plane, "uninstall", "-q")
    assert not (left := difference(before, await until_as(client, before))), left
