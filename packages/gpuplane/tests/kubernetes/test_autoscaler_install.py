"""`gpuplane install --autoscaler` on a real API server: it takes every rule of Karpenter's kinds, and uninstall leaves
nothing of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import yaml

from gpulab.kubernetes.control_plane import ControlPlane
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.karpenter import EC2NodeClass, NodePool, Provisioner
from gpuplane.api.nodeclaim import FINALIZER, NodeClaim
from gpuplane.api.nodeoverlay import NodeOverlay
from kubekit.kube import Client, Forbidden, Invalid, NotFound
from packages.gpuplane.tests.api.test_karpenter_crds import (
    ADMITTED,
    CLAIM,
    CLASS,
    OVERLAY,
    POOL,
    PROVISIONER,
    REFUSED,
    TEMPLATE,
    changed,
)
from packages.gpuplane.tests.kubernetes.chart_values import is_hook, rendered
from packages.gpuplane.tests.kubernetes.test_chart import create, delete
from tests.support.realkube.inventory import difference
from tests.support.realkube.life import PATIENCE_S, account_config, asked_of, gpuplane, settled, take_away, until_as
from tests.support.until import until

PATHS = {
    "Provisioner": Provisioner.RESOURCE.path(),
    "NodePool": NodePool.RESOURCE.path(),
    "NodeClaim": NodeClaim.RESOURCE.path(),
    "EC2NodeClass": EC2NodeClass.RESOURCE.path(),
    "NodeOverlay": NodeOverlay.RESOURCE.path(),
    "AWSNodeTemplate": "/apis/karpenter.k8s.aws/v1alpha1/awsnodetemplates",
}


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    async with Client.connect(control_plane.kubeconfig) as client:
        await take_away(control_plane, client)  # what a run left that was cut short
        yield client
        await take_away(control_plane, client)


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
    for text in (PROVISIONER, TEMPLATE, POOL, CLASS, CLAIM, OVERLAY):
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


@pytest.mark.usefixtures("with_helm")
async def test_the_chart_ends_the_nodes_before_it_goes(control_plane: ControlPlane, client: Client) -> None:
    """The command of the chart's Job, under the Job's account: it returns when the last claim has gone, not before.

    The claims' finalizer is what the autoscaler takes off once an instance has ended. Here the test does that.
    """
    values = ("-n", "default", "--set", "autoscaler.enabled=true,autoscaler.clusterName=demo")
    hooks = [manifest for manifest in rendered(*values) if is_hook(manifest)]
    before_delete = sorted(
        (int(one["metadata"]["annotations"]["helm.sh/hook-weight"]), one["metadata"]["name"])
        for one in hooks
        if one["kind"] == "Job" and one["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    )
    # Of equal weight, helm runs them by name: the nodes end while the policy still says how.
    assert [name for _, name in before_delete] == ["gpuplane-end-nodes", "gpuplane-take-back"]
    own = [one for one in hooks if "end-nodes" in one["metadata"]["name"]]
    for manifest in own:
        if manifest["kind"] != "Job":
            await delete(client, manifest)  # of a run that was cut short
    before = await settled(client)
    await asyncio.to_thread(gpuplane, control_plane, "install", "-q", "--autoscaler", "--cluster-name", "demo")
    try:
        await until(lambda: served(client), what="Karpenter's kinds", seconds=PATIENCE_S)
        claim = yaml.safe_load(CLAIM)
        claim["metadata"]["finalizers"] = [FINALIZER]
        await client.request("POST", PATHS["NodeClaim"], None, claim)
        await client.request("POST", PATHS["NodePool"], None, yaml.safe_load(POOL))
        for manifest in own:
            if manifest["kind"] != "Job":
                await create(client, manifest)
        (job,) = (one["spec"]["template"]["spec"] for one in own if one["kind"] == "Job")
        config = await account_config(control_plane, client, "default", job["serviceAccountName"])
        hook = asyncio.create_task(asyncio.to_thread(asked_of, config, *job["containers"][0]["args"]))
        name = claim["metadata"]["name"]

        async def is_ending() -> bool:
            return bool((await client.get(NodeClaim, name)).metadata.deletion_timestamp)

        await until(is_ending, what="the end of the claim", seconds=PATIENCE_S)
        assert not hook.done()
        await client.patch(NodeClaim, name, {"metadata": {"finalizers": None}}, manager="test")
        await hook
        for kind in ("NodePool", "EC2NodeClass"):  # the autoscaler releases classes too, so they go while it runs
            with pytest.raises(NotFound):
                await client.request("GET", PATHS[kind])
        # The policy is the other Job's work.
        assert await client.get(ClusterPolicy, "cluster-policy")
        async with Client.connect(config) as account:
            with pytest.raises(Forbidden):
                await account.request("GET", "/api/v1/secrets")
    finally:
        for manifest in own:
            if manifest["kind"] != "Job":
                await delete(client, manifest)
        await take_away(control_plane, client)
    assert not (left := difference(before, await until_as(client, before))), left
