"""The autoscaler at work under its own account: it is refused nothing, and no right of its roles is left unused.

A right that no step of this life uses is one that a stolen token has for nothing.
"""

from __future__ import annotations

import asyncio
import datetime
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuplane import names
from gpuplane.api import nodeclaim
from gpuplane.autoscaler.process import AutoscalerProcess
from gpuplane.autoscaler.repair.decide import GPU_PATIENCE_SECONDS
from gpuplane.autoscaler.rival import stand_aside
from gpuplane.autoscaler.settings import AutoscalerSettings
from gpuplane.operator.autoscaler_install import AutoscalerInstall
from gpuplane.operator.installation import installation, resource_of
from kubekit.kube import ApiEndpoint, Client, Lease
from kubekit.kube.auth import StaticAuth
from packages.gpuplane.tests.autoscaler.disruption.replicated import add_node_pool
from tests.support.autoscaler_world import CLAIMS, AutoscalerWorld
from tinykube.apiserver.identity import ADMIN, service_account_user
from tinykube.apiserver.server import ApiServer

NAME = "gpuplane-autoscaler"
USER = f"system:serviceaccount:{names.OPERATOR_NAMESPACE}:{NAME}"
TEMPLATES = ("karpenter.k8s.aws", "awsnodetemplates")
OVERLAYS, GPUNODES = ("karpenter.sh", "nodeoverlays"), ("gpuplane.dev", "gpunodes")
CONTAINER = {"name": "c", "image": "i"}
UNSEEN = {
    ("events", "patch"): "an event that repeats is counted on",
}
"""Right -> why it is granted though this life does not always use it."""


