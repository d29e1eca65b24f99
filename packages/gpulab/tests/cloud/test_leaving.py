"""A pod that no pool buys for, cured as `explain` says, and all nodes ended at the uninstall: on `gpuplane up --cloud`.

Everything is the product's own: the cure is one that the autoscaler then acts upon, and the instances end by its hand.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gpuplane import names
from gpuplane.api.karpenter import Provisioner
from gpuplane.api.nodeclaim import NodeClaim
from kubekit.api.core import Node, Pod
from kubekit.kube import Client, NotFound
from packages.gpulab.tests.cloud.test_story import CONFIGS, PATIENCE_SECONDS, SHARED, CloudWorld, client, world
from packages.gpulab.tests.cloud.test_story import documents as printed
from tests.support.until import until

__all__ = ["client", "world"]  # fixtures
pytestmark = [
    pytest.mark.skipif(not SHARED.exists(), reason="no shared manifests beside this checkout"),
    pytest.mark.deadline(400),
]


def pod(name: str, **spec: Any) -> dict[str, Any]:
    [deployment] = printed("gpu.yaml")
    containers = deployment["spec"]["template"]["spec"]["containers"]
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": containers, **spec}}


def explained(world: CloudWorld, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(world.gpuplane("explain", f"default/{name}", "-o", "json"))
    return found


async def test_a_cure_of_explain_buys_a_node_and_uninstall_ends_it(world: CloudWorld, client: Client) -> None:
    (values,) = printed("device-plugin-values.yaml")
    meta = {"name": CONFIGS, "namespace": names.OPERATOR_NAMESPACE}
    configs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": values["config"]["map"]}
    await client.apply(configs, "me")
    for name in ("provisioner-gpu.yaml", "provisioner-gpu-shared.yaml"):
        for document in printed(name):
            await client.apply(document, "me", resource=Provisioner.RESOURCE)
    await client.apply(pod("stuck"), "me")

    async def refused() -> dict[str, Any] | None:
        found = explained(world, "stuck")
        return found if found["buying"]["state"] == "refused" else None

    found = await until(refused, seconds=PATIENCE_SECONDS, poll=0.5)
    assert "the pod does not tolerate the taint nvidia.com/gpu:NoSchedule" in found["buying"]["text"]
    answers = {answer["pool"]: answer for answer in found["pools"]}
    assert answers["gpu"]["whyNot"] == "the pod does not tolerate the taint nvidia.com/gpu:NoSchedule"
    [cure] = answers["gpu"]["cures"]
    said = re.fullmatch(r"tolerate (\S+):(\S+)", cure["change"])
    assert said is not None and cure["place"].startswith("g4dn.xlarge")
    assert await client.list(NodeClaim) == []

    toleration = {"key": said[1], "operator": "Exists", "effect": said[2]}
    await client.apply(pod("cured", tolerations=[toleration]), "me")
    [claim] = await until(lambda: client.list(NodeClaim), seconds=PATIENCE_SECONDS)
    coming = await until(lambda: explained(world, "cured"), seconds=PATIENCE_SECONDS)
    assert (coming["buying"]["state"], coming["buying"]["claim"]) == ("coming", claim.metadata.name)

    async def runs() -> bool:
        return (await client.get(Pod, "cured", "default")).status.phase == "Running"

    await until(runs, seconds=PATIENCE_SECONDS, poll=0.5)
    assert world.running() == ["g4dn.xlarge"]
    assert (await client.get(Pod, "stuck", "default")).status.phase == "Pending"

    world.gpuplane("uninstall", "--only=nodes", "--timeout=100", "-q")
    assert world.running() == []
    assert {one["state"] for one in world.bill()["instances"]} == {"terminated"}
    with pytest.raises(NotFound):
        await client.list(NodeClaim)
    assert not [node for node in await client.list(Node) if "karpenter.sh/nodepool" in node.metadata.labels]
