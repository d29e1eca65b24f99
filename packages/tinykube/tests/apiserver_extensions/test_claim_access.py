"""Rights to devices of claims: administrative access by the namespace's label, allocations and status by RBAC."""

from __future__ import annotations

from typing import Any

import pytest

from tinykube.apiserver import ApiFailure, User
from tinykube.apiserver.identity import service_account_user

SCHEDULER = User("scheduler", ("system:authenticated",))
DRIVER = service_account_user("default", "driver")
GROUP = "resource.k8s.io"
ADMIN = {"name": "all", "exactly": {"deviceClassName": "gpu", "allocationMode": "All", "adminAccess": True}}
PLAIN = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
DEVICE = {"driver": "gpu.example.com", "pool": "p", "device": "d"}
LABEL = {"resource.kubernetes.io/admin-access": "true"}
ON_NODE = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}


def claim(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "c"}, "spec": {"devices": {"requests": list(requests)}}}


def template(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "c"}, "spec": {"spec": claim(*requests)["spec"]}}


async def labelled(cluster: Any, labels: dict[str, str]) -> None:
    await cluster.registry.patch("namespaces", None, "default", {"metadata": {"labels": labels}}, "merge")


def allocation(**result: Any) -> dict[str, Any]:
    results = [{"request": "gpu", **DEVICE, **result}]
    return {"allocation": {"devices": {"results": results}, "nodeSelector": ON_NODE}}


async def write(cluster: Any, status: dict[str, Any], **more: Any) -> dict[str, Any]:
    return await cluster.registry.patch(
        "resourceclaims", "default", "c", {"status": status}, "merge", subresource="status", **more
    )


async def refused(cluster: Any, *args: Any, **more: Any) -> list[dict[str, str]]:
    with pytest.raises(ApiFailure) as failure:
        await write(cluster, *args, **more)
    assert (failure.value.status, failure.value.reason) == (422, "Invalid")
    assert failure.value.details is not None
    return failure.value.details["causes"]


async def grant(cluster: Any, user: User, resources: list[str], verbs: list[str], name: str) -> None:
    rules = [{"apiGroups": [GROUP], "resources": resources, "verbs": verbs}]
    await cluster.create("clusterroles", {"metadata": {"name": name}, "rules": rules})
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user.name}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    await cluster.create("clusterrolebindings", {"metadata": {"name": name}, "roleRef": role, "subjects": subjects})


@pytest.mark.parametrize(("plural", "make"), [("resourceclaims", claim), ("resourceclaimtemplates", template)])
async def test_administrative_access_needs_the_label_of_the_namespace(cluster, plural, make):
    for labels in ({}, {"resource.kubernetes.io/admin-access": "True"}):
        await labelled(cluster, labels)
        with pytest.raises(ApiFailure) as failure:
            await cluster.create(plural, make(PLAIN, ADMIN))
        assert failure.value.status == 422 and failure.value.details is not None
        assert failure.value.details["causes"] == [
            {
                "reason": "FieldValueForbidden",
                "message": "Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: "
                "true` label on the containing namespace",
                "field": "spec.devices.requests[1].adminAccess",
            }
        ]
    await labelled(cluster, LABEL)
    await cluster.create(plural, make(PLAIN, ADMIN))


async def test_a_claim_with_administrative_access_outlives_the_label(cluster):
    await labelled(cluster, LABEL)
    made = await cluster.create("resourceclaims", claim(ADMIN))
    await write(cluster, allocation(request="all", adminAccess=True))
    await labelled(cluster, {"resource.kubernetes.io/admin-access": None})
    await cluster.registry.patch("resourceclaims", "default", "c", {"metadata": {"labels": {"a": "b"}}}, "merge")
    found = await write(cluster, {"devices": [{**DEVICE, "data": {"a": 1}}]})
    assert found["metadata"]["uid"] == made["metadata"]["uid"]


async def test_an_allocation_gets_no_administrative_access_without_the_label(cluster):
    await labelled(cluster, LABEL)
    await cluster.create("resourceclaims", claim(ADMIN))
    await labelled(cluster, {"resource.kubernetes.io/admin-access": None})
    (cause,) = await refused(cluster, allocation(request="all", adminAccess=True))
    assert cause["field"] == "status.allocation.devices.results[0].adminAccess"
    await write(cluster, allocation(request="all"))


async def test_an_allocation_needs_the_right_to_bind(cluster):
    await cluster.create("resourceclaims", claim(PLAIN))
    (cause,) = await refused(cluster, allocation(), user=SCHEDULER)
    assert cause == {
        "reason": "FieldValueForbidden",
        "field": "status.allocation",
        "message": "Forbidden: changing status.allocation or status.reservedFor requires "
        'resource="resourceclaims/binding", verb="update" permission: resourceclaims.resource.k8s.io is forbidden: '
        'User "scheduler" cannot update resource "resourceclaims/binding" in API group "resource.k8s.io" at the '
        "cluster scope",
    }
    await grant(cluster, SCHEDULER, ["resourceclaims/binding"], ["update"], "binding")
    await write(cluster, allocation(), user=SCHEDULER)


async def test_the_status_of_a_device_is_written_by_its_driver_on_the_node(cluster):
    await cluster.create("resourceclaims", claim(PLAIN))
    devices = {"devices": [{**DEVICE, "conditions": []}]}
    await write(cluster, allocation())
    pod = service_account_user("default", "driver", **{"authentication.kubernetes.io/node-name": ("n1",)})
    (cause,) = await refused(cluster, devices, user=pod)
    assert cause["field"] == "status.devices"
    assert (
        'verb="[associated-node:update arbitrary-node:update]" permission: resourceclaims.resource' in cause["message"]
    )
    await grant(cluster, DRIVER, ["resourceclaims/driver"], ["associated-node:update"], "on-node")
    other = service_account_user("default", "driver", **{"authentication.kubernetes.io/node-name": ("n2",)})
    for user in (DRIVER, other):
        (cause,) = await refused(cluster, devices, user=user)
        assert 'verb="[arbitrary-node:update]"' in cause["message"]
    await write(cluster, devices, user=pod)
    await write(cluster, devices, user=other)  # nothing changes
    await grant(cluster, DRIVER, ["resourceclaims/driver"], ["arbitrary-node:update"], "anywhere")
    await write(cluster, {"devices": None}, user=other)
