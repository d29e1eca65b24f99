"""A tenant with a quota does not go round it by naming the node of a pod."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuplane import names
from tests.support.policy_world import PolicyWorld
from tinykube.apiserver import User

TENANT = User("jane", ("system:authenticated",))
ADMIN = User("admin", ("system:masters",))
KUBELET = User("system:node:n1", ("system:nodes",))
QUOTA = {"ml": {"quota": {"T4": 8}}, "web-2": {"pool": ["free"]}}
POLICY = "gpuplane-quota-node-name"


def pod(resource: str | None = names.GPU_RESOURCE, *, init: bool = False, requests: bool = False, **spec: Any) -> Any:
    amounts = {} if resource is None else {"requests" if requests else "limits": {resource: "1"}}
    if resource == "tencent.com/vcuda-core":
        amounts["limits"] |= {"tencent.com/vcuda-memory": "1"}
    asking, plain = {"name": "a", "image": "i", "resources": amounts}, {"name": "b", "image": "i"}
    containers = {"containers": [plain], "initContainers": [asking]} if init else {"containers": [asking]}
    return {"metadata": {"name": "p"}, "spec": {**containers, "nodeName": "n1", **spec}}


@pytest.fixture
async def tenants(world: PolicyWorld) -> PolicyWorld:
    """The policies, quotas for some namespaces, and those namespaces."""
    for namespace in (*QUOTA, "free", "pool"):
        await world.registry.create("namespaces", None, {"metadata": {"name": namespace}})
    body = {"metadata": {"name": names.QUOTA_CONFIGMAP}, "data": {names.QUOTA_KEY: json.dumps(QUOTA, indent=2)}}
    await world.registry.create("configmaps", names.QUOTA_NAMESPACE, body)
    return world


@pytest.mark.parametrize("namespace", sorted(QUOTA))
@pytest.mark.parametrize(
    "resource", [names.GPU_RESOURCE, names.VCUDA_CORE, "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared"]
)
async def test_a_pod_with_gpus_may_not_name_its_node(tenants: PolicyWorld, namespace: str, resource: str) -> None:
    said = await tenants.refused_create(TENANT, "pods", namespace, pod(resource))
    assert POLICY in said and f"namespace {namespace} has a GPU quota" in said and "remove spec.nodeName" in said


async def test_neither_init_containers_nor_requests_nor_administrators_pass(tenants: PolicyWorld) -> None:
    for user, body in ((TENANT, pod(init=True)), (TENANT, pod(requests=True)), (ADMIN, pod())):
        assert POLICY in await tenants.refused_create(user, "pods", "ml", body)


@pytest.mark.parametrize(
    ("user", "namespace", "body"),
    [
        (TENANT, "ml", pod(nodeName="")),
        (TENANT, "ml", pod(None)),
        (TENANT, "ml", pod("cpu")),
        (TENANT, "free", pod()),
        (TENANT, "pool", pod()),
        (KUBELET, "ml", pod()),
    ],
    ids=["scheduled", "no resources", "no GPUs", "another namespace", "a word of the quotas' format", "kubelet"],
)
async def test_other_pods_pass(tenants: PolicyWorld, user: User, namespace: str, body: dict[str, Any]) -> None:
    assert POLICY not in await tenants.refused_create(user, "pods", namespace, body)


async def test_without_quotas_nothing_is_refused(tenants: PolicyWorld) -> None:
    await tenants.registry.delete("configmaps", names.QUOTA_NAMESPACE, names.QUOTA_CONFIGMAP)
    assert await tenants.refused_create(TENANT, "pods", "ml", pod()) == ""