def granted() -> set[tuple[str, str]]:
    """Return (resource, verb) of the account's roles."""
    roles = [
        one
        for one in installation(autoscaler=AutoscalerInstall({"CLUSTER_NAME": "demo"}))
        if one["kind"] in ("ClusterRole", "Role") and one["metadata"]["name"] in (NAME, "gpuplane:autoscaler")
    ]
    assert len(roles) == 2
    return {
        (resource, verb)
        for role in roles
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = await ApiServer.start(tmp_path / "pki")
    server.extensions.identity.add("admin", ADMIN)
    server.extensions.identity.add("autoscaler", service_account_user(names.OPERATOR_NAMESPACE, NAME))
    yield server
    await server.stop()


def connected(server: ApiServer, who: str) -> Client:
    tls = ssl.create_default_context(cafile=str(server.authority))
    return Client(ApiEndpoint(host="127.0.0.1", port=server.port, auth=StaticAuth(token=who), tls=tls))


async def until(world: AutoscalerWorld, holds: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Move time until a condition holds. Requests are real, so time stands still for them."""
    end = world.clock.now() + seconds
    while not (found := holds()):
        assert world.clock.now() < end, world.seen()
        await asyncio.sleep(0.02)
        await world.clock.advance(0.5)
        await world.schedule()
    return found


async def used(admin: Client) -> set[tuple[str, str]]:
    """Return (resource, verb) of the autoscaler's requests."""
    text = (await admin.request("GET", "/metrics")).decode()
    found = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "apiserver_request_total" and sample.labels["user"] == USER:
                labels = sample.labels
                resource = labels["resource"] + (f"/{labels['subresource']}" if labels["subresource"] else "")
                found.add((resource, labels["verb"].lower()))
    return found


async def test_every_right_is_used_and_none_is_missing(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    """With every gate open: repairs and NodeOverlays too."""
    world = AutoscalerWorld()
    world.settings = AutoscalerSettings("demo", node_repair=True, node_overlay=True)
    world.registry = server.registry
    world.clock.seconds = time.time()
    world.boot_seconds = 5.0
    async with connected(server, "admin") as admin, connected(server, "autoscaler") as client:
        for manifest in installation(autoscaler=AutoscalerInstall({"CLUSTER_NAME": "demo"})):
            if manifest["kind"] != "ClusterPolicy":
                await admin.apply(manifest, "test", resource=resource_of(manifest))
        await world.add_provisioner("old", ttlSecondsAfterEmpty=5)
        await add_node_pool(world, "p4d.24xlarge")
        selector = {"karpenter.sh/discovery": "demo"}
        machines = {"subnetSelector": selector, "securityGroupSelector": selector}
        await world.registry.create(TEMPLATES, None, {"metadata": {"name": "old"}, "spec": machines})
        world.cloud.resolved = msgspec.structs.replace(world.cloud.resolved, security_groups=("sg-1",))
        overlay = {"requirements": [{"key": "team", "operator": "Exists"}], "price": "1"}
        await world.registry.create(OVERLAYS, None, {"metadata": {"name": "contract"}, "spec": overlay})
        await stand_aside(client)
        lease = Lease(client, names.AUTOSCALER_NAME, names.OPERATOR_NAMESPACE, "one")
        await lease.lead(lambda: asyncio.sleep(0))
        process = AutoscalerProcess(client, world.cloud, world.settings, identity="test", clock=world.machine)
        running = asyncio.create_task(process.run())
        await world.add_pods(2)
        await until(world, lambda: len(world.bound()) == 2)
        await end_by_hand(world)
        await until(world, lambda: len(world.cloud.ended) == 2 and len(world.nodes()) == 2)
        await until(world, lambda: len(working(world)) == 2)
        await break_gpus(world)
        await until(world, lambda: world.cloud.rebooted)
        for pod in world.registry.list("pods", "default"):
            await world.registry.delete("pods", "default", pod["metadata"]["name"], grace=0)
        await until(world, lambda: not world.claims())  # empty for its time
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        found = await used(admin)
    assert granted() - found <= set(UNSEEN), "rights that no step uses"
    assert [line for line in caplog.messages if "forbidden" in line.lower()] == []


def working(world: AutoscalerWorld) -> set[str]:
    """Return the nodes that are there and run pods."""
    return {node["metadata"]["name"] for node in world.nodes()} & set(world.bound().values())


async def break_gpus(world: AutoscalerWorld) -> None:
    """Let the GPUs of one node that runs a pod be broken for long."""
    node = min(working(world))
    since = datetime.datetime.fromtimestamp(world.clock.now() - 2 * GPU_PATIENCE_SECONDS, datetime.UTC)
    broken = {"type": "GPUsHealthy", "status": "False", "reason": "Unhealthy", "message": "GPU-1: Xid 79"}
    broken["lastTransitionTime"] = since.strftime("%Y-%m-%dT%H:%M:%SZ")
    await world.registry.create(GPUNODES, None, {"metadata": {"name": node}, "status": {"conditions": [broken]}})


async def end_by_hand(world: AutoscalerWorld) -> None:
    """Delete both claims: one pod is evicted, the other one holds its node until the deadline; a third one stays."""
    [first, second] = world.claims()
    held = next(pod for pod, node in world.bound().items() if node == first["status"]["nodeName"])
    annotation = {"metadata": {"annotations": {nodeclaim.DO_NOT_DISRUPT: "true"}}}
    await world.registry.patch("pods", "default", held, annotation, "merge")
    node = second["status"]["nodeName"]
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    spec = {"nodeName": node, "tolerations": [{"operator": "Exists"}], "containers": [CONTAINER], "volumes": [volume]}
    await world.registry.create("pods", "default", {"metadata": {"name": "stays"}, "spec": spec})
    claim = {"volumeName": "pv", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await world.registry.create("persistentvolumeclaims", "default", {"metadata": {"name": "data"}, "spec": claim})
    attachment = {"attacher": "ebs", "nodeName": node, "source": {"persistentVolumeName": "pv"}}
    attachments = ("storage.k8s.io", "volumeattachments")
    await world.registry.create(attachments, None, {"metadata": {"name": "at"}, "spec": attachment})
    deadline = datetime.datetime.fromtimestamp(world.clock.now() + 20, datetime.UTC).isoformat()
    late = {"metadata": {"annotations": {nodeclaim.TERMINATION_ANNOTATION: deadline}}}
    await world.registry.patch(CLAIMS, None, first["metadata"]["name"], late, "merge")
    for one in (first, second):
        await world.registry.delete(CLAIMS, None, one["metadata"]["name"])
