"""A GPU that falls off the bus of a bought node, mended by a restart: on `gpuplane up --cloud`, by the product itself.

Time is short-cut once: the ten minutes for which a GPU has to be broken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.karpenter import Provisioner
from gpuplane.api.nodeclaim import INITIALIZED, NodeClaim
from gpuplane.autoscaler.repair.decide import GPU_PATIENCE_SECONDS
from gpuplane.autoscaler.repair.observe import REBOOTING, REBOOTING_TAINT
from kubekit.api.core import Node, Pod
from kubekit.api.kinds import built_in
from kubekit.kube import Client
from packages.gpulab.tests.cloud.test_story import PATIENCE_SECONDS, CloudWorld
from simgpu import STATE_PATH
from simgpu.faults import Faults
from tests.support.until import until

pytestmark = pytest.mark.deadline(400)
POOL: dict[str, Any] = {
    "apiVersion": Provisioner.RESOURCE.api_version,
    "kind": "Provisioner",
    "metadata": {"name": "gpu"},
    "spec": {
        "requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g4dn.xlarge"]}],
        "limits": {"resources": {"cpu": 4}},  # one node: the pod has to come back to it
        "provider": {
            "launchTemplate": "karpenter-gpu-demo",
            "subnetSelector": {"karpenter.sh/discovery": "demo"},
        },
    },
}
CONTAINER = {
    "name": "main",
    "image": "busybox",
    "command": ["sleep", "100000"],
    "resources": {"limits": {names.GPU_RESOURCE: 1}},
}
WORK: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "work", "namespace": "default"},
    "spec": {
        "selector": {"matchLabels": {"app": "work"}},
        "template": {
            "metadata": {"labels": {"app": "work"}},
            "spec": {"containers": [CONTAINER], "terminationGracePeriodSeconds": 1},
        },
    },
}


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudWorld]:
    made = CloudWorld(tmp_path_factory.mktemp("r"), "--cloud-env=FEATURE_GATES=NodeRepair=true")
    yield made
    made.gpuplane("down", "-q")


async def test_a_restart_mends_the_gpus_of_a_bought_node(world: CloudWorld) -> None:
    async with Client.connect(world.kubeconfig) as client:
        await client.apply(POOL, "me", resource=Provisioner.RESOURCE)
        await client.apply(WORK, "me", resource=built_in("apps/v1", "Deployment"))
        first = await until(lambda: running(client), seconds=PATIENCE_SECONDS, poll=0.2)
        name = first.spec.node_name
        node = await client.get(Node, name)
        claim = await until(lambda: initialized(client), seconds=PATIENCE_SECONDS, poll=0.2)
        with Faults(world.directory / "nodes" / name / "root" / STATE_PATH) as faults:
            faults.off_bus(0)
        await until(lambda: broken_for_long(client, name), seconds=PATIENCE_SECONDS, poll=0.2)

        async def restarted() -> bool:
            return (await client.get(Node, name)).status.node_info.boot_id != node.status.node_info.boot_id

        await until(restarted, seconds=PATIENCE_SECONDS, poll=0.2)

        async def works() -> bool:
            now, own = await client.get(Node, name), await client.get(NodeClaim, claim.metadata.name)
            tainted = any(taint.key == REBOOTING_TAINT for taint in now.spec.taints)
            begun = any(one.type == REBOOTING and one.status == "True" for one in own.status.conditions)
            return not tainted and not begun and await healthy(client, name) == "True"

        await until(works, seconds=PATIENCE_SECONDS, poll=0.2)
        seen: list[str] = []
        second = await until(
            lambda: running(client, seen), seconds=PATIENCE_SECONDS, poll=0.2, what="one pod runs", seen=lambda: seen
        )
        assert second.spec.node_name == name and second.metadata.uid != first.metadata.uid, "it was evicted before"
        assert [one.metadata.uid for one in await client.list(NodeClaim)] == [claim.metadata.uid]
    assert [one["state"] for one in world.bill()["instances"]] == ["running"]


async def running(client: Client, seen: list[str] | None = None) -> Pod | None:
    """Return the pod that runs, once no other is there; `seen` gets what there is. A pod that a kubelet refused because
    its device plugin was not there yet has ended, and does not count."""
    pods = await client.list(Pod, "default")
    found = [pod for pod in pods if not pod.metadata.deletion_timestamp and not pod.status.ended]
    if seen is not None:
        seen[:] = [f"{pod.metadata.name}: {msgspec.json.encode(pod.status).decode()}" for pod in found]
    return found[0] if len(found) == 1 and found[0].status.phase == "Running" else None


async def initialized(client: Client) -> NodeClaim | None:
    [claim] = await client.list(NodeClaim)
    return claim if any(one.type == INITIALIZED and one.status == "True" for one in claim.status.conditions) else None


async def healthy(client: Client, name: str) -> str:
    found = await client.get(GPUNode, name)
    return next((one.status for one in found.status.conditions if one.type == "GPUsHealthy"), "")


async def broken_for_long(client: Client, name: str) -> bool:
    """Once the GPU is reported as broken, let it have been so for longer than the autoscaler waits."""
    found = await client.request("GET", GPUNode.RESOURCE.path(None, name))
    conditions = json.loads(found).get("status", {}).get("conditions", [])
    [own] = [one for one in conditions if one["type"] == "GPUsHealthy"] or [None]
    if own is None or own["status"] != "False":
        return False
    since = datetime.now(UTC) - timedelta(seconds=GPU_PATIENCE_SECONDS + 60)
    own["lastTransitionTime"] = since.strftime("%Y-%m-%dT%H:%M:%SZ")
    await client.patch(GPUNode, name, {"status": {"conditions": conditions}})
    return True
